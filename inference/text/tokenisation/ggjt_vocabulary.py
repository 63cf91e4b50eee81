"""Read the vocabulary of a ggjt file: SentencePiece's BPE with scores, in the layout of Llama's tokens.

The file has texts alone: spaces stand for SentencePiece's ``▁``, bytes are written as they are, control tokens are
empty. Ids say what they are: 0 unknown, 1 and 2 the ends; tokens for all bytes follow each other in order. Source:
``convert.py`` and ``convert-llama-ggml-to-gguf.py`` of https://github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inference.errors import CorruptCheckpoint
from inference.modelling.gguf.ggjt import BOS_ID, EOS_ID, read_ggjt_tokens
from inference.text.tokenisation.vocabulary import SPACE, TokenType, Vocabulary, control_types

UNKNOWN_ID = 0
_NAMED = {UNKNOWN_ID: "<unk>", BOS_ID: "<s>", EOS_ID: "</s>"}


@dataclass(frozen=True, slots=True)
class GgjtVocabulary:
    """The vocabulary and the ids of its named tokens: ``unknown``, ``bos``, ``eos``."""

    vocabulary: Vocabulary
    ids: Mapping[str, int]


def read_ggjt_vocabulary(path: Path) -> GgjtVocabulary:
    """Read the vocabulary.

    Raises:
        CorruptCheckpoint: The file is broken, or has a token that isn't UTF-8 or a score that is no number.
        UnsupportedFormat: It is of another version.
    """
    stored = read_ggjt_tokens(path)
    texts = [text for text, _ in stored]
    first_byte_id = _first_byte_id(texts)
    tokens: list[str] = []
    types: list[int] = []
    for token_id, (text, score) in enumerate(stored):
        if not math.isfinite(score):
            raise _wrong(path, f"token {token_id} has the score {score}")
        if token_id in _NAMED:
            tokens.append(_NAMED[token_id])
            types.append(TokenType.UNKNOWN if token_id == UNKNOWN_ID else TokenType.CONTROL)
        elif first_byte_id is not None and first_byte_id <= token_id < first_byte_id + 256:
            tokens.append(f"<0x{token_id - first_byte_id:02X}>")
            types.append(TokenType.BYTE)
        elif not text:
            tokens.append("")
            types.append(TokenType.UNUSED)
        else:
            tokens.append(_text(text, token_id, path))
            types.append(TokenType.NORMAL)
    names = {"unknown": UNKNOWN_ID, "bos": BOS_ID, "eos": EOS_ID}
    ids = {name: token_id for name, token_id in names.items() if token_id < len(tokens)}
    vocabulary = Vocabulary(
        path.name,
        "scored_bpe",
        tuple(tokens),
        control_types(tuple(tokens), tuple(types), frozenset()),
        scores=tuple(score for _, score in stored),
        space_prefix=True,
        unknown_id=ids.get("unknown"),
    )
    return GgjtVocabulary(vocabulary, ids)


def _first_byte_id(texts: list[bytes]) -> int | None:
    """Id of the first of 256 tokens that are the bytes in order; None: the vocabulary has no tokens for bytes."""
    run = [bytes([value]) for value in range(256)]
    starts = (token_id for token_id, text in enumerate(texts) if text == run[0] and token_id not in _NAMED)
    return next((start for start in starts if texts[start : start + 256] == run), None)


def _text(text: bytes, token_id: int, path: Path) -> str:
    try:
        return text.decode().replace(" ", SPACE)
    except UnicodeDecodeError:
        raise _wrong(path, f"token {token_id} is {text[:40]!r}, which isn't UTF-8") from None


def _wrong(path: Path, problem: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(
        f"{path.name}: {problem}; convert the model again, or set vocabulary to a tokenizer of the model.",
        param="vocabulary",
    )
