"""Small vocabulary files for tests, made by other libraries: GGUF by ``gguf``, SentencePiece models by its trainer."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
from gguf import GGUFWriter
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from tests.inference.text.tokenisation.vocabularies import CORPUS

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0▁"), max_size=60)
"""Any text, but U+2581, which SentencePiece reads as a space."""
CONTROL = ["<s>", "<|im_end|>"]


def write_gguf(path: Path, model: str, tokens: Sequence[str | bytes], keys: Mapping[str, Any] | None = None) -> Path:
    """A file of a vocabulary alone; ``keys`` are those behind ``tokenizer.ggml.``, lists included."""
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(list(tokens))
    for key, value in (keys or {}).items():
        name = key if "." in key else f"tokenizer.ggml.{key}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_string(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@cache
def byte_bpe(pattern: str) -> tokenizers.Tokenizer:
    """A byte-level vocabulary with an expression of a published model."""
    library = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    library.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=CONTROL, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(CORPUS, trainer)
    library.add_tokens(["<tool_call>"])
    return library


def write_byte_bpe(path: Path, library: tokenizers.Tokenizer, pre: str | None, **keys: Any) -> Path:
    """The library's vocabulary as GGUF."""
    state = json.loads(library.to_str())
    names = {token_id: token for token, token_id in library.get_vocab(with_added_tokens=True).items()}
    tokens = [names[token_id] for token_id in range(len(names))]
    types = [3 if token in CONTROL else 4 if token == "<tool_call>" else 1 for token in tokens]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in state["model"]["merges"]]
    stated = {} if pre is None else {"pre": pre}
    return write_gguf(path, "gpt2", tokens, {"token_type": types, "merges": merges, **stated, **keys})


@cache
def pieces(model_type: str, *, byte_fallback: bool = True, prefix: bool = True, collapse: bool = False) -> bytes:
    """A trained SentencePiece model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in CORPUS for line in text.splitlines() if line.strip()]),
        model_writer=model, model_type=model_type, vocab_size=640, byte_fallback=byte_fallback,
        add_dummy_prefix=prefix, remove_extra_whitespaces=collapse, normalization_rule_name="identity",
        user_defined_symbols=["<tool_call>", "▁▁▁", "\n\n"], control_symbols=["<|im_end|>"], hard_vocab_limit=False,
        allow_whitespace_only_pieces=True, minloglevel=2, num_threads=1,
    )  # fmt: skip
    return model.getvalue()


def write_pieces_as_gguf(path: Path, model: bytes, kind: str, **keys: Any) -> Path:
    """A SentencePiece model as converters write it: the same pieces, scores and types."""
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = range(library.get_piece_size())
    types = [
        2 if library.is_unknown(i) else 3 if library.is_control(i) else 6 if library.is_byte(i) else 1 for i in ids
    ]
    tokens = [library.id_to_piece(i) for i in ids]
    for user in ("<tool_call>", "▁▁▁", "\n\n"):
        types[tokens.index(user)] = 4
        tokens[tokens.index(user)] = user.replace("▁", " ")
    scores = [library.get_score(i) for i in ids]
    named = {"bos_token_id": library.bos_id(), "eos_token_id": library.eos_id(), "unknown_token_id": library.unk_id()}
    return write_gguf(path, kind, tokens, {"token_type": types, "scores": scores, **named, **keys})


def write_tekken(path: Path, ranks: Sequence[bytes], pattern: str, **changes: Any) -> Path:
    """A ``tekken.json`` with 20 control tokens."""
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(ranks)
    ]
    config = {
        "pattern": pattern, "num_vocab_tokens": len(ranks), "default_vocab_size": len(ranks) + 20,
        "default_num_special_tokens": 20, "version": "v3",
    }  # fmt: skip
    path.write_text(json.dumps({"config": config, "vocab": vocab, **changes}))
    return path
