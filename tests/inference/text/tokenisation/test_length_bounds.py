"""Texts that are too long for a context are refused before they are tokenised, and no others."""

from __future__ import annotations

import random

import pytest

from inference.errors import PromptTooLong
from inference.text.tokenisation.length_bounds import CHARS_PER_TOKEN, check_text_length, utf8_length
from inference.text.tokenisation.tokenizer import load_tokenizer
from inference.values.tokenizer_spec import TokenizerSpec

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "can't",
    "jump,",
    "over",
    "12345",
    "lazy",
    "dogs!",
    "你好",
    "héllo",
    "🙂",
    "x",
    "=",
    "[1,",
    "2];",
]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(TokenizerSpec("builtin", 100331, name="cl100k_base"))


def test_bytes_of_utf8_are_counted():
    assert [utf8_length(text) for text in ("", "abc", "é", "你好", "🙂", "\ud800")] == [0, 3, 2, 6, 4, 3]


@pytest.mark.parametrize(
    ("texts", "is_refused"), [(["é" * 20], False), (["é" * 21], True), (["é" * 15, "abcdefghijk"], True)]
)
def test_more_bytes_than_the_longest_tokens_have_are_refused(texts, is_refused):
    def check():
        check_text_length(texts, 4, longest_token_bytes=10, count_tokens=None, noun="prompt")

    if is_refused:
        words = (
            rf"maximum context length is 4 tokens\. However, your prompt resulted in {sum(map(len, texts))} characters"
        )
        with pytest.raises(PromptTooLong, match=words):
            check()
    else:
        check()


def test_a_long_text_is_refused_by_its_beginning(tokenizer):
    counted = []

    def count(text):
        counted.append(len(text))
        return len(tokenizer.encode(text))

    with pytest.raises(PromptTooLong) as caught:
        check_text_length(["ab cd " * 2000], 100, longest_token_bytes=128, count_tokens=count, noun="messages")
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert counted and sum(counted) <= CHARS_PER_TOKEN * 100


def test_no_text_that_fits_is_refused(tokenizer):
    draw = random.Random(5)
    for _ in range(200):
        text = draw.choice((" ", "  ", "\n", "")).join(draw.choices(WORDS, k=draw.randint(20, 300)))
        text += draw.choice(("", " " * 3000, "word " * 10))
        tokenizer.check_length([text], len(tokenizer.encode(text)), "prompt")


def test_spaces_that_fit_into_few_tokens_are_taken(tokenizer):
    text = "a b" + " " * 8000 + "c"
    num_tokens = len(tokenizer.encode(text))
    assert num_tokens * CHARS_PER_TOKEN < len(text)
    tokenizer.check_length([text], num_tokens, "prompt")
