"""Draw tokens with llama.cpp's sampler chain, for the rows of a batch that use a sampler beyond vLLM's.

In llama.cpp's order: top_n_sigma, top_k, typical_p, top_p, min_p, xtc, temperature (or dynatemp), draw. A row with
mirostat has only temperature and mirostat. (DRY, which comes first there, is a logits processor: ``dry``.)

Each sampler looks at its own rows and masks logits with -inf. What it does to a row follows from the row alone: sums
are the last value of a cumulated sum, whose order of additions doesn't depend on the number of rows. Tokens with equal
logits are treated alike, so that no result depends on how a sort orders equals.

Shape letters: n rows, V vocabulary.

Sources: the samplers' own papers, at each; order and details as llama.cpp documents them,
https://github.com/ggml-org/llama.cpp/blob/master/tools/completion/README.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from inference.engine.device import upload_ids
from inference.engine.sampling.random_draws import uniforms
from inference.engine.sampling.row_ops import (
    column,
    descending,
    draw_by_numbers,
    draw_in_slices,
    mask_below,
    select_rows,
)
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.sampling.truncation import mask_min_p, truncate

MIROSTAT_COLUMNS = 100
"""Most probable tokens from which mirostat 1 estimates the exponent; m in llama.cpp and in the paper."""

MAX_XTC_THRESHOLD = 0.5
"""Two tokens can't both be more probable than this, so nothing is excluded with a higher threshold."""

TYPICAL_HALVINGS = 52
TYPICAL_ROUNDING = 1e-12
"""Distances from the entropy, in nats, that differ by less are equal."""

XTC_STREAM = 0x58544320_53454544
"""Added to a row's seed for XTC's own random numbers, which are unrelated to those of the draw."""

Rows = Sequence[SamplingState]


def draw_from_chain(logits: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Draw a token for each row; record the token's surprise for rows with mirostat.

    Args:
        logits: (n, V) float32, after masks, biases and penalties.
        rows: Sampling states of the rows; none is greedy.

    Returns:
        (n,) int64 token ids.
    """
    return draw_in_slices(_draw, logits, rows)


def _draw(logits: torch.Tensor, rows: Rows) -> torch.Tensor:
    values = logits - logits.amax(-1, keepdim=True)
    for is_used, sampler in _CHAIN:
        group = [at for at, row in enumerate(rows) if is_used(row)]
        if group:
            part, chosen = select_rows(values, rows, group)
            sampler(part, chosen)
            _write_rows(values, group, part)
    # Relative to the maximum once more: typical_p and xtc may have masked the argmax.
    values -= values.amax(-1, keepdim=True)
    values /= _temperatures(values, rows)
    with_mirostat = [at for at, row in enumerate(rows) if row.params.mirostat]
    if with_mirostat:
        part, chosen = select_rows(values, rows, with_mirostat)
        mask_below(part, _mirostat_limits(part, chosen))
        _write_rows(values, with_mirostat, part)
    numbers = uniforms([row.params.seed or 0 for row in rows], [row.num_output_tokens for row in rows])
    token_ids = draw_by_numbers(values, numbers)  # values are shares without a common total now
    if with_mirostat:
        part, chosen = select_rows(values, rows, with_mirostat)
        drawn = part.gather(1, token_ids[upload_ids(with_mirostat, values.device)].unsqueeze(1)).double()
        surprises = -(drawn / _total(part)).log2()
        for row, surprise in zip(chosen, surprises.squeeze(1).tolist(), strict=True):
            row.surprise = surprise
    return token_ids


def _top_n_sigma(values: torch.Tensor, rows: Rows) -> None:
    """Keep the logits within n standard deviations (of the unmasked logits) below the maximum.

    Source: Tang et al. 2024, https://arxiv.org/abs/2411.07641.
    """
    is_unmasked = values > -math.inf
    num = is_unmasked.sum(-1, keepdim=True).double()
    unmasked = values.masked_fill(~is_unmasked, 0.0)
    mean = _total(unmasked) / num
    deviations = (unmasked.double() - mean).square_().masked_fill_(~is_unmasked, 0.0)
    sigma = (_total(deviations) / num).sqrt_()
    widths = column([row.params.top_n_sigma for row in rows], np.float64, values.device)
    mask_below(values, values.amax(-1, keepdim=True) - (widths * sigma).float())


def _top_k(values: torch.Tensor, rows: Rows) -> None:
    truncate(values, [(row.params.top_k, 1.0) for row in rows])


def _typical_p(values: torch.Tensor, rows: Rows) -> None:
    """Keep the tokens whose surprise is nearest to the entropy, until their probabilities exceed ``typical_p``.

    Source: Meister et al. 2022, https://arxiv.org/abs/2202.00666.
    """
    surprises = -_log_shares(values)
    expected = _entropy(-surprises, (-surprises).exp())
    # The tokens at a distance of at most d are a range of the sorted ones; so d is found by halving, without a sort.
    ordered = -_log_shares(descending(values, values.shape[1]))
    cumulated = torch.nn.functional.pad((-ordered).exp().cumsum(-1), (1, 0))
    shares = column([row.params.typical_p for row in rows], np.float64, values.device)
    low = torch.zeros_like(shares)
    high = (ordered - expected).abs().masked_fill_(ordered == math.inf, 0.0).amax(-1, keepdim=True)
    for _ in range(TYPICAL_HALVINGS):
        middle = (low + high) / 2
        start = torch.searchsorted(ordered, expected - middle)
        stop = torch.searchsorted(ordered, expected + middle, right=True)
        is_enough = cumulated.gather(1, stop) - cumulated.gather(1, start) > shares
        low, high = torch.where(is_enough, low, middle), torch.where(is_enough, middle, high)
    values.masked_fill_((surprises - expected).abs_() > high + TYPICAL_ROUNDING, -math.inf)


def _top_p(values: torch.Tensor, rows: Rows) -> None:
    truncate(values, [(0, row.params.top_p) for row in rows])


def _min_p(values: torch.Tensor, rows: Rows) -> None:
    mask_min_p(values, values.amax(-1, keepdim=True), [row.params.min_p for row in rows])


def _xtc(values: torch.Tensor, rows: Rows) -> None:
    """Exclude top choices: of the tokens with at least the threshold's probability, keep only the least likely.

    Happens with the probability ``xtc_probability``, by a random number of its own for each position.

    Source: p-e-w 2024, https://github.com/oobabooga/text-generation-webui/pull/6335.
    """
    seeds = [(row.params.seed or 0) + XTC_STREAM for row in rows]
    numbers = uniforms(seeds, [row.num_output_tokens for row in rows])
    group = [at for at, row in enumerate(rows) if numbers[at] <= row.params.xtc_probability]
    if not group:
        return
    part, chosen = select_rows(values, rows, group)
    limits = column([row.params.xtc_threshold for row in chosen], np.float64, values.device)
    is_top = (_log_shares(part).exp_() >= limits) & (part > -math.inf)  # the threshold may be 0
    # Where no token reaches the threshold the limit is +inf, and nothing is above it.
    least = part.masked_fill(~is_top, math.inf).amin(-1, keepdim=True)
    part.masked_fill_(part > least, -math.inf)
    _write_rows(values, group, part)


def _temperatures(values: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Return the (n, 1) temperatures; dynatemp's lies between two limits, by the entropy of the unmasked tokens.

    Source: kalomaze 2023, https://github.com/ggml-org/llama.cpp/pull/4972.
    """
    plain = column([row.params.temperature for row in rows], np.float64, values.device)
    if all(row.params.dynatemp_range == 0.0 for row in rows):
        return plain.float()
    log_shares = _log_shares(values)
    num = (values > -math.inf).sum(-1, keepdim=True).double()
    entropy = _entropy(log_shares, log_shares.exp())
    normalised = (entropy / num.log().clamp_(min=1e-12)).clamp_(0.0, 1.0)
    widths = column([row.params.dynatemp_range for row in rows], np.float64, values.device)
    exponents = column([row.params.dynatemp_exponent for row in rows], np.float64, values.device)
    low = (plain - widths).clamp_(min=0.0)
    dynamic = low + (plain + widths - low) * normalised**exponents
    # The entropy of a single token is 0. A tiny temperature stands for 0, by which nothing can be divided.
    dynamic = torch.where(num > 1, dynamic, plain).clamp_(min=1e-5)
    return torch.where(widths > 0.0, dynamic, plain).float()


def _mirostat_limits(values: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Return the (n, 1) lowest logits to keep, so that the surprise of the text stays near ``mirostat_tau``.

    Version 1 estimates how many tokens to keep; version 2 keeps those whose surprise, in bits, is at most ``mu``.

    Source: Basu et al. 2020, https://arxiv.org/abs/2007.14966, algorithm 1; version 2 as llama.cpp has it.
    """
    limits = values.amax(-1, keepdim=True)  # the argmax is always kept
    first = [at for at, row in enumerate(rows) if row.params.mirostat == 1]
    if first:
        part, chosen = select_rows(values, rows, first)
        counts = _mirostat_counts(part, chosen)
        least = descending(part, max(counts)).gather(1, column([n - 1 for n in counts], np.int64, values.device))
        limits[upload_ids(first, values.device)] = least
    second = [at for at, row in enumerate(rows) if row.params.mirostat == 2]
    if second:
        part, chosen = select_rows(values, rows, second)
        mus = column([row.mu for row in chosen], np.float64, values.device)
        is_surprising = _log_shares(part) / -math.log(2) > mus
        index = upload_ids(second, values.device)
        limits[index] = torch.minimum(limits[index], part.masked_fill(is_surprising, math.inf).amin(-1, keepdim=True))
    return limits


def _mirostat_counts(values: torch.Tensor, rows: Rows) -> list[int]:
    """Return how many tokens to keep of each row, if Zipf's law for its most probable tokens holds for all."""
    size = values.shape[1]
    ordered = descending(values, min(MIROSTAT_COLUMNS, size)).double().cpu().numpy()
    counts = []
    for row, found in zip(rows, ordered, strict=True):
        found = found[np.isfinite(found)]
        ranks = np.arange(1, len(found), dtype=np.float64)
        steps, falls = np.log((ranks + 1) / ranks), found[:-1] - found[1:]
        exponent = float(steps @ falls) / float(steps @ steps) if len(ranks) else 0.0
        excess = exponent - 1.0
        try:
            count = (excess * 2.0**row.mu / (1.0 - float(size) ** -excess)) ** (1.0 / exponent)
        except (OverflowError, ZeroDivisionError):
            count = float(size)  # as flat as it can be
        counts.append(min(max(int(count), 1), size) if math.isfinite(count) else size)
    return counts


def _write_rows(values: torch.Tensor, group: Sequence[int], part: torch.Tensor) -> None:
    """Write back rows of ``select_rows``; do nothing if ``select_rows`` made no copy."""
    if len(group) < values.shape[0]:
        values[upload_ids(group, values.device)] = part


def _total(values: torch.Tensor) -> torch.Tensor:
    """Return (n, 1) float64 sums, which don't depend on the number of rows."""
    return values.cumsum(-1, dtype=torch.float64)[:, -1:]


def _log_shares(values: torch.Tensor) -> torch.Tensor:
    """Return (n, V) float64 log-probabilities; -inf stays."""
    relative = values.double() - values.amax(-1, keepdim=True)
    return relative - _total(relative.exp()).log()


def _entropy(log_shares: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Return the (n, 1) float64 entropy, in nats."""
    return -_total(torch.where(shares > 0.0, shares * log_shares, 0.0))


_CHAIN: tuple[tuple[Callable[[SamplingState], bool], Callable[[torch.Tensor, Rows], None]], ...] = (
    (lambda row: row.params.top_n_sigma > 0.0, _top_n_sigma),
    (lambda row: row.params.top_k > 0, _top_k),
    (lambda row: 0.0 < row.params.typical_p < 1.0, _typical_p),
    (lambda row: row.params.top_p < 1.0, _top_p),
    (lambda row: row.params.min_p > 0.0, _min_p),
    (lambda row: row.params.xtc_probability > 0.0 and row.params.xtc_threshold <= MAX_XTC_THRESHOLD, _xtc),
)
"""Which rows use a sampler, and the sampler."""
