"""Writing a checkpoint's directory: complete or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.errors import CorruptCheckpoint, InvalidRequest
from inference.llm.checkpoint_writing import check_target, partial_directory, stored_entry, tensor_entry, write_tensors
from models_registry.detection.safetensors_header import read_header


def test_stored_and_new_tensors_lie_in_one_file(tmp_path: Path) -> None:
    stored = {"a": torch.randn(3, 4), "b": torch.randn(5).bfloat16()}
    save_file(stored, tmp_path / "source")
    header = read_header(tmp_path / "source")
    new = {"c": torch.arange(4, dtype=torch.float16), "d": torch.ones(2, 2)}
    entries = [stored_entry(tmp_path, name, info) for name, info in header.items()]
    entries += [tensor_entry(name, tensor) for name, tensor in new.items()]
    write_tensors(tmp_path / "target", iter(entries), 4096)
    found = load_file(tmp_path / "target")
    assert found.keys() == {*stored, *new}
    assert all(torch.equal(found[name], tensor) for name, tensor in {**stored, **new}.items())


def test_a_file_that_ends_early_is_said(tmp_path: Path) -> None:
    save_file({"a": torch.randn(30, 4)}, tmp_path / "source")
    info = read_header(tmp_path / "source")["a"]
    os.truncate(tmp_path / "source", info.end - 8)
    with pytest.raises(CorruptCheckpoint, match="ends before"):
        write_tensors(tmp_path / "target", iter([stored_entry(tmp_path, "a", info)]), 4096)


def test_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    target = tmp_path / "new" / "deep"
    with pytest.raises(RuntimeError), partial_directory(target) as partial:
        (partial / "file").touch()
        raise RuntimeError
    assert not (tmp_path / "new").exists()
    check_target(target, 1)
    assert not (tmp_path / "new").exists()
    with pytest.raises(InvalidRequest, match="free"):
        check_target(target, 1 << 60)
