"""ggjt files: hostile ones for the intake, and a form of legal ones that the fuzzer can change anywhere.

The format has no offsets, so tensors can't overlap by their own statements: what a length says decides where the next
part begins.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inference.modelling.gguf.ggjt import LIMITS, MAX_TOKEN_BYTES, MAX_VOCABULARY_BYTES
from tests.faults.artefacts.case import Case, Content, write
from tests.inference.modelling.gguf.ggjt_writer import Ggjt, small
from tests.inference.modelling.gguf.test_ggjt import HOSTILE, named
from tests.inference.modelling.gguf.writer import Tensor

WITHOUT_MAGIC = ("empty", "pickle")
MOST = LIMITS["n_vocab"]


def _alone(content: Content) -> Callable[[Path], object]:
    return lambda directory: write(directory / "model.bin", content)


def _tokens(length: int, count: int, *, stored: int | None = None) -> bytes:
    """A header that states the most tokens, and the first ``count`` of them."""
    token = struct.pack("<I", length) + b"a" * (length if stored is None else stored) + bytes(4)
    return small(tokens=(), tensors=(), num_tokens=MOST).content() + token * count


MORE: dict[str, tuple[Content, str]] = {
    "magic in the other order": (small(magic=b"ggjt").content(), "model.bin"),
    "version 0": (small(version=0).content(), "version 0"),
    "version 2^32-1": (small(version=(1 << 32) - 1).content(), "version 4294967295"),
    "most tokens in a hole": ((_tokens(0, 0), 1 << 30), "tensor with 0 dimensions"),
    "token of 2^32-1 bytes": ((_tokens((1 << 32) - 1, 1, stored=0), 1 << 30), "token 0 with 4294967295 bytes"),
    "token of 2^31 bytes": (_tokens(1 << 31, 1, stored=8), "token 0 with 2147483648 bytes"),
    "vocabulary beyond the limit": (
        _tokens(MAX_TOKEN_BYTES, MAX_VOCABULARY_BYTES // MAX_TOKEN_BYTES + 1024), "the limit|vocabulary of more than"
    ),
    "vocabulary up to the end": (_tokens(MAX_TOKEN_BYTES, 9), "token 9 of 131072"),
    "entry of 2^32-1 dimensions": (
        small(tensors=(), behind=struct.pack("<III", (1 << 32) - 1, 4, 0)).content(), "4294967295 dimensions"
    ),
    "name of 2^32-1 bytes": (
        (small(tensors=(), behind=struct.pack("<III", 1, (1 << 32) - 1, 0)).content(), 1 << 30), "4294967295 bytes"
    ),
    "tensor of 2^64 bytes in a hole": (
        (named("layers.0.feed_forward.w1.weight", ((1 << 32) - 1, (1 << 32) - 1)), 1 << 40), "is truncated: the tensor"
    ),
    "data that is the next entry": (
        named("layers.0.feed_forward.w1.weight", (4, 8), data=named("norm.weight")[-48:]), "is truncated"
    ),
    "a thousand times the same": (
        small(tensors=[Tensor("norm.weight", (4,), bytes(16))] * 1000).content(), "two tensors"
    ),
    "path as a name": (named("../../etc/passwd"), "doesn't have"),
    "escape in a name": (named(b"\x1b[2J\r\n"), "doesn't have"),
}  # fmt: skip

CASES = [
    Case(f"ggjt: {name}", _alone(content), "model.bin" if name in WITHOUT_MAGIC else message)
    for name, (content, message) in {**HOSTILE, **MORE}.items()
]
"""Each breaks a rule of the format or a limit."""

SMALL: list[Any] = [
    3, [4, 2, 1, 32, 2, 0], [["a", 0.0], ["", 0.0], ["é", -1.0], [" b", -2.0]],
    [["tok_embeddings.weight", [4, 4], 0, 64], ["layers.0.ffn_norm.weight", [4], 0, 16], ["norm.weight", [4], 0, 16]],
]  # fmt: skip
"""Version; width, heads, layers, multiple, rotated, type; tokens; tensors (name, shape, type, bytes of data)."""


def encoded(content: Any) -> bytes:
    """The bytes of a changed file; what has the wrong type becomes 0, and numbers lose the bits that don't fit."""
    version, head, tokens, tensors, *_ = [*_list(content), 0, [], [], []][:4]
    numbers = [_number(item) for item in [*_list(head), 0, 0, 0, 0, 0, 0][:6]]
    file = Ggjt(*numbers[:4], file_type=numbers[5], version=_number(version), rotated=numbers[4])
    file.tokens = [_token(entry) for entry in _list(tokens)[:200]]
    file.tensors = [_tensor(entry) for entry in _list(tensors)[:200]]
    return file.content()


def _token(entry: Any) -> tuple[bytes, float]:
    text, score, *_ = [*_list(entry), "", 0.0][:2]
    return _text(text), score if isinstance(score, float) and abs(score) < 1e38 else 0.0


def _tensor(entry: Any) -> Tensor:
    name, shape, kind, size, *_ = [*_list(entry), "", [], 0, 0][:4]
    dimensions = tuple(_number(item) for item in _list(shape)[:200])
    return Tensor(_text(name), dimensions, bytes(min(_number(size), 4096)), _number(kind))


def _list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list) else []


def _number(given: Any) -> int:
    return given % (1 << 32) if isinstance(given, int) else 0


def _text(given: Any) -> bytes:
    return given.encode("utf-8", "surrogatepass") if isinstance(given, str) else b""
