"""Which parameters are quantised, and how many bytes that leaves. Names and shapes only, no torch.

``quant`` names what the matrices of the layers become; embedding and head become int8 whatever it says, since a step
reads the head once for all layers' sake, and its rounding goes straight into the logits. Everything that is small or
that a recurrence or a choice multiplies stays as it is: routers, norms, convolutions, A, D, dt, gates of few rows.

int8: 255 symmetric steps, a bfloat16 scale for each output and 128 inputs: 8.125 bits per weight. int4: 16 levels, a
scale for each output and 32 inputs: 4.5 bits. See docs/decisions/0010-quantised-products.md and
docs/decisions/0053-codes-by-error.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from inference.modelling.layer_specs import DTYPE_BYTES, Shape
from inference.modelling.spec import ModelSpec

Quant = Literal["none", "int8", "int4"]
Kind = Literal["int8", "int4"]

QUANTS: tuple[Quant, ...] = ("none", "int8", "int4")
GROUP_SIZES: dict[Kind, int] = {"int8": 128, "int4": 32}
INT4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the sixteen codes of int4 stand for: those of GGUF's IQ4_NL (ggml, ggml-common.h). More of them lie near 0, as
more weights do; the ends differ, so that a scale's sign can give the farther one to the greatest magnitude."""
REVISION = 2
"""Of the arithmetic of quantised products: kept states of another one are not used again."""
SMALLEST_SIDE = 32
"""A matrix with fewer rows or columns stays as it is: it saves nothing, and often decides something."""

_HEADS = ("embed_tokens.weight", "lm_head.weight")
_EXPERTS = ("gate_up_proj", "up_proj", "down_proj")
_KEPT = ("router", "conv1d", "dt_proj", "lambda_proj", "shared_expert_gate", "k_b_proj", "v_b_proj")
"""Modules whose matrices stay: choices, time scales, and MLA's expansions, which are used from both sides."""


def quantised_kind(name: str, shape: Sequence[int], quant: Quant) -> Kind | None:
    """What a parameter becomes; None: it stays.

    Args:
        name: Full parameter name.
        shape: Its shape.
        quant: What was asked for.
    """
    if quant == "none" or len(shape) not in (2, 3) or min(shape[-2:]) < SMALLEST_SIDE:
        return None
    if name in _HEADS:
        return "int8"
    *_, module, leaf = name.split(".")
    if len(shape) == 3:
        return quant if module == "experts" and leaf in _EXPERTS else None
    return quant if leaf == "weight" and module.endswith("_proj") and module not in _KEPT else None


def quantised_bytes(shape: Sequence[int], kind: Kind) -> int:
    """Bytes of values and scales, without what fills the last block of outputs (native) or inputs (on a device)."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    bits = 8 if kind == "int8" else 4
    return rows * (columns * bits // 8 + 2 * -(-columns // GROUP_SIZES[kind]))


def weights_bytes(spec: ModelSpec, dtype: str, quant: Quant) -> int:
    """Bytes of all weights of a network in memory."""
    return sum(_bytes(name, shape, dtype, quant) for name, shape in spec.parameter_shapes().items())


def _bytes(name: str, shape: Shape, dtype: str, quant: Quant) -> int:
    kind = quantised_kind(name, shape, quant)
    return math.prod(shape) * DTYPE_BYTES[dtype] if kind is None else quantised_bytes(shape, kind)
