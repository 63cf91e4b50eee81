"""Decode weights of float codes, and of bytes with scales: FP8, int8, NVFP4, MXFP4, bitsandbytes' NF4 and FP4.

All functions return entries ``begin`` to ``stop`` of the weight's first axis in float32.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.weights.decoding.bits import unpack_nibbles

Parts = Mapping[str, torch.Tensor]

FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""E2M1: a sign, two bits of exponent, one of mantissa. Source: OCP Microscaling Formats 1.0, section 5.3.3."""


def decode_scaled(item: EncodedTensor, parts: Parts, begin: int, stop: int) -> torch.Tensor:
    """W = (q - zero) · scale / divisor, a scale for each block of outputs and inputs, the last ones perhaps cut."""
    values = parts["codes"][begin:stop].float()
    if "zero_point" in parts:
        values -= _expand_scale(item, parts["zero_point"].float(), begin, stop)
    values *= _expand_scale(item, scales_of(parts["scale"]), begin, stop)
    return values if item.divisor == 1.0 else values.div_(item.divisor)


def decode_fp4(item: EncodedTensor, parts: Parts, begin: int, stop: int) -> torch.Tensor:
    """W = table[nibble] · scale, and times or by a global scale; the low nibble of a byte comes first."""
    scale = scales_of(parts["scale"][begin:stop])
    blocks = parts["blocks"][begin:stop]
    codes = unpack_nibbles(blocks.flatten(-2) if blocks.dim() > scale.dim() else blocks)
    values = torch.tensor(FP4_VALUES)[codes.to(torch.int32)]
    values *= scale.repeat_interleave(item.group_size, -1)[..., : values.shape[-1]]
    if "global_scale" in parts:
        whole = parts["global_scale"].float().reshape(())
        values = values / whole if item.divides else values * whole
    return values.transpose(-1, -2) if item.is_transposed else values


def decode_bnb4(item: EncodedTensor, parts: Parts, begin: int, stop: int) -> torch.Tensor:
    """W = map[code] · absmax over the row-major weights; the high nibble of a byte comes first.

    Source: Dettmers et al. 2023, https://arxiv.org/abs/2305.14314, sections 3 (NF4, double quantisation). absmax in
    codes is nested_map[code] · nested_absmax + offset.
    """
    width = 1
    for size in item.shape[1:]:
        width *= size
    first, last = begin * width, stop * width
    packed = parts["packed"].contiguous().flatten().view(torch.uint8)
    codes = unpack_nibbles(packed[first // 2 : -(-last // 2)], high_first=True)[first % 2 :][: last - first]
    absmax = parts["absmax"].flatten()
    if item.nested_size:
        nested = parts["nested_absmax"].float().flatten().repeat_interleave(item.nested_size)[: absmax.numel()]
        absmax = parts["nested_quant_map"].float().flatten()[absmax.to(torch.int64)] * nested + item.offset
    values = parts["quant_map"].float().flatten()[codes.to(torch.int32)]
    blocks = torch.arange(first, last) // item.group_size
    return (values * absmax.float()[blocks]).view(stop - begin, *item.shape[1:])


def scales_of(stored: torch.Tensor) -> torch.Tensor:
    """Scales in float32; bytes are exponents (E8M0): 2^(byte - 127), 255 is NaN."""
    return (stored.view(torch.float8_e8m0fnu) if stored.dtype == torch.uint8 else stored).float()


def _expand_scale(item: EncodedTensor, scale: torch.Tensor, begin: int, stop: int) -> torch.Tensor:
    """One scale for each value, broadcast where all values of an axis share it."""
    rows, columns = item.shape[-2:]
    high, wide = item.block
    num_high, num_wide = -(-rows // high), -(-columns // wide)
    scale = scale.reshape(-1, num_high, num_wide)
    if len(item.shape) == 2:
        places = torch.arange(begin, stop) // high
        scale = scale[0, places] if num_high > 1 else scale[0]
    else:
        scale = scale[begin:stop] if scale.shape[0] > 1 else scale
        scale = scale.repeat_interleave(high, -2)[..., :rows, :] if num_high > 1 else scale
    return scale.repeat_interleave(wide, -1)[..., :columns] if num_wide > 1 else scale
