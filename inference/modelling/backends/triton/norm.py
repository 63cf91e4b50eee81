# mypy: disable-error-code="untyped-decorator, no-untyped-def, misc"
"""Residual addition and norm in one pass over the rows; the gated norm of the Mamba layers.

Shape letters: T rows, h width of a row, I inner width of a Mamba layer.

Reference: ``layers.norm.Norm``, ``layers.recurrent.GatedNorm``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference.modelling.specs.parts import NormSpec


@triton.jit
def _add_norm(
    hidden_ptr, mixed_ptr, weight_ptr, bias_ptr, out_ptr, multiplier, eps, offset, hidden_row, mixed_row,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, HAS_MIXED: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, PADDED)
    inside = columns < WIDTH
    values = tl.load(hidden_ptr + row * hidden_row + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_MIXED:
        values += multiplier * tl.load(mixed_ptr + row * mixed_row + columns, mask=inside, other=0.0).to(tl.float32)
        # The norm sees the stream as it is stored.
        stored = values.to(hidden_ptr.dtype.element_ty)
        tl.store(hidden_ptr + row * hidden_row + columns, stored, mask=inside)
        values = stored.to(tl.float32)
    if CENTRED:
        values = tl.where(inside, values - tl.sum(values, 0) / WIDTH, 0.0)
    values = values * (1.0 / tl.sqrt_rn(tl.sum(values * values, 0) / WIDTH + eps))
    if HAS_WEIGHT:
        values *= tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32) + offset
    if HAS_BIAS:
        values += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + columns, values.to(out_ptr.dtype.element_ty), mask=inside)


def add_norm(
    hidden: torch.Tensor,
    mixed: torch.Tensor | None,
    multiplier: float,
    spec: NormSpec,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """The norm of the stream, after an addition to it.

    Args:
        hidden: (…, h), rows evenly spaced; overwritten by hidden + multiplier · mixed.
        mixed: (T, h) a mixer's output, ``hidden`` then being (T, h); None: nothing is added.
        multiplier: Of ``mixed``.
        spec: Of the norm.
        weight, bias: (h,) its parameters; None: none.

    Returns:
        The norm of the sum, shaped as ``hidden`` and in its dtype.
    """
    width = hidden.shape[-1]
    # With an addition, hidden has two axes, so this is a view and the sum reaches the stream itself.
    rows = hidden if mixed is not None else hidden.reshape(-1, width)
    assert rows.dim() == 2 and rows.stride(1) == 1
    out = torch.empty(rows.shape, dtype=hidden.dtype, device=hidden.device)
    added = rows if mixed is None else mixed
    padded = triton.next_power_of_2(width)
    _add_norm[(rows.shape[0],)](
        rows, added, rows if weight is None else weight, rows if bias is None else bias, out,
        multiplier, spec.eps, spec.offset, rows.stride(0), added.stride(0),
        WIDTH=width, PADDED=padded, HAS_MIXED=mixed is not None, HAS_WEIGHT=weight is not None,
        HAS_BIAS=bias is not None, CENTRED=spec.kind == "layer", num_warps=_warps(padded),
    )  # fmt: skip
    return out.view(hidden.shape)


@triton.jit
def _gated_norm(
    values_ptr, gate_ptr, weight_ptr, out_ptr, eps, offset, gate_row,
    WIDTH: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, HAS_NORM: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, NORM_FIRST: tl.constexpr,
):  # fmt: skip
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, PADDED)
    inside = columns < GROUP
    columns += group * GROUP
    values = tl.load(values_ptr + row * WIDTH + columns, mask=inside, other=0.0)
    gate = tl.load(gate_ptr + row * gate_row + columns, mask=inside, other=0.0).to(tl.float32)
    factor = gate / (1.0 + tl.exp(-gate))
    if not NORM_FIRST:
        values *= factor
    if HAS_NORM:
        values = values * (1.0 / tl.sqrt_rn(tl.sum(values * values, 0) / GROUP + eps))
        if HAS_WEIGHT:
            values *= tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32) + offset
    if NORM_FIRST:
        values *= factor
    tl.store(out_ptr + row * WIDTH + columns, values.to(out_ptr.dtype.element_ty), mask=inside)


def gated_norm(
    values: torch.Tensor,
    gate: torch.Tensor,
    spec: NormSpec | None,
    weight: torch.Tensor | None,
    *,
    group_size: int,
    norm_before_gate: bool,
    dtype: torch.dtype,
) -> torch.Tensor:
    """norm(y · silu(gate)) · w or norm(y) · w · silu(gate), over groups of the last axis.

    Args:
        values: (T, I) float32, contiguous.
        gate: (T, I), unit stride in the last axis.
        spec: Of the RMS norm; None: the gate alone.
        weight: (I,) or None.
        group_size: Divides I.
        norm_before_gate: The second form.
        dtype: Of the result.

    Returns:
        (T, I).
    """
    rows, width = values.shape
    out = torch.empty(rows, width, dtype=dtype, device=values.device)
    padded = triton.next_power_of_2(group_size)
    _gated_norm[(rows, width // group_size)](
        values, gate, values if weight is None else weight, out,
        0.0 if spec is None else spec.eps, 0.0 if spec is None else spec.offset, gate.stride(0),
        WIDTH=width, GROUP=group_size, PADDED=padded, HAS_NORM=spec is not None, HAS_WEIGHT=weight is not None,
        NORM_FIRST=norm_before_gate and spec is not None, num_warps=_warps(padded),
    )  # fmt: skip
    return out


def _warps(padded: int) -> int:
    """Eight values per thread, within what a block may have."""
    return max(1, min(16, padded // 256))
