"""Read stored numbers from their files, without a tensor library."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path

from inference.errors import CorruptCheckpoint
from inference.modelling.families.config import TensorInfo

MAX_VALUES = 1 << 16
MAX_SMALL_BYTES = 1 << 18
NUM_SAMPLES = 64
"""Places, evenly spread, at which two tensors are compared: reading gigabytes would make the inspection slow."""
SAMPLE_BYTES = 1 << 12


def read_values(directory: Path, info: TensorInfo) -> tuple[float, ...]:
    """Values of a tensor of at most ``MAX_VALUES`` floating-point numbers.

    Raises:
        CorruptCheckpoint: The file is shorter than its header said, or a value is not a number.
    """
    size = info.end - info.begin
    count = math.prod(info.shape)
    if count > MAX_VALUES:
        raise CorruptCheckpoint(f"{info.file}: {count} values where at most {MAX_VALUES} make sense.", param=info.file)
    data = _read(directory, info, 0, size)
    if info.dtype == "BF16":
        # A bfloat16 is the upper half of a float32.
        data = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, size, 2))
    values: tuple[float, ...] = struct.unpack(f"<{count}{_CODES[info.dtype]}", data)
    if any(math.isnan(value) for value in values):
        raise CorruptCheckpoint(f"{info.file}: a tensor at byte {info.begin} holds NaN.", param=info.file)
    return values


def read_small(directory: Path, info: TensorInfo) -> bytes:
    """All bytes of a tensor of at most ``MAX_SMALL_BYTES``.

    Raises:
        CorruptCheckpoint: It has more, or the file is shorter than its header said.
    """
    size = info.end - info.begin
    if size > MAX_SMALL_BYTES:
        raise CorruptCheckpoint(
            f"{info.file}: a tensor has {size} bytes where at most {MAX_SMALL_BYTES} make sense.", param=info.file
        )
    return _read(directory, info, 0, size)


def are_alike(directory: Path, first: TensorInfo, second: TensorInfo) -> bool:
    """Whether two tensors have the same dtype, shape and, at ``NUM_SAMPLES`` places, bytes.

    Raises:
        CorruptCheckpoint: The file is shorter than its header said.
    """
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    size = first.end - first.begin
    step = max(SAMPLE_BYTES, -(-size // NUM_SAMPLES))
    for at in range(0, size, step):
        length = min(SAMPLE_BYTES, size - at)
        if _read(directory, first, at, length) != _read(directory, second, at, length):
            return False
    return True


def _read(directory: Path, info: TensorInfo, at: int, length: int) -> bytes:
    """Bytes of a tensor from ``at`` on."""
    try:
        descriptor = os.open(directory / info.file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CorruptCheckpoint(f"{info.file} can't be opened: {error.strerror}.", param=info.file) from None
    try:
        data = os.pread(descriptor, length, info.begin + at)
    except OSError as error:
        raise CorruptCheckpoint(f"{info.file} can't be read: {error.strerror}.", param=info.file) from None
    finally:
        os.close(descriptor)
    if len(data) != length:
        raise CorruptCheckpoint(f"{info.file} became shorter while it was read.", param=info.file)
    return data


_CODES = {"F32": "f", "BF16": "f", "F16": "e", "F64": "d"}
