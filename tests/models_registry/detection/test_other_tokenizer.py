"""The tokenizer of another checkpoint: each kind of file, sizes that don't fit, and where the template comes from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import CorruptCheckpoint, InvalidRequest
from inference.values.tokenizer_spec import TokenizerSpec
from models_registry.detection.child import inspect_in_child
from models_registry.detection.inspection import Inspection, inspect_checkpoint
from models_registry.detection.other_tokenizer import files_of_other
from tests.inference.text.tokenisation.file_vocabularies import pieces, write_pieces_as_gguf
from tests.models_registry.detection.builders import choose, copy_bare_demo, fact


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return shutil.copytree(PREBUILT_DIRECTORY, tmp_path / "other")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The demo model without its tokenizer."""
    return copy_bare_demo(tmp_path / "bare")


def num_ids(directory: Path) -> int:
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    return 1 + max([*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])])


def borrow(directory: Path, rows: int, other: Path, **overrides):
    return choose(directory, rows, overrides={"tokenizer_from": str(other), **overrides})


def test_bare_weights_get_text_ends_and_template(bare: Path, other: Path) -> None:
    assert inspect_checkpoint(bare).tokenizer.kind == "none"
    found = inspect_in_child(bare, overrides={"tokenizer_from": str(other)})
    own = inspect_checkpoint(other).tokenizer
    assert found.tokenizer.path == str(other / "tokenizer.json")
    assert (found.tokenizer.eos_token_ids, found.tokenizer.chat_template) == (own.eos_token_ids, own.chat_template)
    assert fact(found, "tokenizer_from").value == str(other)
    assert fact(found, "vocabulary").value == "tokenizer.json"
    assert [file.path for file in found.files if file.role == "tokenizer"] == [str(other / "tokenizer.json")]
    assert str(other / "tokenizer.json") not in found.other_files
    assert Inspection.from_dict(found.to_dict()) == found


def test_a_template_of_its_own_comes_first(bare: Path, other: Path) -> None:
    (bare / "chat_template.jinja").write_text("{{ messages }}")
    assert (
        inspect_checkpoint(bare, overrides={"tokenizer_from": str(other)}).tokenizer.chat_template == "{{ messages }}"
    )


def test_more_tokens_than_rows_are_refused_with_both_numbers(tmp_path: Path, other: Path) -> None:
    number = num_ids(other)
    assert borrow(tmp_path / "a", number, other)[0].kind == "huggingface"
    with pytest.raises(InvalidRequest, match=f"has {number} tokens, but the embedding has {number - 1} rows") as caught:
        borrow(tmp_path / "a", number - 1, other)
    assert caught.value.param == "tokenizer_from"


def test_far_fewer_tokens_than_rows_are_a_warning(tmp_path: Path, other: Path) -> None:
    assert not borrow(tmp_path / "a", num_ids(other), other)[1].warnings
    (warning,) = borrow(tmp_path / "a", 32_000, other)[1].warnings
    assert f"{num_ids(other)} tokens, the embedding 32000 rows" in warning


@pytest.mark.parametrize(("name", "kind"), [("tokenizer.model", "sentencepiece"), ("m.gguf", "gguf")])
def test_vocabularies_in_files_fit_or_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    model = pieces("bpe")
    if kind == "gguf":
        write_pieces_as_gguf(other / name, model, "llama")
    else:
        (other / name).write_bytes(model)
        (other / "model.safetensors").touch()
    found, _ = borrow(tmp_path / "a", 640, other)
    assert (found.kind, found.path) == (kind, str(other / name))
    with pytest.raises(CorruptCheckpoint, match="640 tokens, but the embedding has 639 rows"):
        borrow(tmp_path / "a", 639, other)


def test_ranks_and_built_in_names(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").touch()
    (other / "own.tiktoken").write_bytes(b"YQ== 0\nYg== 1\nYw== 41\n")
    assert borrow(tmp_path / "a", 42, other)[0].kind == "tiktoken"
    with pytest.raises(InvalidRequest, match="42 tokens, but the embedding has 41 rows"):
        borrow(tmp_path / "a", 41, other)
    (other / "own.tiktoken").rename(other / "llama3.tiktoken")
    found, _ = borrow(tmp_path / "a", 128_256, other)
    assert (found.kind, found.name, files_of_other(found)) == ("builtin", "llama3", ())
    with pytest.raises(InvalidRequest, match="128256 tokens, but the embedding has 128000 rows"):
        borrow(tmp_path / "a", 128_000, other)


def test_what_names_no_tokenizer_is_refused(tmp_path: Path, bare: Path, other: Path) -> None:
    (other / "tokenizer.json").unlink()
    for place, message in (
        (other, "other has no tokenizer.json"),
        (tmp_path / "gone", "gone does not exist"),
        (bare, "names the checkpoint itself"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            inspect_checkpoint(bare, overrides={"tokenizer_from": str(place)})
    with pytest.raises(InvalidRequest, match="can't both be set"):
        inspect_checkpoint(bare, overrides={"tokenizer_from": str(other), "vocabulary": "llama3"})


def test_a_spec_without_a_file_has_no_files() -> None:
    assert files_of_other(TokenizerSpec("none", 5)) == ()
