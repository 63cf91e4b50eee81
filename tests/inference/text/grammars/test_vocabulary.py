"""Grammars over every kind of vocabulary: random walks through what is allowed end in text that matches."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher

from inference.errors import InvalidSamplingParams, UnsupportedFeature
from inference.text.grammars.compiler import GrammarCompiler
from inference.text.grammars.rules import source_of
from inference.text.tokenisation.tokenizer import Tokenizer, load_tokenizer
from inference.values.grammar import Grammar
from inference.values.tokenizer_spec import TokenizerSpec
from tests.inference.text.tokenisation.vocabularies import STYLES, TOKENS, write_ranks

SCHEMA = {
    "type": "object",
    "properties": {
        "the quick": {"enum": ["brown fox", "ünïcode 🙂", 3]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "words": {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 1, "maxItems": 3},
    },
    "required": ["the quick", "count", "words"],
    "additionalProperties": False,
}
REGEX = "(hello|the quick) (world|brown fox|🙂)[.!]{1,3}"


def specs(directory: Path) -> Iterator[tuple[str, TokenizerSpec]]:
    yield "cl100k_base", TokenizerSpec("builtin", 100_352, name="cl100k_base", eos_token_ids=(100_257,))
    yield "its beginning", TokenizerSpec("builtin", 1000, name="cl100k_base")
    yield "two ends", TokenizerSpec("builtin", 128_512, name="llama3", eos_token_ids=(128_001, 128_009))
    path = write_ranks(directory / "x.tiktoken", TOKENS)
    yield (
        "tiktoken",
        TokenizerSpec("tiktoken", 320, path=str(path), eos_token_ids=(263,), added_tokens=(("<|e|>", 263),)),
    )
    for name, make in sorted(STYLES.items()):
        library = make()
        path = directory / f"{name}.json"
        library.save(str(path))
        yield name, TokenizerSpec("huggingface", library.get_vocab_size() + 3, path=str(path), eos_token_ids=(1,))


NAMES = ["cl100k_base", "its beginning", "two ends", "tiktoken", *sorted(STYLES)]
INCOMPLETE = {"metaspace", "no_decoder", "word_piece"}
"""They have no tokens for some characters, or none without a space before it."""


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Tokenizer]]:
    found = {name: load_tokenizer(spec) for name, spec in specs(tmp_path_factory.mktemp("tokenizers"))}
    assert list(found) == NAMES
    yield found
    for tokenizer in found.values():
        tokenizer.close()


@pytest.mark.parametrize("name", NAMES)
def test_random_walks_match(tokenizers: dict[str, Tokenizer], name: str) -> None:
    tokenizer = tokenizers[name]
    compiler = GrammarCompiler(tokenizer)
    generator = np.random.default_rng(4)
    invalid = np.array(sorted(tokenizer.invalid_token_ids), dtype=np.int64)
    try:
        for grammar in (Grammar("regex", REGEX), Grammar("json_schema", SCHEMA)):
            stop_ids = tokenizer.eos_token_ids
            try:
                constraints = compiler.constraints(grammar, [()] * 6, stop_ids=stop_ids)
            except InvalidSamplingParams as error:
                assert name in INCOMPLETE and "can't be followed" in error.message
                continue
            assert name not in INCOMPLETE or grammar.kind == "regex"
            for constraint in constraints:
                ids: list[int] = []
                while not constraint.is_finished and len(ids) < 400:
                    mask = constraint.mask()
                    if constraint.error is not None:
                        assert name in INCOMPLETE and "vocabulary has no tokens" in constraint.error
                        break
                    is_allowed = np.full(tokenizer.vocab_size, not mask.allows)
                    is_allowed[mask.ids] = mask.allows
                    assert not is_allowed[invalid].any()
                    ids.append(int(generator.choice(np.flatnonzero(is_allowed))))
                    constraint.accept(ids[-1])
                if constraint.error is not None:
                    continue
                data = b"".join(tokenizer.token_bytes(item) for item in ids if item not in stop_ids)
                matches(grammar, data.decode())
    finally:
        compiler.close()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in INCOMPLETE])
def test_one_id_is_allowed_where_the_whole_mask_has_it(tokenizers: dict[str, Tokenizer], name: str) -> None:
    """Against llguidance's own mask, also where a text without choice was taken in at once."""
    tokenizer = tokenizers[name]
    size, stop_ids = tokenizer.vocab_size, tokenizer.eos_token_ids
    compiler = GrammarCompiler(tokenizer)
    generator = np.random.default_rng(5)
    num_forced = 0
    try:
        for grammar in (Grammar("regex", REGEX), Grammar("json_schema", SCHEMA)):
            by_id, by_mask = compiler.constraints(grammar, [(), ()], stop_ids=stop_ids)
            vocabulary = compiler._vocabulary(frozenset())
            matcher = LLMatcher(vocabulary.ll, source_of(grammar))
            for _ in range(12):
                bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
                expected = set(np.flatnonzero(np.unpackbits(bits, bitorder="little")[:size]).tolist())
                if np.unpackbits(bits, bitorder="little")[size]:
                    expected |= set(stop_ids)
                tried = range(size) if size < 2000 else [*generator.integers(0, size, 500).tolist(), *sorted(expected)]
                assert {item for item in tried if by_id.allows(item)} == expected & set(tried)
                mask = by_mask.mask()
                listed = set(mask.ids.tolist())
                assert (listed if mask.allows else set(range(size)) - listed) == expected
                num_forced += len(by_id._forced) > 1
                token_id = int(generator.choice(sorted(expected)))
                if token_id in stop_ids:
                    break
                for constraint in (by_id, by_mask):
                    assert not constraint.is_finished
                    constraint.accept(token_id)
                assert matcher.consume_token(token_id)
                if matcher.is_stopped():
                    assert by_id.is_finished and by_mask.is_finished
                    break
    finally:
        compiler.close()
    assert num_forced or name in ("its beginning", "tiktoken")


def matches(grammar: Grammar, text: str) -> None:
    if grammar.kind == "regex":
        assert re.fullmatch(REGEX, text), text
    else:
        jsonschema.validate(json.loads(text), SCHEMA)


def test_the_model_s_own_tokens_are_followed(tokenizers: dict[str, Tokenizer]) -> None:
    """A text that matches can be said in the way in which the tokenizer says it."""
    value: Any = {"the quick": "ünïcode 🙂", "count": 12, "words": ["hello", "wörld", ""]}
    for name in ("cl100k_base", "two ends", "tiktoken", "byte_level"):
        tokenizer = tokenizers[name]
        compiler = GrammarCompiler(tokenizer)
        try:
            (constraint,) = compiler.constraints(Grammar("json_schema", SCHEMA), [()], stop_ids=tokenizer.eos_token_ids)
            text = json.dumps(value, ensure_ascii=False)
            ids = tokenizer.encode(text, add_special_tokens=False)
            for position, token_id in enumerate(ids):
                mask = constraint.mask()
                assert (token_id in mask.ids) == mask.allows, (name, position, tokenizer.token_bytes(token_id))
                constraint.accept(token_id)
            assert constraint.is_finished
        finally:
            compiler.close()


def test_a_vocabulary_without_text_is_refused() -> None:
    compiler = GrammarCompiler(load_tokenizer(TokenizerSpec("none", 100)))
    with pytest.raises(UnsupportedFeature, match="no known tokenizer"):
        compiler.constraints(Grammar("regex", "a"), [()], stop_ids=())
