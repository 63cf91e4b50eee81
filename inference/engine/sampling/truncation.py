"""Mask the tokens that ``min_p``, ``top_k`` and ``top_p`` leave out.

A token with the same logit as the last one that is kept is kept too. So the choice never depends on how a sort orders
equal values, which differs between devices and batch sizes.

Shape letters: n rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from inference.engine.device import upload_ids
from inference.engine.sampling.row_ops import column, descending, mask_below, select_rows

TOPK_LIMIT = 1024
"""Largest ``top_k`` that is found by a top-k selection; a larger one sorts all tokens."""

NUCLEUS_COLUMNS = 2048
"""Number of most probable tokens in which the end of a nucleus (``top_p``) is searched first on the CPU. A device
sorts all tokens, because the host would have to wait for the result of the search."""

Limits = Sequence[tuple[int, float]]
"""(top_k, top_p) of each row; 0 and 1.0 keep all tokens."""


def mask_min_p(values: torch.Tensor, maxima: torch.Tensor | float, min_ps: Sequence[float]) -> None:
    """Mask the tokens of less than ``min_p`` times the highest probability.

    Args:
        values: (n, V) logits, changed in place.
        maxima: (n, 1) maximum of each row.

    Source: Nguyen et al. 2024, https://arxiv.org/abs/2407.01082.
    """
    limits = [math.log(min_p) if min_p > 0.0 else -math.inf for min_p in min_ps]
    mask_below(values, column(limits, np.float32, values.device) + maxima)


def truncate(scaled: torch.Tensor, limits: Limits) -> None:
    """Mask all but the ``top_k`` most probable tokens, then the tokens beyond ``top_p`` of the remaining probability.

    The method for a row depends on the row alone, so the result doesn't depend on the batch.

    Args:
        scaled: (n, V) logits of at most about 0, so that ``exp`` is finite; changed in place.

    Source: for top_p, Holtzman et al. 2019, https://arxiv.org/abs/1904.09751.
    """
    vocab_size = scaled.shape[1]
    selected: list[int] = []
    searched: list[int] = []
    sorted_: list[int] = []
    for at, (top_k, top_p) in enumerate(limits):
        if 0 < top_k < vocab_size:
            (selected if top_k <= TOPK_LIMIT else sorted_).append(at)
        elif top_p < 1.0:
            is_searched = scaled.device.type == "cpu" and vocab_size > NUCLEUS_COLUMNS
            (searched if is_searched else sorted_).append(at)
    if not (selected or searched or sorted_):
        return
    thresholds = torch.full((len(limits), 1), -math.inf, device=scaled.device)
    if searched:
        threshold, is_found = _nucleus_threshold(*select_rows(scaled, limits, searched))
        thresholds[upload_ids(searched, scaled.device)] = threshold
        sorted_ += [at for at, found in zip(searched, is_found.tolist(), strict=True) if not found]
    most = max((limits[at][0] for at in selected), default=0)
    for group, num_columns in ((selected, most), (sorted_, vocab_size)):
        if group:
            threshold = _threshold(*select_rows(scaled, limits, group), num_columns)
            thresholds[upload_ids(group, scaled.device)] = threshold
    mask_below(scaled, thresholds)


def _nucleus_threshold(scaled: torch.Tensor, limits: Limits) -> tuple[torch.Tensor, torch.Tensor]:
    """Search the last value that ``top_p`` keeps in the ``NUCLEUS_COLUMNS`` highest, which takes a third of a sort.

    Returns:
        (n, 1) values, and (n,) whether the value was found.
    """
    ordered = descending(scaled, NUCLEUS_COLUMNS)
    # The last cumulated value and not a sum, whose order of additions may depend on the number of rows.
    total = scaled.exp().cumsum(-1, dtype=torch.float64)[:, -1:]
    shares = column([top_p for _, top_p in limits], np.float64, scaled.device)
    crossing = torch.searchsorted(ordered.exp().cumsum(-1, dtype=torch.float64), shares * total)
    return ordered.gather(1, crossing.clamp(max=NUCLEUS_COLUMNS - 1)), (crossing < NUCLEUS_COLUMNS).squeeze(1)


def _threshold(scaled: torch.Tensor, limits: Limits, num_columns: int) -> torch.Tensor:
    """Return the (n, 1) last value of each row that ``top_k`` and ``top_p`` keep.

    Args:
        num_columns: Number of highest values to read: V, or at least each row's ``top_k`` (none is 0).
    """
    vocab_size = scaled.shape[1]
    ordered = descending(scaled, num_columns)
    last = column([min(top_k or vocab_size, vocab_size) - 1 for top_k, _ in limits], np.int64, scaled.device)
    threshold = ordered.gather(1, last)
    if all(top_p == 1.0 for _, top_p in limits):
        return threshold
    cumulated = ordered.exp().cumsum(-1, dtype=torch.float64)
    # Tokens equal to the k-th count as well, also those after the columns.
    equals = torch.count_nonzero(scaled >= threshold, dim=-1).unsqueeze(1) - (last + 1)
    total = cumulated.gather(1, last) + equals * threshold.double().exp()
    shares = column([top_p for _, top_p in limits], np.float64, scaled.device)
    # The token that crosses the share is kept.
    crossing = torch.searchsorted(cumulated, shares * total)
    return torch.where(shares < 1.0, ordered.gather(1, torch.minimum(crossing, last)), threshold)
