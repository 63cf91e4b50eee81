"""Compute the values of GGUF's IQ1, IQ2 and IQ3 blocks in float32, by their code books.

A code names a point of eight or four values in the book of its type; signs and scales are stored beside the codes.
Letters: n blocks; d: a block's scale. Source of the layouts: ``ggml-common.h`` and ``ggml-quants.c`` of
https://github.com/ggml-org/ggml.
"""

from __future__ import annotations

import torch

from inference.modelling.weights.code_books import code_book

_IQ1_SHIFT = 0.125
"""What IQ1's points are moved by, up or down."""


def _half(blocks: torch.Tensor, begin: int) -> torch.Tensor:
    """(n, 1) float32 from the float16 at a byte of each block."""
    return blocks[:, begin : begin + 2].contiguous().view(torch.float16).float()


def _numbers(blocks: torch.Tensor, size: int) -> torch.Tensor:
    """(n, bytes) to (n, bytes / size) int64: little-endian numbers of so many bytes."""
    parts = blocks.reshape(len(blocks), -1, size).long()
    return (parts << torch.arange(0, 8 * size, 8)).sum(2)


def _fields(numbers: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """(n, m) to (n, m · count): fields of so many bits, the lowest first."""
    found = (numbers.long().unsqueeze(2) >> torch.arange(0, bits * count, bits)) & ((1 << bits) - 1)
    return found.flatten(1)


def _signs(bits: torch.Tensor) -> torch.Tensor:
    """(n, m) bytes to (n, m, 8): -1 where a bit is set, else 1."""
    return 1.0 - 2.0 * _fields(bits, 1, 8).view(*bits.shape, 8).float()


def _even_signs(codes: torch.Tensor) -> torch.Tensor:
    """(n, m) codes of seven bits to (n, m, 8): the eighth sign makes the number of negative ones even."""
    odd = _fields(codes, 1, 7).view(*codes.shape, 7).sum(2) & 1
    return _signs(codes | (odd << 7))


def _signed(scale: torch.Tensor, points: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    """(n, 256): scales (n, s), each of 256 / s values; the points' values and their signs in order."""
    values = scale.unsqueeze(2) * points.reshape(len(scale), scale.shape[1], -1)
    return (values * signs.reshape(values.shape)).flatten(1)


def iq2_xxs(blocks: torch.Tensor) -> torch.Tensor:
    """Per 32 values: four codes of eight bits, four signs of seven bits, a scale of four."""
    words = blocks[:, 2:].reshape(-1, 8, 8)
    codes = words[:, :, :4].reshape(-1, 32).long()
    rest = _numbers(words[:, :, 4:].reshape(-1, 32), 4)
    scale = _half(blocks, 0) * (0.5 + (rest >> 28).float()) * 0.25
    return _signed(scale, code_book("IQ2_XXS")[codes], _even_signs(_fields(rest, 7, 4)))


def iq2_xs(blocks: torch.Tensor) -> torch.Tensor:
    """32 times a code of nine bits and a sign of seven; scales of four bits, each of 16 values."""
    words = _numbers(blocks[:, 2:66], 2)
    scale = _half(blocks, 0) * (0.5 + _fields(blocks[:, 66:74], 4, 2).float()) * 0.25
    return _signed(scale, code_book("IQ2_XS")[words & 511], _even_signs(words >> 9))


def iq2_s(blocks: torch.Tensor) -> torch.Tensor:
    """Codes of ten bits, eight low ones and two high ones apart; eight signs each; scales of 16 values."""
    codes = blocks[:, 2:34].long() | (_fields(blocks[:, 66:74], 2, 4) << 8)
    scale = _half(blocks, 0) * (0.5 + _fields(blocks[:, 74:82], 4, 2).float()) * 0.25
    return _signed(scale, code_book("IQ2_S")[codes], _signs(blocks[:, 34:66]))


def iq3_xxs(blocks: torch.Tensor) -> torch.Tensor:
    """64 codes of four values each; per 32 values four signs of seven bits and a scale of four."""
    rest = _numbers(blocks[:, 66:98], 4)
    scale = _half(blocks, 0) * (0.5 + (rest >> 28).float()) * 0.5
    return _signed(scale, code_book("IQ3_XXS")[blocks[:, 2:66].long()], _even_signs(_fields(rest, 7, 4)))


def iq3_s(blocks: torch.Tensor) -> torch.Tensor:
    """64 codes of nine bits, the highest apart; signs of each value; a scale of four bits for 32 values."""
    codes = blocks[:, 2:66].long() | (_fields(blocks[:, 66:74], 1, 8) << 8)
    scale = _half(blocks, 0) * (1 + 2 * _fields(blocks[:, 106:110], 4, 2)).float()
    return _signed(scale, code_book("IQ3_S")[codes], _signs(blocks[:, 74:106]))


def iq1_s(blocks: torch.Tensor) -> torch.Tensor:
    """32 codes of eleven bits; per 32 values a scale of three bits, and whether points are moved up or down."""
    high = _numbers(blocks[:, 34:50], 2)
    codes = blocks[:, 2:34].long() | (_fields(high, 3, 4) << 8)
    scale = _half(blocks, 0) * (2 * ((high >> 12) & 7) + 1).float()
    shift = _IQ1_SHIFT * (1.0 - 2.0 * (high >> 15).float())
    points = code_book("IQ1_S")[codes].view(-1, 8, 32) + shift.unsqueeze(2)
    return (scale.unsqueeze(2) * points).flatten(1)


def iq1_m(blocks: torch.Tensor) -> torch.Tensor:
    """As IQ1_S with a scale for 16 values and a direction for each point; d is spread over the scales' high bits."""
    words = _numbers(blocks[:, 48:56], 2)
    whole = ((words >> 12) << torch.arange(0, 16, 4)).sum(1, keepdim=True)
    stacked = torch.cat((whole & 255, whole >> 8), dim=1).to(torch.uint8)
    scale = stacked.view(torch.float16).float() * (2 * _fields(words, 3, 4) + 1).float()
    high = _fields(blocks[:, 32:48], 4, 2)
    codes = blocks[:, :32].long() | ((high & 7) << 8)
    shift = _IQ1_SHIFT * (1.0 - 2.0 * (high >> 3).float())
    points = (code_book("IQ1_S")[codes] + shift.unsqueeze(2)).view(-1, 16, 16)
    return (scale.unsqueeze(2) * points).flatten(1)
