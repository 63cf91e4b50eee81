"""Find values of an adapter's files that are infinite or no numbers, by their bits: without torch or NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from inference.modelling.families.config import TensorInfo
from inference.modelling.lora.plan import not_finite
from models_registry.detection.adapter_files import AdapterFiles
from models_registry.detection.safetensors_header import DTYPE_BITS
from models_registry.detection.xlora_files import XLoraFiles

_PIECE_BYTES = 8 << 20
_LEAST_SECOND = {"F32": 0x80, "BF16": 0x80, "F64": 0xF0}
"""Least second byte, from the top, of a value whose exponent is all ones, if the first one is 0x7F or 0xFF."""
_FLOATS = ("F16", "BF16", "F32", "F64")
_TOPS = {"F16": (*range(0x7C, 0x80), *range(0xFC, 0x100))}
"""First bytes, from the top, of values that may have such an exponent: in half precision all of them do."""


def check_values(files: AdapterFiles | XLoraFiles) -> None:
    """Read the tensors of an adapter, as its digest does, and refuse values with which nothing can be computed.

    Raises:
        CorruptCheckpoint: Names the first tensor with one.
    """
    weights = files.classifier if isinstance(files, XLoraFiles) else files.weights
    _check_file(weights, files.tensors)
    for adapter in files.adapters if isinstance(files, XLoraFiles) else ():
        _check_file(adapter.weights, adapter.tensors)


def _check_file(path: Path, tensors: Mapping[str, TensorInfo]) -> None:
    with path.open("rb") as file:
        for name, info in tensors.items():
            if info.dtype not in _FLOATS:
                continue
            file.seek(info.begin)
            left = info.end - info.begin
            while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
                if not _is_finite(piece, info.dtype):
                    raise not_finite(name)
                left -= len(piece)


def _is_finite(piece: bytes, dtype: str) -> bool:
    """Whether all little-endian values of a piece are numbers."""
    width = DTYPE_BITS[dtype] // 8
    top = piece[width - 1 :: width]
    suspects = [first for first in _TOPS.get(dtype, (0x7F, 0xFF)) if first in top]
    least = _LEAST_SECOND.get(dtype, 0)
    if not suspects or not least:
        return not suspects
    second = piece[width - 2 :: width]
    return not any(low >= least for high, low in zip(top, second, strict=True) if high in suspects)
