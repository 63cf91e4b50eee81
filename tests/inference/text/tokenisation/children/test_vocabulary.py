"""The child of vocabulary files, called in this process: what it tells of a vocabulary, and its refusals."""

from __future__ import annotations

import pytest

from inference.text.tokenisation.children.loop import Refused
from inference.text.tokenisation.children.vocabulary import Codec
from tests.inference.text.tokenisation.file_vocabularies import write_gguf


@pytest.fixture
def codec(tmp_path) -> Codec:
    """Tokens of two letters, with a control token whose text is an ordinary word."""
    keys = {"pre": "llama-bpe", "token_type": [1, 1, 1, 3, 5, 4], "merges": ["a b"]}
    path = write_gguf(tmp_path / "a.gguf", "gpt2", ["a", "b", "ab", "ba", "aa", "bb"], keys)
    found = Codec()
    assert found.handle({"path": str(path), "kind": "gguf", "added_tokens": {}}) == {}
    return found


def encode(codec: Codec, text: str, *, parse_special: bool = False) -> list[int]:
    return codec.handle({"pieces": [(text, parse_special)], "first": True})["ids"]


def test_words_merges_and_tokens_of_other_kinds(codec):
    assert encode(codec, "ab") == [2]
    assert encode(codec, "abb") == [0, 5]  # user-defined tokens are cut out first
    assert encode(codec, "aa") == [0, 0]  # unused
    assert encode(codec, "ba") == [1, 0]  # a control token, even though whole words come first
    assert encode(codec, "ba", parse_special=True) == [3]


def test_what_it_tells(codec):
    found = codec.handle({"vocab_size": 5})
    assert found["tokens"] == ["a", "b", "ab", "", None]
    assert (found["special"], found["longest_token_bytes"], found["space_prefix"]) == ({"ba": 3}, 2, False)
    assert codec.handle({"vocab_size": 3})["special"] == {}


def test_errors_of_the_file_are_refusals(tmp_path):
    path = write_gguf(tmp_path / "a.gguf", "rwkv", ["a"])
    with pytest.raises(Refused, match="kind 'rwkv'"):
        Codec().handle({"path": str(path), "kind": "gguf", "added_tokens": {}})


def test_each_piece_knows_what_is_before_it(codec, monkeypatch):
    """Some vocabularies put a space in front of a text that nothing, or a control token, is before."""
    seen: list[tuple[str, bool]] = []
    encode = codec._encoder.encode

    def noted(text: str, parse_special: bool, first: bool) -> list[int]:
        seen.append((text, first))
        return encode(text, parse_special, first)

    monkeypatch.setattr(codec._encoder, "encode", noted)
    pieces = [("", False), ("a", False), ("ba", True), ("b", False), ("a", False)]
    assert codec.handle({"pieces": pieces, "first": True})["ids"] == [0, 3, 1, 0]
    assert seen == [("", True), ("a", True), ("ba", False), ("b", True), ("a", False)]
