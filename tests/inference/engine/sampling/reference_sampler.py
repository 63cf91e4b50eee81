"""The sampler's rules one row and one token at a time, in float64, without torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from inference.engine.request import TokenLogprobs
from inference.engine.sampling.sampler import SamplerOutput
from inference.errors import BlazrError
from inference.values.sampling_params import SamplingParams


class SampledRow(NamedTuple):
    """One row of a ``SamplerOutput`` without an error."""

    token_id: int
    logprobs: TokenLogprobs | None = None


def rows_of(output: SamplerOutput) -> list[SampledRow | BlazrError]:
    """The output row by row."""
    rows = enumerate(output.token_ids)
    return [output.errors.get(at) or SampledRow(token_id, output.logprobs.get(at)) for at, token_id in rows]


def processed(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    stop_ids: Sequence[int] = (),
    invalid: Sequence[int] = (),
) -> list[float]:
    """Logits after masks, bias and penalties."""
    result = [float(value) for value in logits]
    for token in invalid:
        result[token] = -math.inf
    if len(output) < params.min_tokens:
        for token in stop_ids:
            result[token] = -math.inf
    for token, bias in params.logit_bias.items():
        result[token] += bias
    for token in set(prompt) | set(output):
        value = result[token]
        result[token] = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
    for token, count in Counter(output).items():
        result[token] -= params.frequency_penalty * count + params.presence_penalty
    return result


def kept(logits: Sequence[float], params: SamplingParams) -> tuple[dict[int, float], float]:
    """Probabilities of the tokens that min_p, top_k and top_p leave, made to sum to 1.

    Returns:
        Them by token, and the smallest distance of a cumulated probability from ``top_p`` (or of a probability
        from ``min_p``'s limit): if it is tiny, rounding decides and a comparison means nothing.
    """
    best = max(logits)
    weights = {
        token: math.exp((value - best) / params.temperature) for token, value in enumerate(logits) if value > -math.inf
    }
    margin = math.inf
    if params.min_p > 0:
        margin = min(abs(weight - params.min_p) for weight in weights.values())
        weights = {token: weight for token, weight in weights.items() if weight >= params.min_p}
    if params.top_k and params.top_k < len(weights):
        limit = sorted(weights.values(), reverse=True)[params.top_k - 1]
        weights = {token: weight for token, weight in weights.items() if weight >= limit}
    total = sum(weights.values())
    if params.top_p < 1:
        passed, limit = 0.0, 0.0
        for weight in sorted(weights.values(), reverse=True):
            passed += weight / total
            limit = weight
            margin = min(margin, abs(passed - params.top_p))
            if passed >= params.top_p:
                break
        weights = {token: weight for token, weight in weights.items() if weight >= limit}
        total = sum(weights.values())
    return {token: weight / total for token, weight in sorted(weights.items())}, margin


def invert(probabilities: dict[int, float], number: float) -> int:
    """The first token, in the order of ids, at which the cumulated probability exceeds ``number``."""
    passed = 0.0
    for token, probability in probabilities.items():
        passed += probability
        if passed > number:
            return token
    return max(probabilities)
