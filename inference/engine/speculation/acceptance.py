"""Acceptance: the draft tokens that the sampler chooses itself.

A draw depends on the request's seed and the position only (``random_draws``). So the token that the sampler takes at a
position is known as soon as the logits there are, and a draft token is accepted if it is that token. The output is the
same, token by token, as without speculation, greedy or sampled, whatever the processors; so is its distribution. A
draft token is accepted with the probability that the model gives it, which is what rejection sampling reaches for a
draft that isn't random (Leviathan, Kalman and Matias 2023, https://arxiv.org/abs/2211.17192, with a distribution q that
has all its mass on one token).
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.engine.sampling.sampler import SamplerOutput
from inference.engine.sampling.sampling_state import SamplingState


def states_along(state: SamplingState, draft_token_ids: Sequence[int]) -> list[SamplingState]:
    """The sampler's state at each row of a verification: before the first draft token, after one, after two, …"""
    states = [state]
    for token_id in draft_token_ids:
        following = states[-1].copy()
        following.append(token_id)
        states.append(following)
    return states


def count_accepted(draft_token_ids: Sequence[int], sampled: SamplerOutput, row: int) -> int:
    """How many draft tokens the sampler chose itself, counted up to the first that it didn't choose.

    Args:
        draft_token_ids: k tokens.
        sampled: Rows ``row`` to ``row + k`` are the request's; row ``row + i`` counts only if i draft tokens hold.
        row: The request's first row.
    """
    for number, draft in enumerate(draft_token_ids, row):
        if number in sampled.errors or sampled.token_ids[number] != draft:
            return number - row
    return len(draft_token_ids)
