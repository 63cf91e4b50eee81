"""Unpack codes of a few bits from words and bytes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional

PartTensors = Mapping[str, torch.Tensor]
"""The tensors of one weight by role, see ``EncodedTensor``."""
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The nibble that holds each of eight neighbouring outputs."""


def unpack_words(words: torch.Tensor, bits: int, count: int, *, loose: bool = False) -> torch.Tensor:
    """Codes from int32 words, low bits first.

    Args:
        words: (…, w) int32.
        bits: Of a code, 1 to 8.
        count: Codes in the last axis; the words may hold a few more.
        loose: Whether no code crosses words, so that the spare bits of each word are unused; else the words are one
            string of bits.

    Returns:
        (…, count) uint8.
    """
    mask = (1 << bits) - 1
    if 8 % bits == 0:  # no code crosses bytes
        fields = torch.arange(0, 8, bits, dtype=torch.uint8)
        # A copy has strides that a view in bytes takes; contiguous() keeps odd ones of axes of one entry.
        octets = words.clone(memory_format=torch.contiguous_format).view(torch.uint8).unsqueeze(-1)
        return (octets >> fields).bitwise_and_(mask).flatten(-2)[..., :count]
    if loose:
        per_word = 32 // bits
        shifts = torch.arange(0, per_word * bits, bits, dtype=torch.int32)
        # The shift of a negative word brings in copies of its sign, which the mask takes away.
        codes = (words.unsqueeze(-1) >> shifts).bitwise_and_(mask).to(torch.uint8)
        return codes.flatten(-2)[..., :count]
    octets = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    octets = functional.pad(octets, (0, -octets.shape[-1] % bits))
    octets = octets.view(*octets.shape[:-1], octets.shape[-1] // bits, bits)
    dtype = torch.int32 if bits < 4 else torch.int64
    eights = torch.zeros(octets.shape[:-1], dtype=dtype)  # codes, in as many bytes as a code has bits
    for place, octet in enumerate(octets.unbind(-1)):
        eights |= octet.to(dtype) << 8 * place
    shifts = torch.arange(0, 8 * bits, bits, dtype=dtype)
    return (eights.unsqueeze(-1) >> shifts).bitwise_and_(mask).to(torch.uint8).flatten(-2)[..., :count]


def unpack_awq(words: torch.Tensor) -> torch.Tensor:
    """Codes from AWQ's words of eight outputs.

    Args:
        words: (…, w) int32.

    Returns:
        (…, 8·w) uint8.
    """
    shifts = torch.tensor([4 * place for place in AWQ_PLACES], dtype=torch.int32)
    return (words.unsqueeze(-1) >> shifts).bitwise_and_(15).to(torch.uint8).flatten(-2)


def unpack_nibbles(pairs: torch.Tensor, *, high_first: bool = False) -> torch.Tensor:
    """Codes from bytes of two.

    Args:
        pairs: (…, n) uint8.
        high_first: Whether the high half is the first code.

    Returns:
        (…, 2·n) uint8.
    """
    low, high = pairs & 15, pairs >> 4
    return torch.stack((high, low) if high_first else (low, high), dim=-1).flatten(-2)


def unpack_planes(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes from words that each hold rows of several equal parts of a matrix, the first part in the highest bits.

    Args:
        words: (r, c) uint8, or int32 for 3 bits.
        bits: Of a code.

    Returns:
        (p·r, c) uint8, p codes in a word: 32 // 3 for 3 bits, else 8 // bits.
    """
    planes, mask = _num_planes(bits), (1 << bits) - 1
    return torch.cat([((words >> (bits * place)) & mask).to(torch.uint8) for place in reversed(range(planes))])


def unpack_plane_rows(words: torch.Tensor, bits: int, rows: torch.Tensor) -> torch.Tensor:
    """Rows of ``unpack_planes`` alone.

    Args:
        words: (r, c) uint8, or int32 for 3 bits.
        bits: Of a code.
        rows: (n,) int64, each below p·r.

    Returns:
        (n, c) uint8.
    """
    places, within = rows // words.shape[0], rows % words.shape[0]
    shifts = ((_num_planes(bits) - 1 - places) * bits).to(words.dtype).unsqueeze(-1)
    return ((words[within] >> shifts) & ((1 << bits) - 1)).to(torch.uint8)


def _num_planes(bits: int) -> int:
    """Codes in a word: three bits lie in int32."""
    return 10 if bits == 3 else 8 // bits
