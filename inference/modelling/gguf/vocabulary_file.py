"""Write the vocabulary of a GGUF file as a GGUF file without tensors, as llama.cpp's ``ggml-vocab`` files are.

Standard library only.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from inference.modelling.gguf.container import GgufArray, GgufFile

VOCABULARY_FILE = "vocabulary.gguf"
_PREFIX = "tokenizer."
_BESIDE = ("general.architecture", "general.name")
_VERSION = 3
_STRING, _ARRAY = 8, 9
_NUMBERS: Mapping[str, tuple[int, str]] = {
    "uint8": (0, "B"), "int8": (1, "b"), "uint16": (2, "H"), "int16": (3, "h"), "uint32": (4, "I"), "int32": (5, "i"),
    "float32": (6, "f"), "bool": (7, "B"), "uint64": (10, "Q"), "int64": (11, "q"), "float64": (12, "d"),
}  # fmt: skip
"""Names of value types to their numbers and the codes of ``struct``."""
_U32 = 1 << 32

Number = int | float | bool
Value = str | Number | Sequence[bytes] | tuple[str, Sequence[Number]]
"""A string or a number, strings as bytes, or numbers with the name of their type."""


def copied_vocabulary(file: GgufFile) -> bytes:
    """Return the content of a file with the vocabulary and the chat template of another one.

    Raises:
        CorruptCheckpoint: The other file became shorter.
    """
    keys: dict[str, Value] = {}
    for key, value in file.keys.items():
        if not key.startswith(_PREFIX) and key not in _BESIDE:
            continue
        if not isinstance(value, GgufArray):
            keys[key] = value
        elif value.element == "string":
            keys[key] = file.strings(key)
        else:
            keys[key] = (value.element, file.numbers(key))
    return vocabulary_content(keys)


def vocabulary_content(keys: Mapping[str, Value]) -> bytes:
    """Return the content of a GGUF file with keys and no tensors.

    Source of the layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """
    parts = [struct.pack("<4sIQQ", b"GGUF", _VERSION, 0, len(keys))]
    for key, value in keys.items():
        parts += [_text(key.encode()), _value(value)]
    return b"".join(parts)


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value.encode())
    if isinstance(value, bool | int | float):
        number, code = _NUMBERS[_type_of(value)]
        return struct.pack("<I" + code, number, value)
    if isinstance(value, tuple):
        number, code = _NUMBERS[value[0]]
        return struct.pack("<IIQ", _ARRAY, number, len(value[1])) + struct.pack(f"<{len(value[1])}{code}", *value[1])
    return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_text, value))


def _type_of(value: Number) -> str:
    """Return the type of a number that Python has without one."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, float):
        return "float64"
    return "uint32" if 0 <= value < _U32 else "int64"


def _text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content
