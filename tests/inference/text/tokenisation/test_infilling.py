"""Which vocabularies can fill a gap, and in which order the parts go."""

from __future__ import annotations

import pytest

from inference.text.tokenisation.infilling import infill_tokens
from inference.text.tokenisation.tokenizer import load_tokenizer
from inference.values.tokenizer_spec import TokenizerSpec


class Vocabulary:
    """Knows some control tokens, ids from 100 on; other characters are their own ids."""

    has_text = True

    def __init__(self, *control: str) -> None:
        self.control = {text: 100 + number for number, text in enumerate(control)}

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        if parse_special and text in self.control:
            return [self.control[text]]
        return [ord(character) for character in text]


@pytest.mark.parametrize(
    ("control", "prompt"),
    [
        (("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), [100, 1, 2, 101, 3, 102]),
        (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), [100, 1, 2, 101, 3, 102]),
        (("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"), [100, 1, 2, 101, 3, 102]),
        (("▁<PRE>", "▁<SUF>", "▁<MID>"), [100, 1, 2, 101, 3, 102]),
        (("[PREFIX]", "[SUFFIX]"), [101, 3, 100, 1, 2]),
    ],
)
def test_parts_in_the_order_of_the_family(control, prompt):
    tokens = infill_tokens(Vocabulary(*control))
    assert tokens is not None
    assert tokens.prompt([1, 2], [3]) == prompt
    assert set(tokens.endings) == set(range(100, 100 + len(control)))


def test_endings_of_the_vocabulary_are_known():
    tokens = infill_tokens(Vocabulary("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<|endoftext|>", "<file_sep>"))
    assert tokens is not None
    assert {103, 104} <= set(tokens.endings)


@pytest.mark.parametrize("control", [(), ("<|fim_prefix|>", "<|fim_suffix|>"), ("[PREFIX]",)])
def test_an_incomplete_set_is_none(control):
    assert infill_tokens(Vocabulary(*control)) is None


def test_built_in_vocabularies():
    with_tokens = load_tokenizer(TokenizerSpec("builtin", 100331, name="cl100k_base"))
    found = infill_tokens(with_tokens)
    assert found is not None
    assert with_tokens.decode([found.before_prefix], skip_special_tokens=False) == "<|fim_prefix|>"
    assert infill_tokens(load_tokenizer(TokenizerSpec("none", 50))) is None
