"""Describe the vocabularies in GGUF files, ``tokenizer.model`` and ``tekken.json``: size, control tokens, BOS, ends.

The file is read within its reader's limits; no library builds anything of it here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from inference.errors import CorruptCheckpoint
from inference.modelling.families.config import Facts
from inference.modelling.gguf.container import read_gguf
from inference.text.tokenisation.ggjt_vocabulary import read_ggjt_vocabulary
from inference.text.tokenisation.gguf_vocabulary import has_vocabulary, read_gguf_vocabulary
from inference.text.tokenisation.sentencepiece_file import read_sentencepiece
from inference.text.tokenisation.tekken_file import read_tekken
from inference.text.tokenisation.tiktoken_file import KIMI_FILE
from inference.text.tokenisation.vocabulary import TokenType, Vocabulary
from inference.values.tokenizer_spec import TokenizerSpec
from models_registry.detection.tokenizer_files import TokenizerFiles, bounded_template

FileKind = Literal["tiktoken", "huggingface", "gguf", "ggjt", "sentencepiece", "tekken"]

_SUFFIXES: Mapping[str, FileKind] = {
    "tekken.json": "tekken", KIMI_FILE: "tiktoken", ".json": "huggingface", ".tiktoken": "tiktoken", ".gguf": "gguf",
    ".bin": "ggjt", ".ggml": "ggjt", ".model": "sentencepiece",
}  # fmt: skip
_TOKEN_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


@dataclass(frozen=True, slots=True)
class _Found:
    vocabulary: Vocabulary
    ids: Mapping[str, int]
    end_ids: tuple[int, ...]
    adds_bos: bool
    evidence: str
    chat_template: str | None = None


def kind_of_file(name: str) -> FileKind | None:
    """Return how a tokenizer file with this name is read; None: it is no such file."""
    return next((kind for suffix, kind in _SUFFIXES.items() if name.lower().endswith(suffix)), None)


def gguf_has_vocabulary(path: Path) -> bool:
    return has_vocabulary(read_gguf(path))


def add_file_vocabulary(
    found: TokenizerSpec, files: TokenizerFiles, facts: Facts
) -> tuple[TokenizerSpec, TokenizerFiles]:
    """Return spec and side files with what the vocabulary's file states; what the side files state comes first.

    Raises:
        CorruptCheckpoint: The file is broken, or has more tokens than the embedding has rows.
        UnsupportedFormat: It has a kind of vocabulary or a pre-tokeniser that isn't known.
    """
    path = Path(str(found.path))
    added = {text: token_id for text, token_id in files.added_tokens.items() if token_id < found.vocab_size}
    read = _read(found.kind, path, added)
    tokens = read.vocabulary.tokens
    if len(tokens) > found.vocab_size:
        raise CorruptCheckpoint(
            f"{path.name} has a vocabulary of {len(tokens)} tokens, but the embedding has {found.vocab_size} rows: "
            "they belong to different models. Set vocabulary to the tokenizer of this one.",
            param="vocabulary",
        )
    _warn_of_merges(read.vocabulary, facts)
    kinds = Counter(TokenType(kind).name.lower().replace("_", "-") for kind in read.vocabulary.types)
    shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    if "vocabulary" not in facts.overrides:
        facts.add("vocabulary", path.name, f"{read.evidence}; {len(tokens)} tokens: {shown}")
    special = {key: tokens[read.ids[name]] for name, key in _TOKEN_NAMES.items() if name in read.ids}
    merged = TokenizerFiles(
        {"add_bos_token": read.adds_bos, **files.tokenizer_config},
        {"eos_token_id": list(read.end_ids), **files.generation_config},
        {**read.vocabulary.control_tokens(), **files.added_tokens},
        {**special, **files.special_tokens},
        None,
    )
    extra = {text: token_id for text, token_id in added.items() if found.kind == "sentencepiece"}
    found = replace(found, added_tokens=tuple(sorted(extra.items(), key=lambda item: item[1])))
    if read.chat_template is None:
        return found, merged
    origin = "tokenizer.chat_template"
    template = bounded_template(read.chat_template, origin)
    return replace(found, chat_template=template, chat_template_origin=f"{path.name} ({origin})"), merged


def _warn_of_merges(vocabulary: Vocabulary, facts: Facts) -> None:
    unknown = vocabulary.unknown_merges()
    if unknown:
        facts.warn(
            f"{len(unknown)} of {len(vocabulary.merges)} merges of {vocabulary.name}, such as "
            f"{' '.join(unknown[0])[:60]!r}, name no tokens and are left out: texts may become other tokens than those "
            "that the model learnt. Convert the model again, or set vocabulary to a tokenizer of it."
        )


def _read(kind: str, path: Path, added: Mapping[str, int]) -> _Found:
    if kind == "gguf":
        gguf = read_gguf_vocabulary(path)
        evidence = f"tokenizer.ggml.model is {gguf.model}"
        if gguf.pre is not None:
            evidence += f", tokenizer.ggml.pre {gguf.pre if gguf.pre_is_stated else 'missing, so default'}"
        return _Found(gguf.vocabulary, gguf.ids, gguf.end_ids, gguf.adds_bos, evidence, gguf.chat_template)
    if kind == "ggjt":
        ggjt = read_ggjt_vocabulary(path)
        evidence = f"{path.name} has tokens with scores (ggjt)"
        return _Found(ggjt.vocabulary, ggjt.ids, (ggjt.ids["eos"],) if "eos" in ggjt.ids else (), True, evidence)
    if kind == "sentencepiece":
        piece = read_sentencepiece(path, added)
        model = "BPE" if piece.vocabulary.algorithm == "scored_bpe" else "unigram"
        evidence = f"{path.name} is a SentencePiece model ({model})"
        ends = tuple(piece.ids[name] for name in ("eos",) if name in piece.ids)
        return _Found(piece.vocabulary, piece.ids, ends, "bos" in piece.ids, evidence)
    tekken = read_tekken(path)
    ends = tuple(tekken.ids[name] for name in ("eos",) if name in tekken.ids)
    return _Found(tekken.vocabulary, tekken.ids, ends, "bos" in tekken.ids, f"{path.name} is Mistral's")
