"""Unpack weights of integer codes with scales and zero points: GPTQ, AWQ, compressed-tensors' packed form, HQQ.

Letters: o outputs, i inputs, g groups, b bits. All functions return rows ``begin`` to ``stop``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference.errors import CorruptCheckpoint
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.weights.decoding.bits import (
    PartTensors,
    unpack_awq,
    unpack_plane_rows,
    unpack_planes,
    unpack_words,
)


@dataclass(frozen=True, slots=True)
class IntegerCodes:
    """Rows of a matrix: W = (codes - zeros) · scales.

    Attributes:
        codes: (n, i) uint8.
        zeros, scales: (n, g) float32.
        groups: (i,) int64, the group of each input.
    """

    codes: torch.Tensor
    zeros: torch.Tensor
    scales: torch.Tensor
    groups: torch.Tensor

    def dense(self) -> torch.Tensor:
        """Return the (n, i) float32 values."""
        values = self.codes.float()
        values -= self.zeros[:, self.groups]
        values *= self.scales[:, self.groups]
        return values


def unpack_gptq_rows(item: EncodedTensor, parts: PartTensors, begin: int, stop: int) -> IntegerCodes:
    """W[o, i] = (q[i, o] - z[group(i), o]) · s[group(i), o].

    Source: AutoGPTQ's QuantLinear. ``g_idx`` gives each input's group; the zero points of the first version are stored
    one too low (``zero_offset``), modulo 2^b.
    """
    outputs, inputs = item.shape
    codes = unpack_words(parts["qweight"][:, begin:stop].T, item.bits, inputs)
    scales = parts["scales"][:, begin:stop].T.float()
    zeros = torch.full_like(scales, 1 << item.bits - 1)
    if "qzeros" in parts:
        stored = _packed_columns(parts["qzeros"], item.bits, outputs, begin, stop)
        zeros = ((stored.to(torch.int32) + item.zero_offset) & ((1 << item.bits) - 1)).T.float()
    return IntegerCodes(codes, zeros, scales, _groups(item, parts.get("g_idx"), scales.shape[1]))


def unpack_awq_rows(item: EncodedTensor, parts: PartTensors, begin: int, stop: int) -> IntegerCodes:
    """W[o, i] = (q[i, o] - z[group(i), o]) · s[group(i), o]. Source: AutoAWQ's WQLinear_GEMM."""
    first, last = begin // 8, -(-stop // 8)
    cut = slice(begin - 8 * first, stop - 8 * first)
    codes = unpack_awq(parts["qweight"][:, first:last])[:, cut].T
    zeros = unpack_awq(parts["qzeros"][:, first:last])[:, cut].T
    scales = parts["scales"][:, begin:stop].T.float()
    return IntegerCodes(codes, zeros.float(), scales, _groups(item, None, scales.shape[1]))


def unpack_packed_int_rows(item: EncodedTensor, parts: PartTensors, begin: int, stop: int) -> IntegerCodes:
    """W = (q - 2^(b-1) - z) · s, where z is stored with the same offset.

    Source: compressed-tensors' pack_quantized. Codes that don't fill a word are packed densely by newer versions and
    one word at a time by older ones; the number of words tells.
    """
    outputs, inputs = item.shape
    packed = parts["packed"]
    codes = unpack_words(packed[begin:stop], item.bits, inputs, loose=_is_loose(packed.shape[1], inputs, item.bits))
    scales = parts["scale"].float()
    scales = scales[begin:stop] if scales.shape[0] == outputs else scales.expand(stop - begin, -1)
    offset = float(1 << (item.bits - 1))
    zeros = torch.full_like(scales, offset)
    if "zero_point" in parts:
        words = parts["zero_point"]
        loose = _is_loose(words.shape[0], outputs, item.bits)
        zeros = _packed_columns(words.T, item.bits, outputs, begin, stop, loose=loose).T.float()
    return IntegerCodes(codes, zeros, scales, _groups(item, parts.get("g_idx"), scales.shape[1]))


def unpack_hqq_rows(item: EncodedTensor, parts: PartTensors, begin: int, stop: int) -> IntegerCodes:
    """W = (q - zero) · scale, for ``axis`` 1 and rows of whole groups, of which only the words needed are read."""
    columns = item.shape[1]
    per_row = columns // item.group_size
    numbers = torch.arange(begin * per_row, stop * per_row)
    codes = unpack_plane_rows(_hqq_words(item, parts), item.bits, numbers).view(-1, columns)
    scale, zero = parts["scale"].float().flatten(), parts["zero"].float().flatten()
    zeros = zero[numbers] if zero.numel() > 1 else zero.expand(len(numbers))
    groups = torch.arange(columns) // item.group_size
    return IntegerCodes(codes, zeros.view(-1, per_row), scale[numbers].view(-1, per_row), groups)


def decode_hqq(item: EncodedTensor, parts: PartTensors, begin: int, stop: int) -> torch.Tensor:
    """W = (q - zero) · scale in float32 over groups of the row-major weights: rows of (g, n), or columns of (n, g).

    Source: HQQ's Quantizer.dequantize; ``axis`` 1 is the rows. All codes are unpacked, one byte each.
    """
    columns = item.shape[1]
    count = item.shape[0] * columns
    codes = unpack_planes(_hqq_words(item, parts), item.bits).flatten()[:count]
    places = torch.arange(begin * columns, stop * columns)
    scale, zero = parts["scale"].float().flatten(), parts["zero"].float().flatten()
    groups = places // item.group_size if item.axis == 1 else places % scale.numel()
    values = codes[begin * columns : stop * columns].float()
    values -= zero[groups] if zero.numel() > 1 else zero
    return (values * scale[groups]).view(stop - begin, columns)


def _hqq_words(item: EncodedTensor, parts: PartTensors) -> torch.Tensor:
    """The words of codes, which ``view_as_float`` stores as floats of the same bytes."""
    return parts["packed"].contiguous().view(torch.int32 if item.bits == 3 else torch.uint8)


def _packed_columns(
    words: torch.Tensor, bits: int, count: int, begin: int, stop: int, *, loose: bool = False
) -> torch.Tensor:
    """Codes ``begin`` to ``stop`` of the ``count`` in each row of words, of which no others are unpacked."""
    per, size = (32 // bits, 1) if loose else (32, bits)  # codes that fill whole words
    first, last = begin // per, -(-stop // per)
    start = first * per
    codes = unpack_words(words[:, first * size : last * size], bits, min(count, last * per) - start, loose=loose)
    return codes[:, begin - start : stop - start]


def _groups(item: EncodedTensor, g_idx: torch.Tensor | None, num_groups: int) -> torch.Tensor:
    """(i,) the group of each input.

    Raises:
        CorruptCheckpoint: ``g_idx`` names a group that isn't there.
    """
    inputs = item.shape[1]
    # Files without activation order may hold zeros only.
    if g_idx is None or (num_groups > 1 and not bool(g_idx.any())):
        return torch.arange(inputs) // item.group_size
    groups = g_idx.to(torch.int64)
    low, high = int(groups.min()), int(groups.max())
    if low < 0 or high >= num_groups:
        raise CorruptCheckpoint(
            f"{item.parts['g_idx']} holds {low if low < 0 else high}; the weight has {num_groups} groups.",
            param=item.parts["g_idx"],
        )
    return groups


def _is_loose(num_words: int, count: int, bits: int) -> bool:
    return num_words != -(-count * bits // 32)
