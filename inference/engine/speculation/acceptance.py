"""Which guesses hold: those that the sampler would have chosen itself.

A draw depends on the request's seed and the position only (``random_draws``). So the token that the sampler takes at a
position is known as soon as the logits there are, and a guess is accepted if it is that token: the output is the same,
token by token, as without speculation, greedy or sampled, whatever the processors. The distribution is unchanged for
the same reason. A guess is accepted with the probability that the model gives it, which is what rejection sampling
reaches for a guess that isn't random (Leviathan, Kalman and Matias 2023, https://arxiv.org/abs/2211.17192, with a
distribution q that has all its mass on one token).
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.engine.sampling.sampler import SampledToken
from inference.engine.sampling.sampling_state import SamplingState
from inference.errors import BlazrError

Answer = SampledToken | BlazrError


def states_along(state: SamplingState, guesses: Sequence[int]) -> list[SamplingState]:
    """The sampler's view of a request at each row of a verification: before the first guess, after one, after two, …"""
    states = [state]
    for token_id in guesses:
        following = states[-1].copy()
        following.append(token_id)
        states.append(following)
    return states


def agreed_run(guesses: Sequence[int], answers: Sequence[Answer]) -> list[Answer]:
    """The answers up to and with the first that isn't the guess: all of them are what the model says.

    Args:
        guesses: k tokens.
        answers: The sampler's for k + 1 rows; row i is only meant if the first i guesses hold.
    """
    run: list[Answer] = []
    for number, answer in enumerate(answers):
        run.append(answer)
        if isinstance(answer, BlazrError) or number == len(guesses) or answer.token_id != guesses[number]:
            break
    return run
