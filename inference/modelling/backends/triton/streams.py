# mypy: disable-error-code="untyped-decorator, no-untyped-def, misc"
"""Sinkhorn and Knopp's normalisation of the matrices that mix residual streams.

Shape letters: T rows, P streams.

Reference: ``layers.sinkhorn_streams.SinkhornConnection.balance``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _balance(logits_ptr, out_ptr, iterations, eps, COUNT: tl.constexpr, PADDED: tl.constexpr):
    rows, columns = tl.arange(0, PADDED)[:, None], tl.arange(0, PADDED)[None, :]
    inside = (rows < COUNT) & (columns < COUNT)
    place = tl.program_id(0).to(tl.int64) * COUNT * COUNT + rows * COUNT + columns
    values = tl.load(logits_ptr + place, mask=inside, other=-float("inf"))
    # Sums of what lies outside are 0: it is divided by 1 there.
    row_max = tl.where(tl.arange(0, PADDED) < COUNT, tl.max(values, 1), 0.0)
    values = tl.exp(values - row_max[:, None])
    values = tl.where(inside, values / tl.where(rows < COUNT, tl.sum(values, 1)[:, None], 1.0) + eps, 0.0)
    values = values / tl.where(columns < COUNT, tl.sum(values, 0)[None, :] + eps, 1.0)
    for _ in range(1, iterations):
        values = values / tl.where(rows < COUNT, tl.sum(values, 1)[:, None] + eps, 1.0)
        values = values / tl.where(columns < COUNT, tl.sum(values, 0)[None, :] + eps, 1.0)
    tl.store(out_ptr + place, values, mask=inside)


def balance_streams(logits: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    """Float32 (T, P, P) to matrices whose columns, and nearly whose rows, sum to 1."""
    logits = logits.contiguous()
    out = torch.empty_like(logits)
    count = logits.shape[1]
    padded = triton.next_power_of_2(count)
    _balance[(logits.shape[0],)](logits, out, iterations, eps, COUNT=count, PADDED=padded, num_warps=1)
    return out
