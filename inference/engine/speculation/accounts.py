"""Accounts: whom to guess for, and how far, so that it never costs more than a few percent.

Everything is counted in tokens: the time in which the engine, at the present number of requests, would have generated
that many without guessing. A step that verifies earns a token for each guess that holds and pays for the time that it
takes longer than a plain step; a request pays by its share of the additional rows. What a request may lose is what it
has on its account: a small allowance at first, and ``EARNING`` of a token per token generated. So text that can't be
guessed is tried ever more rarely, and the price of finding out stays a fixed small share, whatever a
verification costs on this machine, with this model and at this batch size. Nothing has to be known of these: where the
machine is bound by arithmetic a verification is dear, the accounts run dry, and guessing stops by itself.

The allowances come from one purse of the engine, which gets back what is left at the end of a request, and pays what
is missing; else many short requests would each lose theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

EARNING = 0.02
ALLOWANCE = 1.0
MOST = 3.0
"""Most tokens on an account: what is lost when a text that could be guessed goes over to one that can't."""

PURSE = 4.0
PURSE_BOUND = 32.0
"""What gains fill the purse up to, and what it can owe for prompts that a draft model has read in vain."""

FIRST_LENGTH = 3
NUM_SAMPLES = 5
MIN_SAMPLES = 2
PRICE_MEMORY = 0.7
"""Weight of what a row cost before, against what it costs now."""

REFRESH = 128
"""Steps with guesses after which the time of a plain step is measured again: contexts grow."""


class PlainSteps:
    """How long a step without guesses takes, by number of requests: the median of the last few."""

    def __init__(self) -> None:
        self._samples: dict[int, list[float]] = {}
        self._age: dict[int, int] = {}

    def add(self, num_requests: int, seconds: float) -> None:
        """A step was measured."""
        samples = self._samples.setdefault(num_requests, [])
        samples.append(seconds)
        del samples[:-NUM_SAMPLES]
        self._age[num_requests] = 0

    def seconds(self, num_requests: int) -> float | None:
        """None: not known well enough, a plain step is due."""
        samples = self._samples.get(num_requests, ())
        if len(samples) < MIN_SAMPLES or self._age[num_requests] >= REFRESH:
            return None
        return median_low(samples)

    def grow_older(self, num_requests: int) -> None:
        """A step with guesses has passed."""
        self._age[num_requests] += 1


@dataclass(slots=True)
class Account:
    """One request's.

    Attributes:
        tokens: What it may lose.
        allowance: What it was given at the start.
        length: Guesses to make at a time.
    """

    tokens: float
    allowance: float
    length: int

    def note(self, num_guessed: int, num_accepted: int, most: int) -> None:
        """Guess further after a run that held throughout, less far after one that broke."""
        if num_accepted == num_guessed:
            if num_guessed >= self.length:
                self.length = min(most, 2 * self.length)
        else:
            self.length = max(1, min(self.length, (self.length + num_accepted + 1) // 2))


@dataclass(frozen=True, slots=True)
class Verified:
    """What one request had in a step.

    Attributes:
        account: Its.
        num_rows: Rows beyond the one that it would have had without guessing.
        num_guessed, num_accepted: Guesses that were verified, and those that held.
    """

    account: Account
    num_rows: int
    num_guessed: int
    num_accepted: int


class Accounts:
    """All accounts of an engine.

    Args:
        num_tokens: Most guesses at a time.
        is_adaptive: False: everybody always guesses as far as possible.
    """

    def __init__(self, num_tokens: int, *, is_adaptive: bool) -> None:
        self._most = num_tokens
        self._is_adaptive = is_adaptive
        self._purse = PURSE
        self._plain = PlainSteps()
        self._prices: dict[int, float] = {}
        self._last_price = 0.0

    def open(self) -> Account:
        """For a request that begins."""
        if not self._is_adaptive:
            return Account(0.0, 0.0, self._most)
        allowance = min(ALLOWANCE, max(0.0, self._purse))
        self._purse -= allowance
        return Account(allowance, allowance, min(FIRST_LENGTH, self._most))

    def close(self, account: Account) -> None:
        """The request has ended; gains beyond its allowance fill the purse up."""
        self._pay(account.tokens)

    def charge_setup(self, num_requests: int, seconds: float) -> None:
        """Book on the purse what was done once for new requests, in a step that generates for so many.

        Charged to the guesses of a request, it would end them before they can show what they are worth.
        """
        plain = self._plain.seconds(num_requests)
        if self._is_adaptive and plain is not None:
            self._pay(-num_requests * seconds / plain)

    def _pay(self, tokens: float) -> None:
        self._purse = max(-PURSE_BOUND, min(PURSE_BOUND, self._purse + tokens))

    def is_open_for(self, num_requests: int) -> bool:
        """Whether guesses may be made in a step that generates for so many requests."""
        return not self._is_adaptive or self._plain.seconds(num_requests) is not None

    def affordable(self, account: Account, num_requests: int) -> int:
        """How far to guess for a request in a step that generates for so many: no further than it can pay for."""
        if not self._is_adaptive:
            return account.length
        if account.tokens <= 0:
            return 0
        price = self._prices.get(num_requests, self._last_price)
        return min(account.length, int(account.tokens / price)) if price > 0 else account.length

    def settle(
        self, accounts: Sequence[Account], verified: Sequence[Verified], seconds: float, *, is_pure: bool
    ) -> None:
        """Book a step.

        Args:
            accounts: Of all requests that generated in it.
            verified: Those of them that had more than one row.
            seconds: How long it took.
            is_pure: No prompt was computed beside. Otherwise the times say nothing; there, a few rows more among
                many cost next to nothing, and are not charged.
        """
        if not self._is_adaptive:
            return
        for entry in verified:
            if entry.num_guessed:
                entry.account.note(entry.num_guessed, entry.num_accepted, self._most)
        count = len(accounts)
        if not is_pure or not count:
            return
        if not verified:
            self._plain.add(count, seconds)
        else:
            self._charge(count, verified, seconds)
        for account in accounts:
            account.tokens = min(MOST, account.tokens + EARNING)

    def _charge(self, count: int, verified: Sequence[Verified], seconds: float) -> None:
        plain = self._plain.seconds(count)
        if plain is None:
            return
        self._plain.grow_older(count)
        longer = max(0.0, seconds / plain - 1) * count
        num_rows = sum(entry.num_rows for entry in verified)
        # A full account can always pay for one row, or a hiccup of the machine would stop all guesses for ever.
        price = min(MOST, longer / num_rows)
        self._last_price = self._prices[count] = price + PRICE_MEMORY * (self._prices.get(count, price) - price)
        for entry in verified:
            entry.account.tokens += entry.num_accepted - longer * entry.num_rows / num_rows
            self._pay(max(0.0, entry.account.tokens - MOST))
            entry.account.tokens = max(-MOST, min(MOST, entry.account.tokens))
