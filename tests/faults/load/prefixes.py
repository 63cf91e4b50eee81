"""F66: whether the time to the first token tells a caller which prompts another one has sent."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, median

from tests.faults.load.client import completion, stream
from tests.faults.load.site import LoadSite

NUM_TOKENS = 900
"""Of a prompt; the demo's context has 1,024."""
TOKEN_IDS = range(40, 400)
P_VALUE = 0.01
"""One of a hundred runs without a difference has a smaller one."""


@dataclass
class Times:
    """Seconds to the first tokens of a caller.

    Attributes:
        known: Of prompts that the other caller had just sent.
        fresh: Of prompts that nobody had sent, just after the other caller had sent another one.
        own: Of the fresh ones again, whose states are cached.
    """

    known: list[float] = field(default_factory=list)
    fresh: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)

    def same(self) -> float:
        """Probability that known and fresh prompts of one distribution differ as much; small: they can be told."""
        return probability_of_one_distribution(self.known, self.fresh)

    def saved(self) -> float:
        """Share of the time that a cached prompt saves."""
        return 1 - median(self.own) / median(self.fresh)


def probability_of_one_distribution(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p-value of Mann and Whitney's U, by its normal approximation, for values without ties.

    https://en.wikipedia.org/wiki/Mann-Whitney_U_test
    """
    num, others = len(first), len(second)
    ranks = {value: rank for rank, value in enumerate(sorted([*first, *second]), start=1)}
    u = sum(ranks[value] for value in first) - num * (num + 1) / 2
    deviation = (num * others * (num + others + 1) / 12) ** 0.5
    return 2 * NormalDist().cdf(-abs(u - num * others / 2) / deviation)


async def run_prefixes(site: LoadSite, num: int, seed: int) -> Times:
    """Time so many pairs in turns, in a random order within each; the two callers send one request at a time.

    Args:
        seed: Draws the prompts and the orders.
    """
    dice = random.Random(seed)
    one, other = site.key(), site.key()
    found = Times()

    async def first_token_s(prompt: list[int], key: str) -> float:
        answer = await stream(site.urls[0], "/v1/completions", completion(prompt, 1), key)
        assert answer.ends == ["done"], answer
        return answer.ttft_s

    for _ in range(num):
        for times in dice.sample([found.known, found.fresh], 2):
            before, prompt = (dice.choices(TOKEN_IDS, k=NUM_TOKENS) for _ in range(2))
            await first_token_s(before, one)
            if times is found.known:
                prompt = before
            times.append(await first_token_s(prompt, other))
        found.own.append(await first_token_s(prompt, other))
    return found
