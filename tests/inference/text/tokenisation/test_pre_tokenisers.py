"""Expressions by name: those that another library has too are the same, all compile, unknown names are refused."""

from __future__ import annotations

import pytest
import splintr
from tokenizers import Regex, pre_tokenizers

from inference.errors import UnsupportedFormat
from inference.text.tokenisation.pre_tokenisers import PRE_TOKENISERS, pre_tokeniser
from tests.inference.text.tokenisation.vocabularies import SAMPLES

DIGITS = "a1 22 333 4444"


def cut(name: str, text: str) -> list[str]:
    splits = pre_tokeniser(name, "a.gguf").splits
    steps = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in splits]
    return [part for part, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]


@pytest.mark.parametrize("name", sorted(PRE_TOKENISERS))
def test_every_expression_keeps_the_whole_text(name):
    for text in SAMPLES:
        assert "".join(cut(name, text)) == text


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("gpt-2", splintr.GPT2_PATTERN),
        ("llama-bpe", splintr.LLAMA3_PATTERN),
        ("qwen2", splintr.QWEN2_PATTERN),
        ("gpt-4o", splintr.O200K_BASE_PATTERN),
    ],
)
def test_texts_are_cut_as_by_another_library(name, pattern):
    other = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    for text in (*SAMPLES, DIGITS):
        assert cut(name, text) == [part for part, _ in other.pre_tokenize_str(text)]


def test_digits_go_by_the_name():
    assert cut("smollm", DIGITS) == ["a", "1", " ", "2", "2", " ", "3", "3", "3", " ", "4", "4", "4", "4"]
    assert cut("dbrx", DIGITS)[-4:] == ["333", " ", "444", "4"]
    assert cut("gpt-2", DIGITS) == ["a", "1", " 22", " 333", " 4444"]
    assert cut("deepseek-v3", "x=12345") == ["x", "=", "123", "45"]


def test_words_and_lines_go_by_the_name():
    text = "one two  three.\n\nfour"
    assert cut("exaone-moe", text) == ["one two", " ", " three", ".\n", "\n", "four"]
    assert cut("seed-coder", text) == ["one", " two", " ", " three", ".", "\n\n", "four"]
    assert cut("solar-open", text) == ["one", " two", " ", " three", ".\n\n", "four"]
    assert cut("youtu", "日本語 12あ") == ["日本語", " ", "1", "2", "あ"]


def test_lines_and_digits_of_newer_models():
    text = "12 a.\n \n\nb"
    assert cut("bailingmoe2", text) == ["1", "2", " a", ".\n", " \n\n", "b"]
    assert cut("laguna", text) == ["1", "2", " a", ".", "\n", " ", "\n\n", "b"]
    assert cut("minicpm5", "x 12345")[-2:] == ["123", "45"]
    assert cut("bloom", "ab, cd 12") == ["ab", ",", " cd", " 12"]


def test_kimis_chinese_characters_are_apart():
    assert cut("kimi-k2", "Hello世界 it's 日本語xY 12345!/\n") == [
        "Hello", "世界", " it's", " ", "日本語", "x", "Y", " ", "123", "45", "!/\n",
    ]  # fmt: skip


def test_jais_2_cuts_spaces_by_powers_of_2():
    assert [len(part) for part in cut("jais-2", "a" + " " * 24 + "b")] == [1, 16, 4, 2, 1, 2]


def test_whole_words_come_first_by_the_name():
    assert {name for name, found in PRE_TOKENISERS.items() if found.whole_words_first} >= {"glm4", "youtu", "tekken"}
    assert not PRE_TOKENISERS["chatglm-bpe"].whole_words_first


def test_smollm_is_cut_as_its_own_tokenizer_does():
    library = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)])
    for text in (*SAMPLES, DIGITS):
        spans = [span for _, span in library.pre_tokenize_str(text)]
        assert [text[begin:end] for begin, end in spans] == cut("smollm", text)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(UnsupportedFormat, match=r"a\.gguf has the pre-tokeniser 'new'.*known are a.x-4.0, bailingmoe"):
        pre_tokeniser("new", "a.gguf")
