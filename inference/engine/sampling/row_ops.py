"""Operations on rows and entries of logits that the samplers share.

Shape letters: n rows, V vocabulary, e entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from inference.engine.device import upload, upload_ids

RowT = TypeVar("RowT")

CPU_SLICE = 1 << 19
"""Maximum logits to draw from at once on the CPU, so that temporaries stay in its caches (seven times as fast for 32
rows of 128,256)."""

MAX_TOPK_COLUMNS = 64
"""Largest count for which torch's topk is faster on the CPU than numpy's partition."""


def column(values: Sequence[float], dtype: npt.DTypeLike, device: torch.device) -> torch.Tensor:
    """Return an (n, 1) tensor on the device."""
    return upload(np.array(values, dtype=dtype).reshape(-1, 1), device)


def select_rows(
    values: torch.Tensor, rows: Sequence[RowT], group: Sequence[int]
) -> tuple[torch.Tensor, Sequence[RowT]]:
    """Return the rows of ``group`` of both; no copy if they are all rows."""
    if len(group) == len(rows):
        return values, rows
    return values[upload_ids(group, values.device)], [rows[at] for at in group]


def entries(
    chosen: Sequence[tuple[int, npt.NDArray[np.int64]]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the index of entries of logits: (e,) rows and (e,) columns, from pairs of a row and its token ids."""
    rows = np.repeat(np.array([at for at, _ in chosen], dtype=np.int64), [len(ids) for _, ids in chosen])
    columns = np.concatenate([ids for _, ids in chosen])
    return upload(rows, device), upload(columns, device)


def mask_below(values: torch.Tensor, limits: torch.Tensor) -> None:
    """Set values below their row's limit, (n, 1), to -inf, in place."""
    values.masked_fill_(values < limits, -math.inf)


def descending(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return the (n, count) highest values of each row, in descending order."""
    size = values.shape[1]
    if values.device.type == "cpu" and count > MAX_TOPK_COLUMNS:
        # numpy selects and sorts with vector instructions, much faster than torch.
        numbers = values.numpy()
        if count < size:
            numbers = np.partition(numbers, size - count, axis=-1)[:, size - count :]
        return torch.from_numpy(np.sort(numbers, axis=-1)[:, ::-1].copy())
    if count < size:
        return values.topk(count, dim=-1).values
    return values.sort(dim=-1, descending=True).values


def draw_in_slices(
    draw: Callable[[torch.Tensor, Sequence[RowT]], torch.Tensor], logits: torch.Tensor, rows: Sequence[RowT]
) -> torch.Tensor:
    """Return the (n,) tokens that ``draw`` gives for slices of the rows."""
    count = max(1, CPU_SLICE // logits.shape[1]) if logits.device.type == "cpu" else len(rows)
    starts = range(0, len(rows), count)
    return torch.cat([draw(logits[at : at + count], rows[at : at + count]) for at in starts])


def draw_by_numbers(scaled: torch.Tensor, numbers: npt.NDArray[np.float64]) -> torch.Tensor:
    """Return the (n,) int64 tokens at which the cumulated probabilities, in the order of ids, exceed the numbers.

    Args:
        scaled: (n, V) logits relative to the row's maximum, after temperature; overwritten.
        numbers: (n,) in [0, 1).
    """
    cumulated = scaled.exp_().cumsum(-1, dtype=torch.float64)
    total = cumulated[:, -1:]
    target = upload(numbers, scaled.device).unsqueeze(1) * total
    # A number is below 1, but the product may round up to the total, beyond the last token.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulated, target, right=True).squeeze(1).clamp_(max=scaled.shape[1] - 1)
