"""Encoding and decoding with the built-in vocabularies, against tiktoken; ids that are checked."""

from __future__ import annotations

from typing import Any

import pytest
import splintr
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from inference.errors import (
    InvalidRequest,
    InvalidTokenIds,
    UnsupportedFeature,
    UnsupportedFormat,
)
from inference.text.tokenisation.decoding import byte_alphabet
from inference.text.tokenisation.tokenizer import Tokenizer, load_tokenizer
from inference.values.tokenizer_spec import VOCABULARIES, TokenizerSpec
from tests.inference.text.tokenisation.vocabularies import PATTERNS, SAMPLES

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)


def builtin(name: str, rows: int | None = None, **options: Any) -> Tokenizer:
    return load_tokenizer(TokenizerSpec("builtin", rows or VOCABULARIES[name][1], name=name, **options))


def tiktoken_oracle(name: str) -> tiktoken.Encoding:
    """tiktoken over the ranks that splintr holds."""
    library = splintr.Tokenizer.from_pretrained(name)
    special = set(library.special_tokens().values())
    ranks = {}
    for token_id in range(splintr.base_vocab_size(name)):
        if token_id not in special:
            try:
                ranks[library.decode_token_bytes(token_id)] = token_id
            except ValueError:
                continue
    return tiktoken.Encoding(
        name, pat_str=PATTERNS[name], mergeable_ranks=ranks, special_tokens=library.special_tokens()
    )


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_builtin_encodes_as_tiktoken(name: str) -> None:
    tokenizer, oracle = builtin(name), tiktoken_oracle(name)
    for text in SAMPLES:
        ids = tokenizer.encode(text)
        assert ids == oracle.encode_ordinary(text)
        assert tokenizer.decode(ids) == text
        special_ids = tokenizer.encode(text, parse_special=True)
        assert special_ids == oracle.encode(text, allowed_special="all")
        assert tokenizer.decode(special_ids, skip_special_tokens=False) == text


def test_deepseek_encodes_as_a_byte_level_tokenizer_with_its_split() -> None:
    """The three-stage split of DeepSeek's own tokenizer.json, over the ranks that splintr holds."""
    tokenizer = builtin("deepseek_v3")
    alphabet = {byte: char for char, byte in byte_alphabet().items()}
    table = {}
    for token_id in range(128_000):
        if token_id not in tokenizer.special_ids and (data := tokenizer.token_bytes(token_id)):
            table[data] = token_id
    merges = []
    for data in table:
        # The pair that makes a token is the last split whose parts merge before it.
        if len(data) > 1:
            parts = [bytes([byte]) for byte in data]
            while len(parts) > 2:
                ranks = [table.get(parts[i] + parts[i + 1], 1 << 30) for i in range(len(parts) - 1)]
                best = min(range(len(ranks)), key=ranks.__getitem__)
                if ranks[best] >= table[data]:
                    break
                parts[best : best + 2] = [parts[best] + parts[best + 1]]
            if len(parts) == 2:
                merges.append((parts[0], parts[1], table[data]))
    merges.sort(key=lambda item: item[2])

    def printable(data: bytes) -> str:
        return "".join(alphabet[byte] for byte in data)

    oracle = tokenizers.Tokenizer(
        models.BPE(
            vocab={printable(data): token_id for data, token_id in table.items()},
            merges=[(printable(left), printable(right)) for left, right, _ in merges],
        )
    )
    punctuation = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    words = (
        punctuation + "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
    )
    oracle.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
            for pattern in ("\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", words)
        ]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    for text in SAMPLES:
        assert tokenizer.encode(text) == oracle.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", sorted(VOCABULARIES))
@settings(max_examples=50, deadline=None)
@given(text=ANY_TEXT)
def test_builtin_round_trip(name: str, text: str) -> None:
    tokenizer = _cached(name)
    assert tokenizer.decode(tokenizer.encode(text)) == text


_LOADED: dict[str, Tokenizer] = {}


def _cached(name: str) -> Tokenizer:
    if name not in _LOADED:
        _LOADED[name] = builtin(name)
    return _LOADED[name]


def test_long_text_takes_the_other_path_to_the_same_ids() -> None:
    tokenizer, oracle = builtin("cl100k_base"), tiktoken_oracle("cl100k_base")
    text = "".join(SAMPLES) * 40
    assert tokenizer.encode(text) == oracle.encode_ordinary(text)
    plain = "The quick brown fox. 1, 2, 3 and naïve 👍\n" * 1000
    assert tokenizer.encode(plain) == oracle.encode_ordinary(plain)


@pytest.mark.parametrize(
    ("name", "token", "token_id"),
    [
        ("cl100k_base", "<|system|>", 100277),
        ("cl100k_base", "<|/summary|>", 100330),
        ("o200k_base", "<|assistant|>", 200021),
        ("llama3", "<|think|>", 128305),
        ("llama3", "<|image|>", 128256),
        ("deepseek_v3", "<|/think|>", 128906),
        ("deepseek_v3", "<think>", 128798),
    ],
)
def test_agent_tokens(name: str, token: str, token_id: int) -> None:
    tokenizer = builtin(name)
    assert tokenizer.encode(token, parse_special=True) == [token_id]
    assert len(tokenizer.encode(token)) > 1
    assert tokenizer.decode([token_id]) == ""
    assert tokenizer.decode([token_id], skip_special_tokens=False) == token


def test_agent_tokens_beyond_the_embedding_are_text() -> None:
    tokenizer = builtin("llama3", rows=128256)
    ids = tokenizer.encode("<|system|>hi<|eot_id|>", parse_special=True)
    assert max(ids) == 128009
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|system|>hi<|eot_id|>"
    partial = builtin("cl100k_base", rows=100315)
    assert partial.encode("<|system|>", parse_special=True) == [100277]
    assert len(partial.encode("<|/summary|>", parse_special=True)) > 1


def test_ids_without_a_token_are_listed_and_decode_to_nothing() -> None:
    tokenizer = builtin("cl100k_base")
    assert tokenizer.invalid_token_ids == (100256, *range(100261, 100276))
    assert tokenizer.decode([100256, 15339]) == "hello"
    padded = builtin("llama3", rows=128512)
    assert set(range(128354, 128512)) <= set(padded.invalid_token_ids)


def test_text_beyond_the_embedding_is_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidTokenIds, match="embedding has 1000 rows"):
        builtin("o200k_base", rows=1000).encode("internationalisation")


@pytest.mark.parametrize("bad", [[-1], [100331], [1, True], [1.0], ["1"], [2**70], [None]])
def test_token_id_prompts_are_checked(bad: list[Any]) -> None:
    with pytest.raises(InvalidTokenIds):
        _cached("cl100k_base").check_token_ids(bad)
    assert _cached("cl100k_base").check_token_ids([0, 100330]) == (0, 100330)


def test_exactly_one_bos() -> None:
    tokenizer = builtin("llama3", bos_token_id=128000)
    assert tokenizer.encode("hi").count(128000) == 1
    assert tokenizer.encode("<|begin_of_text|>hi", parse_special=True).count(128000) == 1
    assert tokenizer.encode("hi", add_special_tokens=False).count(128000) == 0
    assert tokenizer.encode("", add_special_tokens=True) == [128000]


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff", "a\0b"])
def test_surrogates_and_nul_are_bad_requests(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _cached("cl100k_base").encode(text)
    assert caught.value.http_status == 400


def test_unknown_builtin_is_refused() -> None:
    with pytest.raises(UnsupportedFormat, match="cl100k_base"):
        load_tokenizer(TokenizerSpec("builtin", 10, name="gemma2"))


def test_without_a_tokenizer_ids_work_and_text_is_refused() -> None:
    tokenizer = load_tokenizer(TokenizerSpec("none", 100))
    assert tokenizer.check_token_ids([1, 99]) == (1, 99)
    assert tokenizer.decode([1, 2]) == ""
    assert not tokenizer.has_text
    with pytest.raises(UnsupportedFeature, match="token ids"):
        tokenizer.encode("hi")
