"""Decode weights of float codes, and of bytes with scales: FP8, int8, NVFP4, MXFP4, bitsandbytes' NF4 and FP4.

Functions that decode return entries ``begin`` to ``stop`` of the weight's first axis in float32.
"""

from __future__ import annotations

import math

import torch

from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.weights.decoding.bits import PartTensors, unpack_nibbles

FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""E2M1: a sign, two bits of exponent, one of mantissa. Source: OCP Microscaling Formats 1.0, section 5.3.3."""


def decode_scaled(item: EncodedTensor, parts: PartTensors, begin: int, stop: int) -> torch.Tensor:
    """W = (q - zero) · scale / divisor, a scale for each block of outputs and inputs, the last ones perhaps cut."""
    values = parts["codes"][begin:stop].float()
    if "zero_point" in parts:
        values -= _expand_scale(item, parts["zero_point"].float(), begin, stop)
    values *= _expand_scale(item, scales_of(parts["scale"]), begin, stop)
    return values if item.divisor == 1.0 else values.div_(item.divisor)


def decode_fp4(item: EncodedTensor, parts: PartTensors, begin: int, stop: int) -> torch.Tensor:
    """W = table[nibble] · scale, and times or by a global scale; the low nibble of a byte comes first."""
    codes = fp4_codes(parts, begin, stop)
    values = torch.tensor(FP4_VALUES)[codes.to(torch.int32)]
    values *= scales_of(parts["scale"][begin:stop]).repeat_interleave(item.group_size, -1)[..., : values.shape[-1]]
    return _apply_global_scale(item, parts, values, begin, stop)


def fp4_codes(parts: PartTensors, begin: int, stop: int) -> torch.Tensor:
    """(n, …, i) uint8 codes."""
    blocks = parts["blocks"][begin:stop].view(torch.uint8)
    return unpack_nibbles(blocks.flatten(-2) if blocks.dim() > parts["scale"].dim() else blocks)


def fp4_scales(item: EncodedTensor, parts: PartTensors, begin: int, stop: int) -> torch.Tensor:
    """(n, …, g) float32 scales, the global one included."""
    return _apply_global_scale(item, parts, scales_of(parts["scale"][begin:stop]), begin, stop)


def _apply_global_scale(
    item: EncodedTensor, parts: PartTensors, values: torch.Tensor, begin: int, stop: int
) -> torch.Tensor:
    """Multiply or divide rows by ``global_scale``, if the weight has one."""
    if "global_scale" not in parts:
        return values
    whole = parts["global_scale"].float()
    whole = _of_each_row(item, whole)[begin:stop] if item.fused_rows else whole.reshape(())
    return values / whole if item.divides else values * whole


def decode_bnb4(item: EncodedTensor, parts: PartTensors, begin: int, stop: int) -> torch.Tensor:
    """W = map[code] · absmax over the row-major weights; the high nibble of a byte comes first.

    Source: Dettmers et al. 2023, https://arxiv.org/abs/2305.14314, sections 3 (NF4, double quantisation). absmax in
    codes is nested_map[code] · nested_absmax + offset.
    """
    first, last = (entry * math.prod(item.shape[1:]) for entry in (begin, stop))
    values = parts["quant_map"].float().flatten()[bnb4_codes(parts, first, last).to(torch.int32)]
    first_block = first // item.group_size
    absmax = bnb4_absmax(item, parts, first_block, -(-last // item.group_size))
    blocks = torch.arange(first, last) // item.group_size - first_block
    return (values * absmax[blocks]).view(stop - begin, *item.shape[1:])


def bnb4_codes(parts: PartTensors, first: int, last: int) -> torch.Tensor:
    """Codes ``first`` to ``last`` of the row-major weights, uint8."""
    packed = parts["packed"].contiguous().flatten().view(torch.uint8)
    return unpack_nibbles(packed[first // 2 : -(-last // 2)], high_first=True)[first % 2 :][: last - first]


def bnb4_absmax(item: EncodedTensor, parts: PartTensors, first: int, last: int) -> torch.Tensor:
    """Largest magnitudes of blocks ``first`` to ``last``, float32."""
    absmax = parts["absmax"].flatten()[first:last]
    if not item.nested_size:
        return absmax.float()
    nested = parts["nested_absmax"].float().flatten()[torch.arange(first, last) // item.nested_size]
    return parts["nested_quant_map"].float().flatten()[absmax.to(torch.int64)] * nested + item.offset


def scales_of(stored: torch.Tensor) -> torch.Tensor:
    """Scales in float32; bytes are exponents (E8M0): 2^(byte - 127), 255 is NaN."""
    return (stored.view(torch.float8_e8m0fnu) if stored.dtype == torch.uint8 else stored).float()


def _of_each_row(item: EncodedTensor, scale: torch.Tensor) -> torch.Tensor:
    """(o, 1) scales of the rows of matrices that lie one below the other, from a scale of each matrix."""
    return scale.flatten().repeat_interleave(torch.tensor(item.fused_rows)).unsqueeze(1)


def _expand_scale(item: EncodedTensor, scale: torch.Tensor, begin: int, stop: int) -> torch.Tensor:
    """One scale for each value, broadcast where all values of an axis share it."""
    rows, columns = item.shape[-2:]
    high, wide = item.block
    num_high, num_wide = -(-rows // high), -(-columns // wide)
    if len(item.shape) == 2:
        scale = row_scales(item, scale, begin, stop)
    else:
        scale = scale.reshape(-1, num_high, num_wide)
        scale = scale[begin:stop] if scale.shape[0] > 1 else scale
        scale = scale.repeat_interleave(high, -2)[..., :rows, :] if num_high > 1 else scale
    return scale.repeat_interleave(wide, -1)[..., :columns] if num_wide > 1 else scale


def row_scales(item: EncodedTensor, scale: torch.Tensor, begin: int, stop: int) -> torch.Tensor:
    """(n, g) scales of a matrix' rows, or (1, g) where all rows share them."""
    high, wide = item.block
    num_high = -(-item.shape[0] // high)
    scale = _of_each_row(item, scale) if item.fused_rows else scale
    scale = scale.reshape(num_high, -(-item.shape[1] // wide))
    return scale[torch.arange(begin, stop) // high] if num_high > 1 else scale
