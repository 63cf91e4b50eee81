"""Accept the draft tokens that equal the sampler's own tokens.

A draw depends on the request's seed and the position only (``random_draws``). So the logits at a position determine the
sampler's token there, and a draft token is accepted if it is that token. The output is the same, token by token, as
without speculation, greedy or sampled, with any processors. A draft token is accepted with the probability that the
model assigns to it. Rejection sampling has the same rate for a deterministic draft (Leviathan, Kalman and Matias 2023,
https://arxiv.org/abs/2211.17192, with a distribution q that has all its mass on one token).
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.engine.sampling.sampling_state import SamplingState


def states_along(state: SamplingState, draft_token_ids: Sequence[int]) -> list[SamplingState]:
    """Return the sampler's state at each row of a verification: after no draft token, after one, after two, …"""
    states = [state]
    for token_id in draft_token_ids:
        following = states[-1].copy()
        following.append(token_id)
        states.append(following)
    return states
