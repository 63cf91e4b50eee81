"""Unpack BitNet's weights of three values.

Letters: o outputs, i inputs. All functions return rows ``begin`` to ``stop``.

Source: transformers' ``integrations/bitnet.py``.
"""

from __future__ import annotations

import torch

from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.encodings.bitnet import CODES_PER_BYTE
from inference.modelling.weights.decoding.bits import PartTensors

_LEAST_MEAN = 1e-5


def ternary_codes(parts: PartTensors, begin: int, stop: int) -> torch.Tensor:
    """(n, i) uint8 of value + 1, from two bits each, or by the mean magnitude of the whole weight."""
    if "codes" not in parts:
        weight = parts["weight"]
        rounded = (weight[begin:stop].float() * (1.0 / _mean(weight))).round().clamp_(-1, 1)
        return (rounded + 1).to(torch.uint8)
    packed = parts["codes"]
    quarter = packed.shape[0]
    assert quarter * CODES_PER_BYTE >= stop
    rows = torch.arange(begin, stop)
    shifts = (2 * (rows // quarter)).to(torch.uint8).unsqueeze(1)
    return (packed[rows % quarter] >> shifts) & 3


def ternary_scale(item: EncodedTensor, parts: PartTensors) -> float:
    """What the values are multiplied by."""
    if "scale" not in parts:
        return _mean(parts["weight"])
    scale = float(parts["scale"].float())
    return 1.0 / scale if item.divides else scale


def decode_bitnet(item: EncodedTensor, parts: PartTensors, begin: int, stop: int) -> torch.Tensor:
    """(n, i) float32."""
    scale = ternary_scale(item, parts)
    if not item.bits:
        return parts["weight"][begin:stop].float() * scale
    return (ternary_codes(parts, begin, stop).float() - 1) * scale


def _mean(weight: torch.Tensor) -> float:
    return max(float(weight.float().abs().mean()), _LEAST_MEAN)
