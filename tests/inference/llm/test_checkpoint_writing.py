"""Writing a checkpoint's directory: complete or not there."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.errors import CorruptCheckpoint, InvalidRequest
from inference.llm import checkpoint_writing
from inference.llm.checkpoint_writing import (
    Entry,
    check_target,
    computed_entry,
    num_shards,
    partial_directory,
    publish,
    stored_entry,
    write_tensors,
    write_weights,
)
from models_registry.detection.safetensors_header import read_header


def tensor_entry(name: str, tensor: torch.Tensor) -> Entry:
    return computed_entry(name, tensor.dtype, tensor.shape, lambda: tensor)


def test_stored_and_new_tensors_lie_in_one_file(tmp_path: Path) -> None:
    stored = {"a": torch.randn(3, 4), "b": torch.randn(5).bfloat16()}
    save_file(stored, tmp_path / "source")
    header = read_header(tmp_path / "source")
    new = {"c": torch.arange(4, dtype=torch.float16), "d": torch.ones(2, 2)}
    entries = [stored_entry(tmp_path, name, info) for name, info in header.items()]
    entries += [tensor_entry(name, tensor) for name, tensor in new.items()]
    write_tensors(tmp_path / "target", entries)
    found = load_file(tmp_path / "target")
    assert found.keys() == {*stored, *new}
    assert all(torch.equal(found[name], tensor) for name, tensor in {**stored, **new}.items())


def test_tensors_lie_in_files_of_bounded_size(tmp_path: Path) -> None:
    tensors = {name: torch.randn(10) for name in "abcde"} | {"large": torch.randn(100)}
    entries = [tensor_entry(name, tensor) for name, tensor in tensors.items()]
    names, size = write_weights(tmp_path, entries, shard_bytes=100)
    *shards, index = names
    assert shards == [f"model-{number:05}-of-00004.safetensors" for number in range(1, 5)]
    content = json.loads((tmp_path / index).read_text())
    found = {name: load_file(tmp_path / file)[name] for name, file in content["weight_map"].items()}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert content["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    assert size == sum((tmp_path / file).stat().st_size for file in shards)
    assert num_shards({name: tensor.nbytes for name, tensor in tensors.items()}, 100) == 4


def test_headers_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_writing, "MAX_HEADER_BYTES", 400)
    names, _ = write_weights(tmp_path, [tensor_entry(f"t{number}", torch.ones(1)) for number in range(10)])
    assert len(names) == 5, "three entries each, and the index"


def test_what_a_killed_process_moved_is_removed(tmp_path: Path) -> None:
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    partial = tmp_path / f".partial-{int(child.stdout)}"
    partial.mkdir()
    for name in ("moved.safetensors", "config.json"):
        (partial / name).touch()
    publish(partial, tmp_path, ["config.json", "moved.safetensors"])
    check = pytest.raises(InvalidRequest, match="isn't an empty directory")
    with check:  # complete, so it stays
        check_target(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "moved.safetensors"]
    partial.mkdir()
    (tmp_path / "config.json").rename(partial / "config.json")
    (partial / "moved.json").write_text('["config.json", "moved.safetensors", "../other"]')
    check_target(tmp_path, 1)
    assert not list(tmp_path.iterdir())


def test_what_a_process_of_the_same_number_left_is_removed(tmp_path: Path) -> None:
    """In a container every process may have the number of the one that was killed."""
    partial = tmp_path / f".partial-{os.getpid()}"
    partial.mkdir()
    (partial / "config.json").touch()
    (tmp_path / "moved.safetensors").touch()
    (partial / "moved.json").write_text('["config.json", "moved.safetensors"]')
    check_target(tmp_path, 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [PermissionError, None], ids=["another account's", "running"])
def test_what_another_process_writes_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError] | None
) -> None:
    (tmp_path / ".partial-1").mkdir()

    def kill(pid: int, signal: int) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(os, "kill", kill)
    with pytest.raises(InvalidRequest, match="isn't an empty directory"):
        check_target(tmp_path, 1)
    assert (tmp_path / ".partial-1").is_dir()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_what_was_moved_is_removed_if_the_rest_cant_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    rename, names = Path.rename, ["config.json", "model.safetensors"]

    def fail_at_config(path: Path, to: Path) -> Path:
        if path.name == "config.json":
            raise error
        return rename(path, to)

    target = tmp_path / "new"
    monkeypatch.setattr(Path, "rename", fail_at_config)
    with pytest.raises((InvalidRequest, KeyboardInterrupt)), partial_directory(target) as partial:
        for name in names:
            (partial / name).touch()
        publish(partial, target, names)
    assert not target.exists()
    monkeypatch.undo()
    with partial_directory(target) as partial:
        for name in (*names, "other"):
            (partial / name).touch()
        publish(partial, target, names)
    assert sorted(path.name for path in target.iterdir()) == names


def test_a_file_that_ends_early_is_said(tmp_path: Path) -> None:
    save_file({"a": torch.randn(30, 4)}, tmp_path / "source")
    info = read_header(tmp_path / "source")["a"]
    os.truncate(tmp_path / "source", info.end - 8)
    with pytest.raises(CorruptCheckpoint, match="ends before"):
        write_tensors(tmp_path / "target", [stored_entry(tmp_path, "a", info)])


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
