"""Take the codes, scales and offsets out of GGUF blocks.

Letters: n blocks; d, m: a block's scale and offset; q: codes. A nibble plane is the low, then the high halves of
bytes. Source of the layouts: ``ggml-common.h`` and ``ggml-quants.c`` of https://github.com/ggml-org/ggml.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from inference.modelling.gguf.block_types import BlockType
from inference.modelling.layers.coded import Codes
from inference.modelling.quantisation import GGUF_FORMS

_Extracted = tuple[torch.Tensor, ...]
"""(n, values) uint8 codes, (n, groups) float32 scales, and perhaps offsets alike. With factors: whole numbers of
scales, perhaps those of offsets, then (n, 1 or 2) float32 what each of them is multiplied by."""
_NVFP4_NAN = 0x7F


def block_codes(blocks: torch.Tensor, kind: BlockType, rows: int) -> Codes:
    """Codes of rows, as the form of ``kind.form_name`` in ``GGUF_FORMS`` says, scales and offsets in float32.

    Args:
        blocks: (n, ``kind.num_bytes``) uint8, those of a row behind each other.
        kind: A type of ``CODE_TYPES``.
        rows: How many rows they are.
    """
    form = GGUF_FORMS[kind.form_name]
    codes, scales, *others = (values.reshape(rows, -1) for values in _EXTRACTIONS[kind.name](blocks))
    factors = others.pop().view(rows, -1, form.num_scales) if form.has_factors else None
    return Codes(codes, scales, others[0] if form.has_offset else None, form, factors=factors)


def half(blocks: torch.Tensor, begin: int) -> torch.Tensor:
    """(n, 1) float32 from the float16 at a byte of each block."""
    return blocks[:, begin : begin + 2].contiguous().view(torch.float16).float()


def single(blocks: torch.Tensor, begin: int) -> torch.Tensor:
    """(n, 1) float32 at a byte of each block."""
    return blocks[:, begin : begin + 4].contiguous().view(torch.float32)


def planes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """(n, c, bytes) to (n, c, 8/bits · bytes): all lowest fields of the bytes, then all second ones, and so on."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8).view(1, 1, -1, 1)
    return ((codes.unsqueeze(2) >> shifts) & ((1 << bits) - 1)).flatten(2)


def nibbles(codes: torch.Tensor) -> torch.Tensor:
    """(n, bytes) to (n, 2 · bytes): all low halves, then all high ones."""
    return planes(codes.unsqueeze(1), 4)[:, 0]


def bits(codes: torch.Tensor) -> torch.Tensor:
    """(n, bytes) to (n, 8 · bytes), the lowest bit of the first byte first."""
    return ((codes.unsqueeze(2) >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(1)


def _k_scales(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight scales and eight offsets of six bits, each (n, 8) uint8, from twelve bytes."""
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((first & 63, (third & 15) | ((first >> 6) << 4)), dim=1)
    offsets = torch.cat((second & 63, (third >> 4) | ((second >> 6) << 4)), dim=1)
    return scales, offsets


def _pairs(codes: torch.Tensor) -> torch.Tensor:
    """(n, bytes) to (n, 4 · bytes) fields of two bits, byte after byte, the lowest first."""
    return ((codes.unsqueeze(2) >> torch.arange(0, 8, 2, dtype=torch.uint8)) & 3).flatten(1)


def _pairs_of_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """(n, bytes) to (n, 2 · bytes) halves, byte after byte, the low one first."""
    return torch.stack((codes & 15, codes >> 4), dim=2).flatten(1)


def _q4_0(blocks: torch.Tensor) -> _Extracted:
    return nibbles(blocks[:, 2:]), half(blocks, 0)


def _q4_1(blocks: torch.Tensor) -> _Extracted:
    return nibbles(blocks[:, 4:]), half(blocks, 0), half(blocks, 2)


def _q5_0(blocks: torch.Tensor) -> _Extracted:
    return nibbles(blocks[:, 6:]) + (bits(blocks[:, 2:6]) << 4), half(blocks, 0)


def _q5_1(blocks: torch.Tensor) -> _Extracted:
    return nibbles(blocks[:, 8:]) + (bits(blocks[:, 4:8]) << 4), half(blocks, 0), half(blocks, 2)


def _q8_0(blocks: torch.Tensor) -> _Extracted:
    return blocks[:, 2:] ^ 128, half(blocks, 0)  # signed bytes plus 128


def _q2_k(blocks: torch.Tensor) -> _Extracted:
    """16 scales and offsets of four bits; codes of two bits in four planes of 32 for each half."""
    scales = blocks[:, :16]
    codes = planes(blocks[:, 16:80].reshape(-1, 2, 32), 2).flatten(1)
    factors = torch.cat((half(blocks, 80), -half(blocks, 82)), 1)
    return codes, (scales & 15).float(), (scales >> 4).float(), factors


def _q3_k(blocks: torch.Tensor) -> _Extracted:
    """Two bits of a code in planes of 32, the third one in a plane for each; 16 scales of six bits minus 32."""
    low = planes(blocks[:, 32:96].reshape(-1, 2, 32), 2).flatten(1)
    high = planes(blocks[:, :32].unsqueeze(1), 1).flatten(1)
    scales = nibbles(blocks[:, 96:104]) + (planes(blocks[:, None, 104:108], 2)[:, 0] << 4)
    return low + (high << 2), scales.float() - 32, half(blocks, 108)


def _k_affine(blocks: torch.Tensor, codes: torch.Tensor) -> _Extracted:
    """Q4_K and Q5_K: scales and offsets of eight sub-blocks of 32."""
    scales, offsets = _k_scales(blocks[:, 4:16])
    return codes, half(blocks, 0) * scales.float(), half(blocks, 2) * -offsets.float()


def _q4_k(blocks: torch.Tensor) -> _Extracted:
    return _k_affine(blocks, planes(blocks[:, 16:].reshape(-1, 4, 32), 4).flatten(1))


def _q5_k(blocks: torch.Tensor) -> _Extracted:
    low = planes(blocks[:, 48:].reshape(-1, 4, 32), 4).flatten(1)
    high = planes(blocks[:, None, 16:48], 1).flatten(1)  # plane k is the fifth bit of sub-block k
    return _k_affine(blocks, low + (high << 4))


def _q6_k(blocks: torch.Tensor) -> _Extracted:
    low = planes(blocks[:, :128].reshape(-1, 2, 64), 4).flatten(1)
    high = planes(blocks[:, 128:192].reshape(-1, 2, 32), 2).flatten(1)
    return low + (high << 4), half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()


def _iq4_nl(blocks: torch.Tensor) -> _Extracted:
    return nibbles(blocks[:, 2:]), half(blocks, 0)


def _iq4_xs(blocks: torch.Tensor) -> _Extracted:
    """Eight scales of six bits minus 32: two high bits each in two bytes, then four low bits each in four."""
    high = _pairs(blocks[:, 2:4])
    low = _pairs_of_nibbles(blocks[:, 4:8])
    codes = planes(blocks[:, 8:].reshape(-1, 8, 16), 4).flatten(1)
    return codes, half(blocks, 0) * ((low + (high << 4)).float() - 32)


def _mxfp4(blocks: torch.Tensor) -> _Extracted:
    """A shared exponent of eight bits (2^(e - 127)), then four-bit floats, of which the levels are twice the values."""
    scale = torch.ldexp(torch.tensor([[0.5]]).expand(len(blocks), 1), blocks[:, :1].to(torch.int32) - 127)
    return nibbles(blocks[:, 1:]), scale


def _nvfp4(blocks: torch.Tensor) -> _Extracted:
    """Four sub-blocks of 16 four-bit floats, each with a scale of eight bits: an E4M3 whose sign is not used."""
    exponent, mantissa = (blocks[:, :4] >> 3 & 15).int(), (blocks[:, :4] & 7).int()
    # Below the least exponent there is no leading one, as in any float; ldexp is exact.
    scale = torch.ldexp((mantissa + 8 * (exponent > 0)).float(), exponent.clamp(min=1) - 10)
    scale[blocks[:, :4] == _NVFP4_NAN] = 0
    return planes(blocks[:, 4:].reshape(-1, 4, 8), 4).flatten(1), scale / 2  # the levels are twice the floats


def _q4_0_v2(blocks: torch.Tensor) -> _Extracted:
    return nibbles(blocks[:, 4:]), single(blocks, 0)


def _q4_1_v2(blocks: torch.Tensor) -> _Extracted:
    return nibbles(blocks[:, 8:]), single(blocks, 0), single(blocks, 4)


def _q8_0_v1(blocks: torch.Tensor) -> _Extracted:
    return blocks[:, 4:] ^ 128, single(blocks, 0)


def _q4_0_v1(blocks: torch.Tensor) -> _Extracted:
    return _pairs_of_nibbles(blocks[:, 4:]), single(blocks, 0)


def _q4_1_v1(blocks: torch.Tensor) -> _Extracted:
    return _pairs_of_nibbles(blocks[:, 8:]), single(blocks, 0), single(blocks, 4)


def _q5_0_v1(blocks: torch.Tensor) -> _Extracted:
    return _pairs_of_nibbles(blocks[:, 6:]) + (bits(blocks[:, 2:6]) << 4), half(blocks, 0)


def _q5_1_v1(blocks: torch.Tensor) -> _Extracted:
    return _pairs_of_nibbles(blocks[:, 8:]) + (bits(blocks[:, 4:8]) << 4), half(blocks, 0), half(blocks, 2)


_EXTRACTIONS: dict[str, Callable[[torch.Tensor], _Extracted]] = {
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
    "NVFP4": _nvfp4,
    # Source of the older ones: ggml before https://github.com/ggml-org/llama.cpp/pull/1405 (1: neighbours share a byte)
    # and before https://github.com/ggml-org/llama.cpp/pull/1508 (2: factors are float32 where later ones are float16).
    "Q4_0 (ggjt 2)": _q4_0_v2,
    "Q4_1 (ggjt 2)": _q4_1_v2,
    "Q8_0 (before ggjt 3)": _q8_0_v1,
    "Q4_0 (ggjt 1)": _q4_0_v1,
    "Q4_1 (ggjt 1)": _q4_1_v1,
    "Q5_0 (ggjt 1)": _q5_0_v1,
    "Q5_1 (ggjt 1)": _q5_1_v1,
}

CODE_TYPES: tuple[str, ...] = tuple(_EXTRACTIONS)
"""Types whose codes can be computed with as they are."""
