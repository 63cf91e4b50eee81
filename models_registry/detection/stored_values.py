"""Read the numbers of one small tensor from its file, without a tensor library."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path

from inference.errors import CorruptCheckpoint
from inference.modelling.families.config import TensorInfo

MAX_VALUES = 1 << 16


def read_values(directory: Path, info: TensorInfo) -> tuple[float, ...]:
    """Values of a tensor of at most ``MAX_VALUES`` floating-point numbers.

    Raises:
        CorruptCheckpoint: The file is shorter than its header said, or a value is not a number.
    """
    size = info.end - info.begin
    count = math.prod(info.shape)
    if count > MAX_VALUES:
        raise CorruptCheckpoint(f"{info.file}: {count} values where at most {MAX_VALUES} make sense.", param=info.file)
    try:
        descriptor = os.open(directory / info.file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CorruptCheckpoint(f"{info.file} can't be opened: {error.strerror}.", param=info.file) from None
    try:
        data = os.pread(descriptor, size, info.begin)
    finally:
        os.close(descriptor)
    if len(data) != size:
        raise CorruptCheckpoint(f"{info.file} became shorter while it was read.", param=info.file)
    if info.dtype == "BF16":
        # A bfloat16 is the upper half of a float32.
        data = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, size, 2))
    values: tuple[float, ...] = struct.unpack(f"<{count}{_CODES[info.dtype]}", data)
    if any(math.isnan(value) for value in values):
        raise CorruptCheckpoint(f"{info.file}: a tensor at byte {info.begin} holds NaN.", param=info.file)
    return values


_CODES = {"F32": "f", "BF16": "f", "F16": "e", "F64": "d"}
