"""Vocabularies as values: bytes of tokens, kinds of tokens, contradictions."""

from __future__ import annotations

import pytest

from inference.errors import CorruptCheckpoint
from inference.text.tokenisation.vocabulary import MAX_TOKEN_BYTES, TokenType, Vocabulary, control_types, from_alphabet

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = TokenType


def test_bytes_of_each_kind():
    vocabulary = Vocabulary(
        "a", "scored_bpe", ("<unk>", "<s>", "▁a", "  ", "x", "<0x41>"), (UNKNOWN, CONTROL, NORMAL, USER, UNUSED, BYTE),
        scores=(0.0,) * 6,
    )  # fmt: skip
    assert vocabulary.token_bytes() == [b"", b"", b" a", b"  ", None, b"A"]
    assert vocabulary.byte_ids() == {0x41: 5}
    assert vocabulary.control_tokens() == {"<unk>": 0, "<s>": 1}
    assert vocabulary.user_tokens() == {"  ": 3}


def test_bytes_in_the_alphabet():
    vocabulary = Vocabulary("a", "byte_bpe", ("Ġa", "é", "é", "Ċ"), (NORMAL, NORMAL, USER, NORMAL))
    assert vocabulary.token_bytes() == [b" a", b"\xe9", "é".encode(), b"\n"]
    assert vocabulary.byte_ids() == {0xE9: 1, 0x0A: 3}
    assert from_alphabet("a b") == b"a b"


@pytest.mark.parametrize(
    ("text", "is_control"),
    [
        ("<|im_end|>", True), ("<｜User｜>", True), ("</s>", True), ("[INST]", True), ("<end_of_turn>", True),
        ("<tool_call>", False), ("<table>", False), ("[a]", False), ("<|", False), ("named", True),
    ],
)  # fmt: skip
def test_tokens_that_control_a_chat(text, is_control):
    tokens = (text, "x", "y")
    named = frozenset({0} if text == "named" else set())
    for kind in (NORMAL, USER):
        assert control_types(tokens, (kind, NORMAL, UNUSED), named)[0] == (CONTROL if is_control else kind)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"tokens": ()}, "0 tokens"),
        ({"types": ()}, "1 tokens and 0 types"),
        ({"algorithm": "unigram"}, "1 tokens and 0 scores"),
        ({"unknown_id": 7}, "the id 7"),
        ({"tokens": ("a" * (MAX_TOKEN_BYTES + 1),)}, "the limit is"),
    ],
)
def test_contradictions_are_refused(changes, word):
    with pytest.raises(CorruptCheckpoint, match=word):
        Vocabulary(**{"name": "a", "algorithm": "byte_bpe", "tokens": ("a",), "types": (NORMAL,), **changes})
