"""An adapter's directory or file, and what is said of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.errors import CheckpointError
from models_registry.detection.adapter_files import read_adapter
from tests.inference.llm.adapter_writing import factors, write_adapter


def test_a_directory_and_its_file_are_the_same(tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "a")
    found = read_adapter(path)
    assert found == read_adapter(path / "adapter_model.safetensors")
    assert found.config.rank == 4 and found.tensors.keys() == factors(0).keys() and found.tokenizers == ()
    assert found.size_bytes == sum(tensor.nbytes for tensor in factors(0).values())
    (path / "tokenizer.json").write_text("{}")
    assert read_adapter(path).tokenizers == (path / "tokenizer.json",)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lambda path: (path / "adapter_config.json").unlink(), "no adapter_config.json beside"),
        (lambda path: (path / "adapter_config.json").write_text("[]"), "a JSON object; copy the adapter again"),
        (lambda path: (path / "adapter_config.json").write_text('{"r": '), r"is not JSON: .*; copy the adapter again"),
        (lambda path: (path / "adapter_model.safetensors").write_bytes(b""), "has 0 bytes.*; copy the adapter again"),
        (lambda path: (path / "adapter_config.json").write_text(json.dumps({"r": -1})), "a rank from 1"),
        (lambda path: (path / "adapter_model.safetensors").unlink(), "has no adapter_model.safetensors"),
        (lambda path: (path / "adapter_model.safetensors").write_bytes(b"PK\x03\x04" + b"0" * 40), "zip archive"),
        (lambda path: (path / "adapter_model.safetensors").rename(path / "adapter_model.bin"), "a pickle"),
    ],
)
def test_broken_directories_are_refused(tmp_path: Path, broken, words: str) -> None:
    path = write_adapter(tmp_path / "a")
    broken(path)
    with pytest.raises(CheckpointError, match=words):
        read_adapter(path)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither a directory nor a file"):
        read_adapter(tmp_path / "nothing")
