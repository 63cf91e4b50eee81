"""GGUF files: hostile ones for the intake, and a form of legal ones that the fuzzer can change anywhere."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.artefacts.case import Case
from tests.inference.modelling.gguf.test_container import HOSTILE
from tests.inference.modelling.gguf.writer import NUMBERS, Gguf, Tensor

SMALL: list[Any] = [
    3,
    [
        ["general.architecture", 8, "llama"],
        ["general.alignment", 4, 32],
        ["llama.block_count", 4, 2],
        ["llama.rope.freq_base", 6, 10000.0],
        ["a.truth", 7, 1],
        ["a.wide", 10, 2**40],
        ["tokenizer.ggml.tokens", 9, [8, ["<s>", "a", "bc"]]],
        ["tokenizer.ggml.scores", 9, [6, [0.5, -1.0, 0.0]]],
        ["tokenizer.ggml.token_type", 9, [5, [1, 2, 3]]],
    ],
    [
        ["token_embd.weight", [4, 3], 0, 0, 48],
        ["blk.0.attn_q.weight", [32, 2], 8, 64, 68],
        ["blk.0.attn_norm.weight", [4], 30, 160, 8],
    ],
]
"""Version; keys (name, type, value); tensors (name, dimensions as stored, type, offset, bytes of data)."""


def _alone(content: bytes) -> Callable[[Path], object]:
    return lambda directory: (directory / "model.gguf").write_bytes(content)


CASES = [Case(f"GGUF: {name}", _alone(content), message) for name, (content, message) in HOSTILE.items()]
"""Each breaks a rule of the format or a limit."""

EMPTY: list[Any] = [2, [], []]
CODES = dict(NUMBERS.values())


def encoded(content: Any) -> bytes:
    """The bytes of a changed file; what has the wrong type becomes 0, and numbers lose the bits that don't fit."""
    version, keys, tensors, *_ = [*_list(content), 0, [], []][:3]
    found = Gguf(version=_number(version, 32))
    for entry in _list(keys)[:200]:
        name, kind, given, *_ = [*_list(entry), "", 0, 0][:3]
        found.keys.append((_text(name), struct.pack("<I", _number(kind, 32)) + _coded(_number(kind, 32), given)))
    for entry in _list(tensors)[:200]:
        name, dims, kind, offset, size, *_ = [*_list(entry), "", [], 0, 0, 0][:5]
        shape = tuple(_number(item, 64) for item in reversed(_list(dims)[:200]))
        data = bytes(min(_number(size, 64), 4096))
        found.tensors.append(Tensor(_text(name), shape, data, _number(kind, 32), _number(offset, 64)))
    return found.content()


def _coded(kind: int, given: Any) -> bytes:
    if kind == 8:
        return struct.pack("<Q", len(_text(given))) + _text(given)
    if kind == 9:
        inner, items, *_ = [*_list(given), 0, []][:2]
        inner, items = _number(inner, 32), _list(items)[:200]
        return struct.pack("<IQ", inner, len(items)) + b"".join(_coded(inner, item) for item in items)
    code = CODES.get(kind, "<Q")
    if code in ("<f", "<d"):
        return struct.pack("<d", float(given) if isinstance(given, float) else 0.0)[: struct.calcsize(code)]
    return _number(given, 64).to_bytes(8, "little")[: struct.calcsize(code)]


def _list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list) else []


def _number(given: Any, bits: int) -> int:
    return given % (1 << bits) if isinstance(given, int) else 0


def _text(given: Any) -> bytes:
    return given.encode("utf-8", "surrogatepass") if isinstance(given, str) else b""
