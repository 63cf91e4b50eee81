"""Vocabularies as GGUF files without tensors: our reader, and that of the ``gguf`` package."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gguf import GGUFReader

from inference.modelling.gguf.container import read_gguf
from inference.modelling.gguf.vocabulary_file import copied_vocabulary, vocabulary_content
from inference.text.tokenisation.gguf_vocabulary import read_gguf_vocabulary
from tests.inference.text.tokenisation.file_vocabularies import pieces, write_pieces_as_gguf


def test_a_copy_has_the_vocabulary_and_nothing_else(tmp_path: Path) -> None:
    keys = {
        "tokenizer.chat_template": "{{ messages }}", "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.padding_token_id": 2**32 - 1, "llama.block_count": 2, "general.name": "a model",
        "split.count": 3,
    }  # fmt: skip
    source = write_pieces_as_gguf(tmp_path / "source.gguf", pieces("bpe"), "llama", **keys)
    (tmp_path / "copy.gguf").write_bytes(copied_vocabulary(read_gguf(source)))
    found, copy = read_gguf_vocabulary(source), read_gguf_vocabulary(tmp_path / "copy.gguf")
    assert replace(copy.vocabulary, name=found.vocabulary.name) == found.vocabulary
    assert replace(copy, vocabulary=found.vocabulary) == found
    assert found.chat_template == "{{ messages }}"
    copied = read_gguf(tmp_path / "copy.gguf")
    assert not copied.tensors
    assert {"llama.block_count", "split.count"}.isdisjoint(copied.keys)
    assert copied.keys["general.name"] == "a model"
    assert copied.keys["tokenizer.ggml.padding_token_id"] == 2**32 - 1


def test_the_gguf_package_reads_it(tmp_path: Path) -> None:
    (tmp_path / "v.gguf").write_bytes(
        vocabulary_content({
            "a.text": "ä", "a.flag": True, "a.whole": 7, "a.below": -1, "a.part": 0.5, "a.texts": [b"x", b"yz"],
            "a.numbers": ("float32", [0.5, -1.0]), "a.types": ("int32", [1, 3]),
        })
    )  # fmt: skip
    fields = GGUFReader(tmp_path / "v.gguf").fields
    found = {name: field.contents() for name, field in fields.items() if name.startswith("a.")}
    assert found == {
        "a.text": "ä", "a.flag": True, "a.whole": 7, "a.below": -1, "a.part": 0.5, "a.texts": ["x", "yz"],
        "a.numbers": [0.5, -1.0], "a.types": [1, 3],
    }  # fmt: skip
