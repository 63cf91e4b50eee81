"""Numbers read from files by the positions of a header."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from inference.errors import CorruptCheckpoint
from inference.modelling.families.config import TensorInfo
from models_registry.detection.stored_values import NUM_SAMPLES, SAMPLE_BYTES, are_alike, read_values

ROWS = NUM_SAMPLES * SAMPLE_BYTES // 4 * 3
"""Length of a tensor of bytes."""


def pair(directory: Path, *changed: int) -> tuple[TensorInfo, TensorInfo]:
    """Two equal tensors in one file, but for the bytes at some positions of the second."""
    first = random.Random(0).randbytes(ROWS)
    second = bytearray(first)
    for at in changed:
        second[at] ^= 1
    (directory / "x").write_bytes(first + second)
    return TensorInfo("I8", (ROWS,), "x", 0, ROWS), TensorInfo("I8", (ROWS,), "x", ROWS, 2 * ROWS)


def test_equal_tensors_are_alike_and_a_change_everywhere_is_seen(tmp_path: Path) -> None:
    assert are_alike(tmp_path, *pair(tmp_path))
    assert not are_alike(tmp_path, *pair(tmp_path, 0))
    assert not are_alike(tmp_path, *pair(tmp_path, *range(ROWS // 2, ROWS)))


def test_another_dtype_or_shape_is_not_alike(tmp_path: Path) -> None:
    first, second = pair(tmp_path)
    assert not are_alike(tmp_path, first, TensorInfo("U8", second.shape, "x", second.begin, second.end))
    assert not are_alike(tmp_path, first, TensorInfo("I8", (1, ROWS), "x", second.begin, second.end))


def test_a_file_that_became_shorter_or_is_gone_is_refused(tmp_path: Path) -> None:
    first, second = pair(tmp_path)
    with (tmp_path / "x").open("r+b") as file:
        file.truncate(ROWS + 1)
    with pytest.raises(CorruptCheckpoint, match="became shorter"):
        are_alike(tmp_path, first, second)
    (tmp_path / "x").unlink()
    with pytest.raises(CorruptCheckpoint, match="can't be opened"):
        read_values(tmp_path, TensorInfo("F32", (1,), "x", 0, 4))
