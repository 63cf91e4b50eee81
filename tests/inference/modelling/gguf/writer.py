"""Write GGUF files for tests, right and wrong ones; written from the format's description, not from the reader."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NUMBERS = {
    "u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"), "u32": (4, "<I"), "i32": (5, "<i"),
    "f32": (6, "<f"), "bool": (7, "<B"), "u64": (10, "<Q"), "i64": (11, "<q"), "f64": (12, "<d"),
}  # fmt: skip
TYPES = {
    "F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "IQ2_XXS": (16, 256, 66), "IQ2_XS": (17, 256, 74),
    "IQ3_XXS": (18, 256, 98), "IQ1_S": (19, 256, 50), "IQ4_NL": (20, 32, 18), "IQ3_S": (21, 256, 110),
    "IQ2_S": (22, 256, 82), "IQ4_XS": (23, 256, 136), "F64": (28, 1, 8), "IQ1_M": (29, 256, 56), "BF16": (30, 1, 2),
    "TQ1_0": (34, 256, 54), "TQ2_0": (35, 256, 66), "MXFP4": (39, 32, 17),
    "NVFP4": (40, 64, 36), "Q1_0": (41, 128, 18),
}  # fmt: skip
"""Name to number, values per block and bytes per block."""


def string(text: str | bytes) -> bytes:
    """A length and the characters."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(given: Any, kind: str | None = None) -> bytes:
    """Type and value of a key.

    Args:
        given: A string, number, truth value, or a list of one of them.
        kind: A name of ``NUMBERS`` for numbers; by default u32, f32 or bool.
    """
    if isinstance(given, list):
        kind = kind or _kind(given[0])
        code = 8 if kind == "string" else NUMBERS[kind][0]
        return struct.pack("<IIQ", 9, code, len(given)) + b"".join(_plain(item, kind) for item in given)
    kind = kind or _kind(given)
    return struct.pack("<I", 8 if kind == "string" else NUMBERS[kind][0]) + _plain(given, kind)


def _kind(given: Any) -> str:
    if isinstance(given, str | bytes):
        return "string"
    return "bool" if isinstance(given, bool) else "f32" if isinstance(given, float) else "i32" if given < 0 else "u32"


def _plain(given: Any, kind: str) -> bytes:
    return string(given) if kind == "string" else struct.pack(NUMBERS[kind][1], given)


@dataclass
class Tensor:
    """A tensor to write; ``shape`` has the slowest dimension first, as torch has it."""

    name: str | bytes
    shape: tuple[int, ...]
    data: bytes
    type: int = 0
    offset: int | None = None


@dataclass
class Gguf:
    """A file; a wrong one is made by setting what ``write`` would have counted.

    Attributes:
        keys: Names and their type and value (see ``value``), in order.
    """

    keys: list[tuple[str | bytes, bytes]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    version: int = 3
    num_tensors: int | None = None
    num_keys: int | None = None
    alignment: int = 32
    magic: bytes = b"GGUF"

    def content(self) -> bytes:
        """The bytes of the file."""
        out = [
            self.magic,
            struct.pack(
                "<IQQ",
                self.version,
                len(self.tensors) if self.num_tensors is None else self.num_tensors,
                len(self.keys) if self.num_keys is None else self.num_keys,
            ),
        ]
        out += [string(name) + coded for name, coded in self.keys]
        place, data = 0, []
        for tensor in self.tensors:
            dims = tuple(reversed(tensor.shape))
            offset = place if tensor.offset is None else tensor.offset
            out.append(string(tensor.name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, tensor.type, offset))
            padding = -len(tensor.data) % self.alignment
            data.append(tensor.data + bytes(padding))
            place += len(tensor.data) + padding
        head = b"".join(out)
        return head + bytes(-len(head) % self.alignment) + b"".join(data)


def keys_of(values: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> list[tuple[str | bytes, bytes]]:
    """Keys with the usual types of their values."""
    pairs = values.items() if isinstance(values, Mapping) else values
    return [(name, given if isinstance(given, bytes) else value(given)) for name, given in pairs]


def write_gguf(path: Path, values: Mapping[str, Any], tensors: Iterable[Tensor], **rest: Any) -> None:
    """Write a file with these metadata and tensors."""
    path.write_bytes(Gguf(keys_of(values), list(tensors), **rest).content())
