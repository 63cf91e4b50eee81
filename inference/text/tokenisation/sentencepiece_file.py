"""Read a SentencePiece ``tokenizer.model``: a protocol buffer with pieces, trainer and normaliser.

Messages and field numbers: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto. Own
reader, within limits, of the fields that encoding needs. Encoding: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from inference.errors import CorruptCheckpoint, UnsupportedFormat
from inference.text.tokenisation.vocabulary import MAX_TOKENS, TokenType, Vocabulary, control_types

MAX_FILE_BYTES = 32 << 20
_MAX_VARINT_BYTES = 10
_PIECES, _TRAINER, _NORMALISER = 1, 2, 3
_MODEL_TYPE, _UNK_ID, _BOS_ID, _EOS_ID, _PAD_ID = 3, 40, 41, 42, 43
_DEFAULT_IDS = {"unknown": (_UNK_ID, 0), "bos": (_BOS_ID, 1), "eos": (_EOS_ID, 2), "padding": (_PAD_ID, -1)}
_CHARSMAP, _DUMMY_PREFIX, _COLLAPSE, _ESCAPE = 2, 3, 4, 5
_MODELS = {1: "unigram", 2: "BPE", 3: "word", 4: "char"}

Field = int | bytes
"""A number (also the bits of a float), or bytes: a string or a message."""


@dataclass(frozen=True, slots=True)
class SentencePieceFile:
    """The vocabulary and the ids of its named tokens: ``bos``, ``eos``, ``unknown``, ``padding``."""

    vocabulary: Vocabulary
    ids: Mapping[str, int]


def read_sentencepiece(path: Path, added: Mapping[str, int] | None = None) -> SentencePieceFile:
    """Read the file.

    Args:
        added: Control tokens that other files of the checkpoint add, by text; those with ids of pieces change nothing.

    Raises:
        CorruptCheckpoint: It breaks the format or a limit.
        UnsupportedFormat: Its model is neither unigram nor BPE.
    """
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise CorruptCheckpoint(f"{path.name} is larger than the limit of {MAX_FILE_BYTES} bytes.", param=path.name)
    try:
        return _read(data, path, added or {})
    except (ValueError, struct.error) as error:
        raise CorruptCheckpoint(
            f"{path.name} is no SentencePiece model: {error}; download it again.", param=path.name
        ) from None


def _read(data: bytes, path: Path, added: Mapping[str, int]) -> SentencePieceFile:
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, Field] = {}
    normaliser: dict[int, Field] = {}
    for number, value in _fields(data):
        if number == _PIECES:
            if len(pieces) == MAX_TOKENS:
                raise ValueError(f"more than {MAX_TOKENS} pieces")
            pieces.append(_piece(_message(value)))
        elif number == _TRAINER:
            trainer |= dict(_fields(_message(value)))
        elif number == _NORMALISER:
            normaliser |= dict(_fields(_message(value)))
    if not pieces:
        raise ValueError("it has no pieces")
    kind = _number(trainer, _MODEL_TYPE, 1)
    if kind not in (1, 2):
        raise UnsupportedFormat(
            f"{path.name} has a SentencePiece model of the kind {_MODELS.get(kind, kind)}; unigram and BPE are read.",
            param=path.name,
        )
    if not _number(normaliser, _ESCAPE, 1):
        raise UnsupportedFormat(f"{path.name} keeps spaces as they are; only ▁ for spaces is read.", param=path.name)
    ids = {name: _number(trainer, field, default) for name, (field, default) in _DEFAULT_IDS.items()}
    ids = {name: token_id for name, token_id in ids.items() if 0 <= token_id < len(pieces)}
    for text, token_id in sorted(added.items(), key=lambda item: item[1]):
        if len(pieces) <= token_id < MAX_TOKENS:
            # Ids between the pieces and an added token stand for nothing.
            pieces += [("", 0.0, TokenType.UNUSED)] * (token_id - len(pieces)) + [(text, 0.0, TokenType.CONTROL)]
    tokens = tuple(piece[0] for piece in pieces)
    named = frozenset(ids[name] for name in ("bos", "eos") if name in ids)
    charsmap = normaliser.get(_CHARSMAP, b"")
    vocabulary = Vocabulary(
        path.name,
        "unigram" if kind == 1 else "scored_bpe",
        tokens,
        control_types(tokens, tuple(piece[2] for piece in pieces), named),
        scores=tuple(piece[1] for piece in pieces),
        space_prefix=bool(_number(normaliser, _DUMMY_PREFIX, 1)),
        collapse_spaces=bool(_number(normaliser, _COLLAPSE, 1)),
        normaliser=charsmap if isinstance(charsmap, bytes) else b"",
        unknown_id=ids.get("unknown"),
    )
    return SentencePieceFile(vocabulary, ids)


def _piece(message: bytes) -> tuple[str, float, int]:
    """(text, score, type) of a piece."""
    found = dict(_fields(message))
    text, bits, kind = found.get(1, b""), found.get(2, 0), found.get(3, 1)
    if not isinstance(text, bytes) or not isinstance(bits, int) or not isinstance(kind, int):
        raise ValueError("a piece has fields of the wrong kind")
    if kind not in TokenType._value2member_map_:
        raise ValueError(f"a piece has the type {kind}")
    score = struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0]
    if not -1e30 < score < 1e30:
        raise ValueError(f"a piece has the score {score}")
    return text.decode(), score, kind


def _fields(data: bytes) -> Iterator[tuple[int, Field]]:
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire == 2:
            size, position = _varint(data, position)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"a field has the wire type {wire}")
        if size > len(data) - position:
            raise ValueError("it is truncated")
        part = data[position : position + size]
        position += size
        yield number, part if wire == 2 else int.from_bytes(part, "little")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """(number, position behind it)."""
    value = 0
    for count, byte in enumerate(data[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position + count + 1
    raise ValueError("it is truncated, or has a number of more than 64 bits")


def _message(value: Field) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a message is written as a number")
    return value


def _number(message: Mapping[int, Field], field: int, default: int) -> int:
    """A whole number of 32 bits with a sign."""
    value = message.get(field, default)
    if not isinstance(value, int):
        raise ValueError(f"field {field} is no number")
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
