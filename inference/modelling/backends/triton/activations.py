# mypy: disable-error-code="untyped-decorator, no-untyped-def, misc"
"""The activations of ``layers.mlp``: inside kernels, on float32 values, and the gated one as a kernel of its own."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def activate(values, KIND: tl.constexpr):
    """``KIND`` is a name of ``inference.modelling.specs.layers.ACTIVATIONS``."""
    if KIND == "silu":
        result = values / (1.0 + tl.exp(-values))
    elif KIND == "gelu":
        result = 0.5 * values * (1.0 + tl.erf(values * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        # 0.5 (1 + tanh(u)) = 1 / (1 + e^(-2u))
        inner = 0.7978845608028654 * (values + 0.044715 * values * values * values)
        result = values / (1.0 + tl.exp(-2.0 * inner))
    elif KIND == "relu":
        result = tl.maximum(values, 0.0)
    else:
        tl.static_assert(KIND == "relu2")
        positive = tl.maximum(values, 0.0)
        result = positive * positive
    return result


@triton.jit
def softplus(values):
    """log(1 + e^x) to the last digits also where e^x is small; x itself beyond 20, as torch has it."""
    grown = tl.exp(tl.minimum(values, 20.0))
    above = 1.0 + grown
    # Kahan's log1p: the rounding of 1 + e is undone by the quotient.
    difference = above - 1.0
    small = difference == 0.0
    exact = tl.where(small, grown, tl.log(above) * (grown / tl.where(small, 1.0, difference)))
    return tl.where(values > 20.0, values, exact)


@triton.jit
def _gate(values_ptr, out_ptr, values_row, WIDTH: tl.constexpr, TILE: tl.constexpr, KIND: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < WIDTH
    gate = tl.load(values_ptr + row * values_row + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(values_ptr + row * values_row + WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + columns, (activate(gate, KIND) * up).to(out_ptr.dtype.element_ty), mask=inside)


def gated_activation(values: torch.Tensor, activation: str) -> torch.Tensor:
    """(T, 2f) gate then up to (T, f) act(gate) · up, rounded once."""
    rows, width = values.shape[0], values.shape[1] // 2
    out = torch.empty(rows, width, dtype=values.dtype, device=values.device)
    tile = 1024
    _gate[(rows, triton.cdiv(width, tile))](
        values, out, values.stride(0), WIDTH=width, TILE=tile, KIND=activation, num_warps=4
    )
    return out
