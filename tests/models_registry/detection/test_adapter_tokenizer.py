"""An adapter's tokenizer beside its base's: which are compared, and what is said of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.errors import CorruptCheckpoint, UnsupportedFormat
from models_registry.detection.adapter_tokenizer import check_tokenizer, comparable_file
from models_registry.detection.xlora_files import read_files
from tests.inference.llm.adapter_writing import write_adapter, write_xlora
from tests.inference.text.tokenisation.file_vocabularies import pieces

BASE = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}}, "added_tokens": [{"id": 3, "content": "<s>"}]}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(BASE))
    return path


def test_tokenizers_of_two_formats_are_compared() -> None:
    for name in ("tokenizer.json", "tokenizer.model"):
        assert comparable_file(f"/srv/base/{name}") == Path(f"/srv/base/{name}")
    assert comparable_file("/srv/base/tekken.json") is comparable_file(None) is None


@pytest.mark.parametrize(
    ("content", "token"),
    [
        (BASE, ""),
        ({"model": {"vocab": {"b": 1, "new": 7}}}, ""),
        ({"model": {"vocab": {"a": 1, "b": 0}}}, "'a' the number 1, the base's gives it 0"),
        ({"model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.0], ["c", -2.0]]}}, ""),
        ({"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.0]]}}, "'a' the number 1"),
        ({"added_tokens": [{"id": 4, "content": "<s>"}]}, "'<s>' the number 4"),
        ({"model": {"vocab": [5, [], [7, 0.0]]}, "added_tokens": [5, {"id": "x"}]}, ""),
    ],
)
def test_tokens_have_the_bases_numbers(base: Path, tmp_path: Path, content: dict[str, Any], token: str) -> None:
    path = write_adapter(tmp_path / "sql", base_model_name_or_path="maker/base")
    (path / "tokenizer.json").write_text(json.dumps(content))
    check_tokenizer(read_files(path), None)
    if not token:
        check_tokenizer(read_files(path), base)
        return
    with pytest.raises(UnsupportedFormat, match=rf"another tokenizer.*{token}.*trained on, maker/base"):
        check_tokenizer(read_files(path), base)


def test_those_of_an_xloras_adapters_are_compared_and_broken_ones_said(base: Path, tmp_path: Path) -> None:
    path = write_xlora(tmp_path / "x")
    inner = path / "adapters" / "adapter_1" / "tokenizer.json"
    inner.write_text(json.dumps({"model": {"vocab": {"a": 2}}}))
    with pytest.raises(UnsupportedFormat, match="another tokenizer"):
        check_tokenizer(read_files(path), base)
    inner.write_text("{")
    with pytest.raises(CorruptCheckpoint, match=r"tokenizer\.json is not JSON.*; copy the adapter again"):
        check_tokenizer(read_files(path), base)


def test_a_vocab_json_is_compared_where_it_stands_alone(base: Path, tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "sql")
    vocabulary = path / "vocab.json"
    vocabulary.write_text(json.dumps({"a": 0, "b": 1, "new": 9, "odd": "x"}))
    check_tokenizer(read_files(path), base)
    vocabulary.write_text(json.dumps({"a": 0, "b": 7}))
    with pytest.raises(UnsupportedFormat, match=r"vocab\.json beside it gives the token 'b' the number 7, .* it 1"):
        check_tokenizer(read_files(path), base)
    (path / "tokenizer.json").write_text(json.dumps(BASE))
    check_tokenizer(read_files(path), base)


def test_a_tokenizer_model_is_compared_with_one_of_its_format(base: Path, tmp_path: Path) -> None:
    ours = tmp_path / "tokenizer.model"
    ours.write_bytes(pieces("bpe"))
    path = write_adapter(tmp_path / "sql")
    theirs = path / "tokenizer.model"
    theirs.write_bytes(pieces("bpe"))
    check_tokenizer(read_files(path), ours)
    theirs.write_bytes(pieces("unigram"))
    with pytest.raises(UnsupportedFormat, match=r"another tokenizer: tokenizer\.model beside it gives the token"):
        check_tokenizer(read_files(path), ours)
    check_tokenizer(read_files(path), base)  # of another format
    theirs.write_bytes(b"x")
    with pytest.raises(CorruptCheckpoint, match="is no SentencePiece model"):
        check_tokenizer(read_files(path), ours)


def test_a_list_of_ranks_is_compared_with_nothing(tmp_path: Path) -> None:
    ranks, ours = b"IQ== 0\nIg== 1\n", tmp_path / "tokenizer.model"
    path = write_adapter(tmp_path / "sql")
    for base_content, content in ((ranks, ranks), (ranks, pieces("bpe")), (pieces("bpe"), ranks)):
        ours.write_bytes(base_content)
        (path / "tokenizer.model").write_bytes(content)
        check_tokenizer(read_files(path), ours)
