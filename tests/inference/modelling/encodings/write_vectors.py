"""Write vectors.json: weights that compressed-tensors and bitsandbytes have encoded, and their values by these two.

Run in an environment that has both (compressed-tensors 0.20, bitsandbytes 0.50): ``python -m
tests.inference.modelling.encodings.write_vectors``. They aren't dependencies: bitsandbytes is 60 MB.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import torch

PATH = Path(__file__).with_name("vectors.json")


def stored(tensor: torch.Tensor) -> list[Any]:
    """A tensor as JSON: dtype, shape, bytes in base64."""
    content = bytes(tensor.detach().contiguous().flatten().view(torch.uint8).tolist())
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), base64.b64encode(content).decode()]


def loaded(entry: list[Any]) -> torch.Tensor:
    """The tensor that ``stored`` wrote."""
    content = torch.frombuffer(bytearray(base64.b64decode(entry[2])), dtype=torch.uint8)
    return content.view(getattr(torch, entry[0])).view(entry[1])


def packed_integers(bits: int) -> dict[str, Any]:
    """compressed-tensors' packing of asymmetric codes in groups of 16."""
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    half = 1 << (bits - 1)
    codes = torch.randint(-half, half, (32, 32), dtype=torch.int8)
    zeros = torch.randint(-half, half, (32, 2), dtype=torch.int8)
    scale = torch.rand(32, 2) + 0.1
    tensors = {
        "weight_packed": pack_to_int32(codes, bits), "weight_scale": scale, "weight_shape": torch.tensor([32, 32]),
        "weight_zero_point": pack_to_int32(zeros, bits, packed_dim=0),
    }  # fmt: skip
    weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 16}
    values = (codes.float() - zeros.float().repeat_interleave(16, 1)) * scale.repeat_interleave(16, 1)
    return {
        "config": {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": weights}}},
        "tensors": {name: stored(tensor) for name, tensor in tensors.items()},
        "values": stored(values),
    }


def bitsandbytes(kind: str, nested: bool) -> dict[str, Any]:
    """bitsandbytes' codes in blocks of 64. (On a CPU, its 0.50 misreads blocks that cross rows.)"""
    from bitsandbytes import functional

    codes, state = functional.quantize_4bit(
        torch.randn(8, 128), blocksize=64, quant_type=kind, compress_statistics=nested
    )
    tensors = {"weight": codes} | {f"weight.{name}": part for name, part in state.as_dict(packed=True).items()}
    return {
        "config": {"quant_method": "bitsandbytes", "bnb_4bit_quant_type": kind},
        "tensors": {name: stored(tensor) for name, tensor in tensors.items()},
        "values": stored(functional.dequantize_4bit(codes, state)),
    }


if __name__ == "__main__":
    torch.manual_seed(0)
    vectors = {f"compressed-tensors, {bits} bits": packed_integers(bits) for bits in (2, 3, 4, 5, 6, 7, 8)}
    for kind in ("nf4", "fp4"):
        for nested in (False, True):
            vectors[f"bitsandbytes, {kind}{', nested' if nested else ''}"] = bitsandbytes(kind, nested)
    PATH.write_text(json.dumps(vectors, indent=1) + "\n")
