"""Facts of vocabularies in GGUF files, tokenizer.model and tekken.json; vocabularies of other models."""

from __future__ import annotations

from pathlib import Path

import pytest
import sentencepiece
import splintr

from inference.errors import CorruptCheckpoint, UnsupportedFormat
from inference.modelling.families.config import Facts
from inference.text.tokenisation.tokenizer import load_tokenizer
from inference.values.tokenizer_spec import TokenizerSpec
from models_registry.detection.file_vocabularies import add_file_vocabulary, gguf_has_vocabulary, kind_of_file
from models_registry.detection.tokenizer_files import MAX_TEMPLATE_CHARS, TokenizerFiles
from tests.inference.text.tokenisation.file_vocabularies import (
    byte_bpe,
    pieces,
    write_byte_bpe,
    write_gguf,
    write_tekken,
)
from tests.inference.text.tokenisation.vocabularies import TOKENS
from tests.models_registry.detection.builders import choose, write_json

COUNT = byte_bpe(splintr.LLAMA3_PATTERN).get_vocab_size()
NO_FILES = TokenizerFiles({}, {}, {}, {}, None)


def add(path: Path, rows: int) -> tuple[TokenizerSpec, TokenizerFiles, Facts]:
    facts = Facts()
    return (*add_file_vocabulary(TokenizerSpec("gguf", rows, path=str(path)), NO_FILES, facts), facts)


def write_model(path: Path, **keys) -> Path:
    return write_byte_bpe(path, byte_bpe(splintr.LLAMA3_PATTERN), "llama-bpe", **keys)


def test_a_gguf_file_states_its_tokens_and_template(tmp_path):
    keys = {"bos_token_id": 0, "eos_token_id": 1, "tokenizer.chat_template": "{{ bos_token }}"}
    path = write_model(tmp_path / "a.gguf", **keys)
    spec, files, facts = add(path, COUNT)
    assert (spec.chat_template, spec.chat_template_origin) == ("{{ bos_token }}", "a.gguf (tokenizer.chat_template)")
    assert files.special_tokens == {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    assert (files.tokenizer_config, files.generation_config) == ({"add_bos_token": True}, {"eos_token_id": [1]})
    (fact,) = facts.facts
    assert (fact.name, fact.value) == ("vocabulary", "a.gguf")
    kinds = f"{COUNT - 3} normal, 2 control, 1 user-defined"
    assert f"gpt2, tokenizer.ggml.pre llama-bpe; {COUNT} tokens: {kinds}" in fact.evidence


def test_more_tokens_than_rows_name_both_sizes(tmp_path):
    path = write_model(tmp_path / "a.gguf")
    with pytest.raises(CorruptCheckpoint, match=f"{COUNT} tokens, but the embedding has {COUNT - 1} rows"):
        add(path, COUNT - 1)
    assert add(path, COUNT + 64)[0].vocab_size == COUNT + 64


def test_a_template_is_bounded_and_an_unknown_pre_tokeniser_refused(tmp_path):
    long = {"tokenizer.chat_template": "x" * (MAX_TEMPLATE_CHARS + 1)}
    with pytest.raises(CorruptCheckpoint, match="the limit is"):
        add(write_model(tmp_path / "a.gguf", **long), 700)
    with pytest.raises(UnsupportedFormat, match="'new'"):
        add(write_gguf(tmp_path / "b.gguf", "gpt2", ["a"], {"pre": "new"}), 700)


def test_merges_that_name_no_tokens_are_a_warning(tmp_path):
    tokens = ["a", "b", "ab", "c"]
    keys = {"pre": "gpt-2", "merges": ["a b", "b c", "x a"]}
    _, _, facts = add(write_gguf(tmp_path / "a.gguf", "gpt2", tokens, keys), 8)
    assert [warning.partition(":")[0] for warning in facts.warnings] == [
        "2 of 3 merges of a.gguf, such as 'b c', name no tokens and are left out"
    ]
    _, _, facts = add(write_model(tmp_path / "b.gguf"), COUNT)
    assert facts.warnings == []


def test_a_file_without_tokens(tmp_path):
    assert not gguf_has_vocabulary(write_gguf(tmp_path / "a.gguf", "no_vocab", []))
    assert gguf_has_vocabulary(write_model(tmp_path / "b.gguf"))


def test_kinds_by_name():
    names = ("a.tiktoken", "tokenizer.json", "tekken.json", "A.GGUF", "tokenizer.model", "a.txt")
    assert [*map(kind_of_file, names)] == ["tiktoken", "huggingface", "tekken", "gguf", "sentencepiece", None]


def load_id(text: str) -> int:
    return sentencepiece.SentencePieceProcessor(model_proto=pieces("bpe")).piece_to_id(text)


def test_pieces_beside_the_weights_are_the_tokenizer(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(pieces("bpe"))
    count = sentencepiece.SentencePieceProcessor(model_proto=pieces("bpe")).get_piece_size()
    write_json(tmp_path / "tokenizer_config.json", {
        "added_tokens_decoder": {str(count): {"content": "<|call|>"}, "5000": {"content": "<far>"}},
        "chat_template": "{{ messages }}",
    })  # fmt: skip
    found, facts = choose(tmp_path, count + 8)
    assert (found.kind, found.bos_token_id, found.chat_template) == ("sentencepiece", 1, "{{ messages }}")
    assert set(found.eos_token_ids) == {2, load_id("<|im_end|>")}
    assert found.added_tokens == (("<|call|>", count),)
    assert any("SentencePiece model (BPE)" in fact.evidence for fact in facts.facts)
    ours = load_tokenizer(found)
    assert ours.encode("<|call|>", parse_special=True)[1:] == [count]
    ours.close()
    write_json(tmp_path / "tokenizer_config.json", {"add_bos_token": False})
    assert choose(tmp_path, count)[0].bos_token_id is None
    with pytest.raises(CorruptCheckpoint, match=f"{count} tokens, but the embedding has {count - 1} rows"):
        choose(tmp_path, count - 1)


def test_tekken_beside_the_weights_comes_before_pieces(tmp_path):
    write_tekken(tmp_path / "tekken.json", TOKENS, splintr.O200K_BASE_PATTERN)
    (tmp_path / "tokenizer.model").write_bytes(pieces("bpe"))
    found, _ = choose(tmp_path, len(TOKENS) + 20)
    assert (found.kind, found.bos_token_id, found.eos_token_ids) == ("tekken", 1, (2,))


def test_a_vocabulary_of_another_file_is_set_by_hand(tmp_path):
    path = write_model(tmp_path / "a.gguf", bos_token_id=0, eos_token_id=1)
    found, facts = choose(tmp_path, 700, overrides={"vocabulary": str(path)})
    assert (found.kind, found.path, found.bos_token_id, found.eos_token_ids) == ("gguf", str(path), 0, (1,))
    assert [fact.value for fact in facts.facts if fact.name == "vocabulary"] == [str(path)]
