"""Sequence breakers: found in the tokens of a real tokenizer, wherever a text is cut into tokens."""

from __future__ import annotations

import pytest

from inference.text.tokenisation.sequence_breakers import TextBreakers
from inference.text.tokenisation.tokenizer import load_tokenizer
from inference.values.tokenizer_spec import TokenizerSpec


@pytest.fixture(scope="module")
def tokenizer():
    found = load_tokenizer(TokenizerSpec("builtin", 100331, name="cl100k_base"))
    yield found
    found.close()


def ends(tokenizer, text: str, *breakers: str) -> list[int]:
    """How many bytes of the text stand before the end of each token in which a breaker ends."""
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    found = TextBreakers(tokenizer, breakers)
    lengths = [len(b"".join(map(tokenizer.token_bytes, token_ids[:stop]))) for stop in range(1, len(token_ids) + 1)]
    return [lengths[stop - 1] for stop in range(1, len(token_ids) + 1) if found.ends_at(token_ids, stop)]


@pytest.mark.parametrize("text", ["\n", ":", '"', "*", "###", "User", "\n\n###", "ü", "🙂", "<|im_end|>"])
@pytest.mark.parametrize("around", [("", ""), ("Hello", " there"), ('say "', '" to:'), ("a\n", "\nb"), ("### ", "#")])
def test_a_text_is_found_wherever_it_is_written(tokenizer, text, around):
    whole = around[0] + text + around[1]
    border = len((around[0] + text).encode())
    assert any(found >= border for found in ends(tokenizer, whole, text))
    # One token holds the end of each occurrence.
    assert len(ends(tokenizer, whole, text)) <= whole.count(text) + whole.count("#")


def test_nothing_is_found_where_nothing_is(tokenizer):
    assert ends(tokenizer, "plain words, and more of them", "\n", ":", "###") == []
    assert (
        ends(
            tokenizer,
            "a: b",
        )
        == []
    )


def test_only_the_token_with_the_end_counts(tokenizer):
    assert ends(tokenizer, "one: two three", ":") == [4]
    assert ends(tokenizer, "User said User", "User said") == [9]
