"""Many pieces of a text: few calls of the child, the ids of single ones, and an end where they are too many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.errors import PromptTooLong
from inference.text.tokenisation.sandbox import Sandbox
from inference.text.tokenisation.tokenizer import PIECES_AT_ONCE, Tokenizer, load_tokenizer
from inference.values.tokenizer_spec import TokenizerSpec
from tests.inference.text.tokenisation.vocabularies import byte_level

PIECES = [("a b", True), ("<|im_end|>", False), ("<|im_end|>", True)] * PIECES_AT_ONCE


@pytest.fixture
def tokenizer(tmp_path: Path) -> Iterator[Tokenizer]:
    library = byte_level()
    path = tmp_path / "tokenizer.json"
    library.save(str(path))
    found = load_tokenizer(TokenizerSpec("huggingface", library.get_vocab_size(), path=str(path)))
    yield found
    found.close()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pieces of each call."""
    found: list[int] = []
    call = Sandbox.call

    def counted(self: Sandbox, payload: dict, **limits: float) -> dict:
        found.append(len(payload["pieces"]))
        return call(self, payload, **limits)

    monkeypatch.setattr(Sandbox, "call", counted)
    return found


def test_many_pieces_take_few_calls(tokenizer: Tokenizer, calls: list[int]) -> None:
    """A user's control tokens are pieces, and a message may have a million of them."""
    ids = tokenizer.encode_pieces(PIECES)
    assert calls == [PIECES_AT_ONCE] * 3
    single = [tokenizer.encode(text, parse_special=parse_special) for text, parse_special in PIECES[:3]]
    assert ids == [*single[0], *single[1], *single[2]] * PIECES_AT_ONCE
    assert single[2] == [tokenizer.special_tokens["<|im_end|>"]]
    assert not tokenizer.special_ids & set(single[1])


def test_pieces_behind_too_many_tokens_are_not_encoded(tokenizer: Tokenizer, calls: list[int]) -> None:
    with pytest.raises(PromptTooLong, match="maximum context length is 100 tokens"):
        tokenizer.encode_pieces(PIECES, max_tokens=100)
    assert calls == [PIECES_AT_ONCE]
    assert len(tokenizer.encode_pieces(PIECES[:PIECES_AT_ONCE], max_tokens=100)) > 100  # the caller says how many
