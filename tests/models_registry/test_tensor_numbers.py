"""Summing up tensors, against numpy and torch on the whole array."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from inference.errors import CorruptCheckpoint
from models_registry import tensor_numbers
from models_registry.plain_formats import PLAIN_BYTES
from models_registry.tensor_numbers import NUM_BINS, StoredTensor, change, statistics

TORCH = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64, "BOOL": torch.bool,
}  # fmt: skip


def stored(place: Path, data: bytes, dtype: str, name: str = "a.bin") -> StoredTensor:
    (place / name).write_bytes(b"head" + data)
    return StoredTensor(str(place / name), dtype, 4, len(data) // PLAIN_BYTES[dtype])


@pytest.mark.parametrize("dtype", PLAIN_BYTES)
def test_every_format_reads_as_torch_reads_it(tmp_path: Path, dtype: str) -> None:
    size = PLAIN_BYTES[dtype]
    codes = np.arange(256, dtype=np.uint8).repeat(size) if size == 1 else np.random.default_rng(0).bytes(512 * size)
    data = bytes(codes) if dtype != "BOOL" else bytes([0, 1, 1])
    tensor = stored(tmp_path, data, dtype)
    expected = torch.frombuffer(bytearray(data), dtype=TORCH[dtype]).to(torch.float64).numpy()
    with tensor_numbers._opened(tensor.path) as descriptor:
        np.testing.assert_array_equal(tensor.read(descriptor, 0, tensor.count), expected)


def test_figures_are_those_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_numbers, "CHUNK_VALUES", 1000)
    values = np.random.default_rng(1).normal(1e4, 0.5, 5500).astype(np.float32)
    values[:7], values[7], values[8] = 0, math.nan, -math.inf
    found = statistics(stored(tmp_path, values.tobytes(), "F32"))
    finite = values[np.isfinite(values)].astype(np.float64)
    assert (found["count"], found["num_read"], found["zeros"]) == (5500, 5500, 7)
    assert (found["nans"], found["infinities"]) == (1, 1)
    assert (found["min"], found["max"]) == (0, finite.max())
    assert found["mean"] == pytest.approx(finite.mean(), rel=1e-12)
    assert found["std"] == pytest.approx(finite.std(), rel=1e-9)
    histogram = found["histogram"]
    assert len(histogram["bins"]) == NUM_BINS
    assert sum(histogram["bins"]) + histogram["below"] + histogram["above"] == finite.size
    assert histogram["below"] == 7  # the zeros are far outside


def test_of_large_tensors_places_from_end_to_end_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_numbers, "PLACE_VALUES", 10)
    values = np.zeros(1000, np.float32)
    values[0], values[-1] = -1, 2
    found = statistics(stored(tmp_path, values.tobytes(), "F32"), max_values=50)
    assert (found["count"], found["num_read"], found["min"], found["max"]) == (1000, 50, -1, 2)


def test_tensors_without_finite_or_different_values_have_no_histogram(tmp_path: Path) -> None:
    nothing = statistics(stored(tmp_path, np.full(4, math.nan, np.float32).tobytes(), "F32"))
    assert (nothing["min"], nothing["mean"], nothing["std"], nothing["histogram"]) == (None, None, None, None)
    assert statistics(stored(tmp_path, np.ones(4, np.float32).tobytes(), "F32"))["histogram"] is None
    huge = statistics(stored(tmp_path, np.array([1.7e308, -1.7e308]).tobytes(), "F64"))
    assert huge["max"] == 1.7e308 and huge["histogram"] is None


def test_a_shorter_file_is_an_error(tmp_path: Path) -> None:
    tensor = StoredTensor(stored(tmp_path, b"\0" * 8, "F32").path, "F32", 4, 3)
    with pytest.raises(CorruptCheckpoint, match="shorter than its header says"):
        statistics(tensor)
    with pytest.raises(CorruptCheckpoint, match="can't be opened"):
        statistics(StoredTensor(str(tmp_path / "gone"), "F32", 0, 1))


def test_changes_are_norms(tmp_path: Path) -> None:
    before = np.array([3, 4, 0], np.float32)
    one = stored(tmp_path, before.tobytes(), "F32")
    other = stored(tmp_path, np.array([3, 4, 1], np.float64).tobytes(), "F64", "b.bin")
    shared = {"count": 3, "num_read": 3}
    found = {"relative": 0.2, "squares": [1.0, 25.0], "largest": 1.0, "is_equal": False, **shared}
    assert change(one, other) == found
    same = {"relative": 0.0, "squares": [0.0, 25.0], "largest": 0.0, "is_equal": True, **shared}
    assert change(one, one) == same
    zeros = stored(tmp_path, bytes(12), "F32", "zero.bin")
    assert change(zeros, one)["relative"] is None
    broken = stored(tmp_path, np.array([math.nan, 0, 0], np.float32).tobytes(), "F32", "nan.bin")
    assert change(broken, broken)["is_equal"]
    assert change(one, broken)["relative"] is None and change(one, broken)["largest"] is None
