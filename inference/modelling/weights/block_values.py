"""Compute the values of GGUF blocks in float32: the reference for every faster form.

Letters: n blocks; d, m: a block's scale and offset; q: codes. A nibble plane is the low, then the high halves of
bytes. Source of the layouts: ``ggml-common.h`` and ``ggml-quants.c`` of https://github.com/ggml-org/ggml.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from inference.errors import UnsupportedFormat
from inference.modelling.gguf.block_types import BlockType
from inference.modelling.weights import code_book_values
from inference.modelling.weights.block_codes import CODE_TYPES, bits, block_codes, half, planes

PLAIN_DTYPES: dict[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
}
"""Types that hold numbers as they are."""


def dequantise(blocks: torch.Tensor, kind: BlockType) -> torch.Tensor:
    """Values of blocks.

    Args:
        blocks: (n, ``kind.num_bytes``) uint8.
        kind: Their type.

    Returns:
        (n, ``kind.values``) float32.

    Raises:
        UnsupportedFormat: There is no formula for the type.
    """
    plain = PLAIN_DTYPES.get(kind.name)
    if plain is not None:
        return blocks.contiguous().view(plain).float()
    if kind.name in CODE_TYPES:
        return block_codes(blocks, kind, len(blocks)).dense(torch.float32)
    formula = _FORMULAS.get(kind.name)
    if formula is None:
        raise UnsupportedFormat(
            f"tensors of type {kind.name} can't be read; types that can are {', '.join(readable_types())}.",
            param=kind.name,
        )
    return formula(blocks)


def readable_types() -> tuple[str, ...]:
    """Names of the types that ``dequantise`` takes."""
    return (*PLAIN_DTYPES, *CODE_TYPES, *_FORMULAS)


def _q1_0(blocks: torch.Tensor) -> torch.Tensor:
    """A bit is the sign: 1 is positive."""
    return half(blocks, 0) * (2 * bits(blocks[:, 2:]).float() - 1)


def _tq2_0(blocks: torch.Tensor) -> torch.Tensor:
    codes = planes(blocks[:, :64].reshape(-1, 2, 32), 2).flatten(1)
    return half(blocks, 64) * (codes.float() - 1)


def _tq1_0(blocks: torch.Tensor) -> torch.Tensor:
    """Five digits of base 3 in a byte, as a fraction of 256: multiplying by 3^k brings digit k to the top."""

    def digits(codes: torch.Tensor, count: int) -> torch.Tensor:
        powers = torch.tensor([3**power for power in range(count)], dtype=torch.int32).view(1, -1, 1)
        rotated = (codes.unsqueeze(1).to(torch.int32) * powers) & 255
        return ((rotated * 3) >> 8).flatten(1)

    codes = torch.cat((digits(blocks[:, :32], 5), digits(blocks[:, 32:48], 5), digits(blocks[:, 48:52], 4)), dim=1)
    return half(blocks, 52) * (codes.float() - 1)


_FORMULAS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "IQ1_S": code_book_values.iq1_s,
    "IQ1_M": code_book_values.iq1_m,
    "IQ2_XXS": code_book_values.iq2_xxs,
    "IQ2_XS": code_book_values.iq2_xs,
    "IQ2_S": code_book_values.iq2_s,
    "IQ3_XXS": code_book_values.iq3_xxs,
    "IQ3_S": code_book_values.iq3_s,
    "Q1_0": _q1_0,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
}
