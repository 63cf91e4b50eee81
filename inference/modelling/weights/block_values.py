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

IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The 16 non-linear levels of IQ4_NL and IQ4_XS."""
FP4_LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The values of a four-bit float with two exponent bits (E2M1), by its code; minus zero is zero."""

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
    formula = _FORMULAS.get(kind.name)
    if formula is None:
        raise UnsupportedFormat(
            f"tensors of type {kind.name} can't be read; types that can are {', '.join(readable_types())}.",
            param=kind.name,
        )
    return formula(blocks)


def readable_types() -> tuple[str, ...]:
    """Names of the types that ``dequantise`` takes."""
    return (*PLAIN_DTYPES, *_FORMULAS)


def _half(blocks: torch.Tensor, begin: int) -> torch.Tensor:
    """(n, 1) float32 from the float16 at a byte of each block."""
    return blocks[:, begin : begin + 2].contiguous().view(torch.float16).float()


def _planes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """(n, c, bytes) to (n, c, 8/bits · bytes): all lowest fields of the bytes, then all second ones, and so on."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8).view(1, 1, -1, 1)
    return ((codes.unsqueeze(2) >> shifts) & ((1 << bits) - 1)).flatten(2)


def _nibbles(codes: torch.Tensor) -> torch.Tensor:
    """(n, bytes) to (n, 2 · bytes): all low halves, then all high ones."""
    return _planes(codes.unsqueeze(1), 4)[:, 0]


def _bits(codes: torch.Tensor) -> torch.Tensor:
    """(n, bytes) to (n, 8 · bytes), the lowest bit of the first byte first."""
    return ((codes.unsqueeze(2) >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(1)


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).float() - 8)


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).float() + _half(blocks, 2)


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    codes = _nibbles(blocks[:, 6:]) + (_bits(blocks[:, 2:6]) << 4)
    return _half(blocks, 0) * (codes.float() - 16)


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    codes = _nibbles(blocks[:, 8:]) + (_bits(blocks[:, 4:8]) << 4)
    return _half(blocks, 0) * codes.float() + _half(blocks, 2)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * blocks[:, 2:].view(torch.int8).float()


def _q2_k(blocks: torch.Tensor) -> torch.Tensor:
    """16 scales and offsets of four bits; codes of two bits in four planes of 32 for each half."""
    scales = blocks[:, :16]
    scale = _half(blocks, 80) * (scales & 15).float()
    offset = _half(blocks, 82) * (scales >> 4).float()
    codes = _planes(blocks[:, 16:80].reshape(-1, 2, 32), 2).reshape(-1, 16, 16).float()
    return (scale.unsqueeze(2) * codes - offset.unsqueeze(2)).flatten(1)


def _q3_k(blocks: torch.Tensor) -> torch.Tensor:
    """The third bit of a code is stored inverted, in a plane per 32 values; 16 scales of six bits minus 32."""
    low = _planes(blocks[:, 32:96].reshape(-1, 2, 32), 2).flatten(1)
    high = _planes(blocks[:, :32].unsqueeze(1), 1).flatten(1)
    scales = _nibbles(blocks[:, 96:104]) + (_planes(blocks[:, None, 104:108], 2)[:, 0] << 4)
    scale = _half(blocks, 108) * (scales.float() - 32)
    codes = (low.float() - 4 + 4 * high.float()).view(-1, 16, 16)
    return (scale.unsqueeze(2) * codes).flatten(1)


def _k_scales(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight scales and eight offsets of six bits, each (n, 8) uint8, from twelve bytes."""
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((first & 63, (third & 15) | ((first >> 6) << 4)), dim=1)
    offsets = torch.cat((second & 63, (third >> 4) | ((second >> 6) << 4)), dim=1)
    return scales, offsets


def _k_affine(blocks: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Q4_K and Q5_K: (n, 256) codes by the scales and offsets of eight sub-blocks of 32."""
    scales, offsets = _k_scales(blocks[:, 4:16])
    scale, offset = _half(blocks, 0) * scales.float(), _half(blocks, 2) * offsets.float()
    return (scale.unsqueeze(2) * codes.view(-1, 8, 32).float() - offset.unsqueeze(2)).flatten(1)


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    return _k_affine(blocks, _planes(blocks[:, 16:].reshape(-1, 4, 32), 4).flatten(1))


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    low = _planes(blocks[:, 48:].reshape(-1, 4, 32), 4).flatten(1)
    high = _planes(blocks[:, None, 16:48], 1).flatten(1)  # plane k is the fifth bit of sub-block k
    return _k_affine(blocks, low + (high << 4))


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    low = _planes(blocks[:, :128].reshape(-1, 2, 64), 4).flatten(1)
    high = _planes(blocks[:, 128:192].reshape(-1, 2, 32), 2).flatten(1)
    scale = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    codes = (low + (high << 4)).float() - 32
    return (scale.unsqueeze(2) * codes.view(-1, 16, 16)).flatten(1)


def _levels(codes: torch.Tensor, levels: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(levels, dtype=torch.float32)[codes.long()]


def _iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * _levels(_nibbles(blocks[:, 2:]), IQ4_LEVELS)


def _iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    """Eight scales of six bits minus 32: two high bits each in two bytes, then four low bits each in four."""
    high = _pairs(blocks[:, 2:4])
    low = _pairs_of_nibbles(blocks[:, 4:8])
    scale = _half(blocks, 0) * ((low + (high << 4)).float() - 32)
    codes = _planes(blocks[:, 8:].reshape(-1, 8, 16), 4)
    return (scale.unsqueeze(2) * _levels(codes, IQ4_LEVELS)).flatten(1)


def _pairs(codes: torch.Tensor) -> torch.Tensor:
    """(n, bytes) to (n, 4 · bytes) fields of two bits, byte after byte, the lowest first."""
    return ((codes.unsqueeze(2) >> torch.arange(0, 8, 2, dtype=torch.uint8)) & 3).flatten(1)


def _pairs_of_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """(n, bytes) to (n, 2 · bytes) halves, byte after byte, the low one first."""
    return torch.stack((codes & 15, codes >> 4), dim=2).flatten(1)


def _mxfp4(blocks: torch.Tensor) -> torch.Tensor:
    """A shared exponent of eight bits (2^(e - 127)), then four-bit floats."""
    exponent = blocks[:, :1].to(torch.int32) - 127
    # Exact for the smallest exponents too, where the scale itself is below float32's normal numbers.
    return torch.ldexp(_levels(_nibbles(blocks[:, 1:]), FP4_LEVELS), exponent)


def _tq2_0(blocks: torch.Tensor) -> torch.Tensor:
    codes = _planes(blocks[:, :64].reshape(-1, 2, 32), 2).flatten(1)
    return _half(blocks, 64) * (codes.float() - 1)


def _tq1_0(blocks: torch.Tensor) -> torch.Tensor:
    """Five digits of base 3 in a byte, as a fraction of 256: multiplying by 3^k brings digit k to the top."""

    def digits(codes: torch.Tensor, count: int) -> torch.Tensor:
        powers = torch.tensor([3**power for power in range(count)], dtype=torch.int32).view(1, -1, 1)
        rotated = (codes.unsqueeze(1).to(torch.int32) * powers) & 255
        return ((rotated * 3) >> 8).flatten(1)

    codes = torch.cat((digits(blocks[:, :32], 5), digits(blocks[:, 32:48], 5), digits(blocks[:, 48:52], 4)), dim=1)
    return _half(blocks, 52) * (codes.float() - 1)


_FORMULAS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "IQ1_S": code_book_values.iq1_s,
    "IQ1_M": code_book_values.iq1_m,
    "IQ2_XXS": code_book_values.iq2_xxs,
    "IQ2_XS": code_book_values.iq2_xs,
    "IQ2_S": code_book_values.iq2_s,
    "IQ3_XXS": code_book_values.iq3_xxs,
    "IQ3_S": code_book_values.iq3_s,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
}
