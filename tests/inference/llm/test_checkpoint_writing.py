"""A written checkpoint is whole or not there, and its file is one that the safetensors library reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from inference.errors import InvalidRequest
from inference.llm.checkpoint_writing import check_target, partial_directory, tensor_entry, write_tensors


def test_written_tensors_are_read_by_the_library(tmp_path: Path) -> None:
    tensors = {
        "a": torch.arange(6, dtype=torch.float32).view(2, 3),
        "b": torch.tensor([1, 2, 255], dtype=torch.uint8),
        "c": torch.randn(4, generator=torch.Generator().manual_seed(1)).bfloat16(),
    }
    size = write_tensors(tmp_path / "x.safetensors", (tensor_entry(*item) for item in tensors.items()), 1024)
    assert size == (tmp_path / "x.safetensors").stat().st_size
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], value) for name, value in tensors.items())


def test_an_unfinished_directory_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "new" / "model"
    with pytest.raises(RuntimeError, match="stopped"), partial_directory(target) as partial:
        (partial / "half").write_bytes(b"x")
        raise RuntimeError("stopped")
    assert not (tmp_path / "new").exists()


def test_targets_that_cannot_be_written_are_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    with pytest.raises(InvalidRequest, match="isn't an empty directory"):
        check_target(tmp_path / "full", 1)
    with pytest.raises(InvalidRequest, match="the checkpoint takes"):
        check_target(tmp_path / "large", 1 << 60)
    assert not (tmp_path / "large").exists()
