"""The rules of the further samplers, one row and one token at a time, in float64, without torch.

Written from the papers and from what llama.cpp's documentation says of each sampler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from inference.values.sampling_params import SamplingParams

Logits = Mapping[int, float]


def shares(logits: Logits) -> dict[int, float]:
    """Softmax."""
    most = max(logits.values())
    weights = {token: math.exp(value - most) for token, value in logits.items()}
    total = math.fsum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def top_n_sigma(logits: Logits, width: float) -> tuple[dict[int, float], float]:
    """What lies within ``width`` standard deviations of the maximum; and how near a logit comes to the limit."""
    values = list(logits.values())
    mean = math.fsum(values) / len(values)
    sigma = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    limit = max(values) - width * sigma
    margin = min(abs(value - limit) for value in values) if width * sigma else math.inf
    return {token: value for token, value in logits.items() if value >= limit}, margin


def top_k(logits: Logits, count: int) -> tuple[dict[int, float], float]:
    """The ``count`` greatest, and equals of the last."""
    limit = sorted(logits.values(), reverse=True)[min(count, len(logits)) - 1]
    return {token: value for token, value in logits.items() if value >= limit}, math.inf


def typical(logits: Logits, wanted: float) -> tuple[dict[int, float], float]:
    """The tokens with a surprise next to the entropy, as few as have more than ``wanted`` together; and equals."""
    found = shares(logits)
    entropy = -math.fsum(share * math.log(share) for share in found.values())
    distances = {token: abs(-math.log(share) - entropy) for token, share in found.items()}
    passed, limit, margin = 0.0, math.inf, math.inf
    for token in sorted(distances, key=lambda token: distances[token]):
        passed += found[token]
        margin = min(margin, abs(passed - wanted))
        if passed > wanted:
            limit = distances[token]
            break
    near = [abs(distance - limit) for distance in distances.values() if abs(distance - limit) > 1e-11]
    kept = {token: logits[token] for token, distance in distances.items() if distance <= limit + 1e-11}
    return kept, min([margin, *near])


def top_p(logits: Logits, wanted: float) -> tuple[dict[int, float], float]:
    """The likeliest tokens, as few as have at least ``wanted`` together; and equals of the last."""
    found = shares(logits)
    passed, limit, margin = 0.0, 0.0, math.inf
    for share in sorted(found.values(), reverse=True):
        passed, limit = passed + share, share
        margin = min(margin, abs(passed - wanted))
        if passed >= wanted:
            break
    return {token: value for token, value in logits.items() if found[token] >= limit}, margin


def min_p(logits: Logits, wanted: float) -> tuple[dict[int, float], float]:
    """Tokens of at least ``wanted`` times the greatest probability."""
    found = shares(logits)
    most = max(found.values())
    margin = min(abs(share / most - wanted) for share in found.values())
    return {token: value for token, value in logits.items() if found[token] >= wanted * most}, margin


def xtc(logits: Logits, threshold: float) -> tuple[dict[int, float], float]:
    """Without the tokens that are likelier than the least likely one of at least the threshold's probability."""
    found = shares(logits)
    margin = min(abs(share - threshold) for share in found.values())
    top = [share for share in found.values() if share >= threshold]
    least = min(top, default=math.inf)
    return {token: value for token, value in logits.items() if found[token] <= least}, margin


def temperature_of(logits: Logits, params: SamplingParams) -> float:
    """The temperature, which dynatemp makes follow the entropy."""
    if not params.dynatemp_range or len(logits) < 2:
        return params.temperature
    found = shares(logits)
    entropy = -math.fsum(share * math.log(share) for share in found.values() if share)
    part = min(1.0, entropy / math.log(len(logits)))
    low = max(0.0, params.temperature - params.dynatemp_range)
    high = params.temperature + params.dynatemp_range
    return max(1e-5, low + (high - low) * part**params.dynatemp_exponent)


def chain(logits: Sequence[float], params: SamplingParams, xtc_number: float) -> tuple[dict[int, float], float]:
    """Probabilities of the tokens that are left, by id; and how near a decision was, as rounding may turn it."""
    left: dict[int, float] = {token: float(value) for token, value in enumerate(logits) if value > -math.inf}
    margins = [math.inf]
    for is_on, sampler, argument in (
        (params.top_n_sigma > 0, top_n_sigma, params.top_n_sigma),
        (params.top_k > 0, top_k, params.top_k),
        (0 < params.typical_p < 1, typical, params.typical_p),
        (params.top_p < 1, top_p, params.top_p),
        (params.min_p > 0, min_p, params.min_p),
        (xtc_number <= params.xtc_probability and params.xtc_threshold <= 0.5, xtc, params.xtc_threshold),
    ):
        if is_on:
            left, margin = sampler(left, argument)  # type: ignore[operator]
            margins.append(margin)
    temperature = temperature_of(left, params)
    return shares({token: value / temperature for token, value in sorted(left.items())}), min(margins)


def mirostat(logits: Sequence[float], params: SamplingParams, mu: float) -> tuple[dict[int, float], float]:
    """Probabilities of the tokens that mirostat leaves, by id; and the margin."""
    values = {token: float(value) / params.temperature for token, value in enumerate(logits) if value > -math.inf}
    found = shares(values)
    ordered = sorted(found.values(), reverse=True)
    if params.mirostat == 2:
        margin = min(abs(-math.log2(share) - mu) for share in ordered)
        limit = min([share for share in ordered if -math.log2(share) <= mu], default=ordered[0])
    else:
        likeliest = ordered[:100]
        steps = [math.log((rank + 1) / rank) for rank in range(1, len(likeliest))]
        falls = [math.log(first / second) for first, second in pairwise(likeliest)]
        exponent = sum(t * b for t, b in zip(steps, falls, strict=True)) / sum(t * t for t in steps)
        excess = exponent - 1
        count = (excess * 2**mu / (1 - len(logits) ** -excess)) ** (1 / exponent)
        margin = abs(count - round(count))
        limit = ordered[min(max(int(count), 1), len(ordered)) - 1]
    kept = {token: values[token] for token, share in sorted(found.items()) if share >= limit}
    return shares(kept), margin


def next_mu(mu: float, params: SamplingParams, probability: float) -> float:
    """``mu`` behind a token with this probability among those that were left."""
    return mu - params.mirostat_eta * (-math.log2(probability) - params.mirostat_tau)


def dry_penalties(
    token_ids: Sequence[int], params: SamplingParams, breakers: Sequence[tuple[int, ...]]
) -> dict[int, float]:
    """What DRY subtracts, by token: every earlier place is compared with the end, token by token.

    A token that is a breaker alone isn't penalised, as in llama.cpp.
    """
    tokens = list(token_ids)
    if params.dry_penalty_last_n >= 0:
        tokens = tokens[len(tokens) - min(len(tokens), params.dry_penalty_last_n) :]
    ends = [
        stop for stop in range(1, len(token_ids) + 1)
        for breaker in breakers if tuple(token_ids[max(0, stop - len(breaker)) : stop]) == breaker
    ]  # fmt: skip
    most = len(token_ids) - max(ends, default=0)
    longest: dict[int, int] = {}
    for place in range(1, len(tokens)):
        length = 0
        while length < min(place, most) and tokens[place - 1 - length] == tokens[len(tokens) - 1 - length]:
            length += 1
        if length >= params.dry_allowed_length:
            longest[tokens[place]] = max(length, longest.get(tokens[place], 0))
    return {
        token: params.dry_multiplier * params.dry_base ** (length - params.dry_allowed_length)
        for token, length in longest.items()
        if (token,) not in breakers
    }
