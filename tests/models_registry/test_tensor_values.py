"""Statistics of a checkpoint's tensor, by the real child process."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from inference.errors import ChecksumMismatch, InvalidRequest, NotFound, QueueFull
from inference.modelling.families.config import TensorInfo
from models_registry import services, tensor_values
from models_registry.selectors import checkpoint_inspection
from models_registry.tensor_values import run_child, tensor_changes, tensor_statistics, why_not
from tests.models_registry.detection.builders import small_hybrid, write_checkpoint

pytestmark = pytest.mark.django_db


def test_a_child_reads_the_values(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    name, values = next(iter(load_file(hybrid / "model.safetensors").items()))
    found = tensor_statistics(row, name)
    assert found["count"] == values.size
    assert found["mean"] == pytest.approx(float(values.astype(np.float64).mean()), abs=1e-9)
    with pytest.raises(NotFound, match="no tensor"):
        tensor_statistics(row, "nothing")


def test_changed_files_are_not_read(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    with (hybrid / "model.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ChecksumMismatch):
        tensor_statistics(row, row.inspection["tensors"][0][0])


def test_changes_between_two_checkpoints(hybrid: Path, tmp_path: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    place = shutil.copytree(hybrid, tmp_path / "after")
    tensors = load_file(place / "model.safetensors")
    first, second = list(tensors)[:2]
    tensors[first] = tensors[first] * np.float32(1.5)
    save_file(tensors, place / "model.safetensors")
    found = tensor_changes(row, services.checkpoint_register(path=place))
    by_name = {item["name"]: item for item in found["changes"]}
    assert by_name[first]["relative"] == pytest.approx(0.5) and not by_name[first]["is_equal"]
    assert by_name[second]["is_equal"] and len(by_name) == len(tensors)
    assert (found["num_others"], found["num_unread"]) == (0, 0)


def test_other_shapes_and_formats_are_no_change(hybrid: Path, tmp_path: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    shapes, config = small_hybrid()
    half = services.checkpoint_register(path=write_checkpoint(tmp_path / "half", shapes, config, dtype="float16"))
    found = tensor_changes(row, half)
    assert found["num_others"] == 0 and all(item["relative"] < 1e-3 for item in found["changes"])
    one, other = map(checkpoint_inspection, (row, half))
    name = next(iter(one.tensors))
    one.tensors[name] = TensorInfo("F32", (1,), one.tensors[name].file, 0, 4)
    names, num_others = tensor_values._pairs(one, other)
    assert name not in names and num_others == 1


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (TensorInfo("Q4_K", (256,), "a.gguf", 0, 144), "blocks of Q4_K"),
        (TensorInfo("F32", (4,), "a.gguf", 0, 8), "several pieces"),
        (TensorInfo("F32", (0,), "a", 0, 0), "no values"),
        (TensorInfo("F32", (2, 2), "a", 0, 16), ""),
    ],
)
def test_why_values_cannot_be_summed_up(info: TensorInfo, words: str) -> None:
    assert words in why_not(info) and bool(words) == bool(why_not(info))


def test_one_computation_runs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_values, "WAIT_S", 0.01)
    with tensor_values._turn, pytest.raises(QueueFull, match="other tensors are being read"):
        run_child({"work": "summarise"})


def test_time_is_bounded(child_script) -> None:
    child_script("time.sleep(60)")
    with pytest.raises(InvalidRequest, match="took longer than"):
        run_child({"work": "summarise"}, max_seconds=0.2)
    assert not tensor_values._turn.locked()
    assert math.isfinite(tensor_values.MAX_SECONDS)
