"""Tokens for people: cutting, searching, unused rows, and signs for what can't be seen."""

from __future__ import annotations

import pytest

from inference.pages import tokens
from inference.text.tokenisation.tokenizer import Tokenizer, load_tokenizer
from inference.values.tokenizer_spec import TokenizerSpec

EMOJI = "🙂"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(TokenizerSpec("builtin", 100_400, name="cl100k_base"))


def test_a_text_is_cut_as_a_prompt_is(tokenizer: Tokenizer) -> None:
    found = tokens.cut(tokenizer, f"a\nb {EMOJI}", add_special_tokens=False, parse_special=False)
    assert [token.id for token in found.tokens] == tokenizer.encode(f"a\nb {EMOJI}", add_special_tokens=False)
    assert (found.num_chars, found.num_bytes) == (5, 8)
    assert "".join(token.bytes.replace(" ", "") for token in found.tokens) == f"a\nb {EMOJI}".encode().hex()
    assert found.tokens[1].text == "↵" and found.tokens[1].breaks
    assert [token.colour for token in found.tokens[:6]] == [0, 1, 2, 3, 4, 0][: len(found.tokens)]


def test_control_tokens_are_read_only_where_asked(tokenizer: Tokenizer) -> None:
    plain, control = (
        tokens.cut(tokenizer, "<|endoftext|>", add_special_tokens=False, parse_special=parse).tokens
        for parse in (False, True)
    )
    assert len(plain) > 1 and {token.kind for token in plain} == {"ordinary"}
    assert [(token.id, token.text, token.kind) for token in control] == [(100257, "<|endoftext|>", "control")]


def test_long_texts_are_counted_whole_and_shown_in_part(tokenizer: Tokenizer) -> None:
    found = tokens.cut(tokenizer, "a b" * 2000, add_special_tokens=False, parse_special=False)
    assert found.count > tokens.MAX_TOKENS_SHOWN == len(found.tokens)


def test_the_vocabulary_is_searched_by_text_and_id(tokenizer: Tokenizer) -> None:
    page = tokens.search(tokenizer, "MODULE", "all", offset=0, limit=5)
    assert page.count > 5 == len(page.tokens)
    assert all("module" in token.text.lower() for token in page.tokens)
    rest = tokens.search(tokenizer, "MODULE", "all", offset=5, limit=5).tokens
    assert not {token.id for token in page.tokens} & {token.id for token in rest}
    assert [token.id for token in tokens.search(tokenizer, "12-14", "all", offset=0, limit=9).tokens][:3] == [
        12,
        13,
        14,
    ]
    assert tokens.search(tokenizer, "100", "all", offset=0, limit=1).tokens[0].id == 100
    everything = tokens.search(tokenizer, "", "all", offset=100_390, limit=50)
    assert everything.count == 100_400 and len(everything.tokens) == 10
    assert tokens.search(tokenizer, "endoftext", "control", offset=0, limit=9).count == 1
    assert tokens.search(tokenizer, "999999999", "all", offset=0, limit=9).count == 0


def test_unused_rows_are_ranges(tokenizer: Tokenizer) -> None:
    ranges = tokens.unused_ranges(tokenizer)
    assert sum(last - first + 1 for first, last in ranges) == len(tokenizer.invalid_token_ids)
    assert ranges[-1][1] == 100_399 and all(first <= last for first, last in ranges)
    found = tokens.search(tokenizer, "", "unused", offset=0, limit=3)
    assert found.count == len(tokenizer.invalid_token_ids) and {token.kind for token in found.tokens} == {"unused"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b" a", " a"),
        ("\u202egnp".encode(), "\\u202egnp"),
        (b"\x00\x1b[31m", "\\u0000\\u001b[31m"),
        (b"\xf0\x9f", "\\xf0\\x9f"),
        (b"\r\n\t", "␍↵⇥"),
        (b"a" * 200, "a" * 79 + "…"),
    ],
)
def test_what_cannot_be_seen_is_written_out(content: bytes, text: str) -> None:
    assert tokens.shown(content) == text
