"""Read a ggjt file, GGML's form of llama models before GGUF, with a bounded parser.

Format (little endian): ``ggjt`` as a number, so ``tjgg`` in the file, u32 version; seven u32 (``HPARAMS``); per token
u32 length, the bytes, a float32 score; per tensor u32 rank, u32 length of the name, u32 type, u32 dimensions with the
fastest first, the name, and from the next multiple of 32 on the data. In version 3 codes have the layout that GGUF
kept, in 1 and 2 older ones (``STORED_TYPES``).
The result has the keys and names of a GGUF file, so that everything behind it reads both. Source: ``llama.cpp`` and
``convert.py`` of https://github.com/ggml-org/llama.cpp before August 21, 2023. Standard library only.
"""

from __future__ import annotations

import math
import os
import re
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from inference.errors import CorruptCheckpoint, TensorShapeMismatch, UnsupportedArchitecture, UnsupportedFormat
from inference.modelling.gguf.block_types import BLOCK_TYPES
from inference.modelling.gguf.container import GgufFile, GgufTensor, Value, with_remedy

GGJT_SUFFIXES = (".bin", ".ggml")
"""Of ggjt files; others with the first one are pickles."""
GGML_SUFFIXES = (".gguf", *GGJT_SUFFIXES)
MAGIC = b"tjgg"
OTHER_MAGICS: Mapping[bytes, str] = {
    b"lmgg": "an unversioned ggml file", b"fmgg": "a ggmf file", b"algg": "an adapter (ggla)", b"nsgg": "a session",
}  # fmt: skip
"""Older forms, and files that hold no model."""
STORED_TYPES: Mapping[int, Mapping[int, int]] = {
    1: {0: 0, 1: 1, 2: -12, 3: -13, 6: -16, 7: -17, 8: -8},
    2: {0: 0, 1: 1, 2: -2, 3: -3, 6: 6, 7: 7, 8: -8},
    3: {number: number for number in (0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14)},
}
"""By version: a type's number in the file to that in ``BLOCK_TYPES``. Version 1 had two more, 4 and 5, which GGML soon
dropped."""
ALIGNMENT = 32
HPARAMS = ("n_vocab", "n_embd", "n_mult", "n_head", "n_layer", "n_rot", "ftype")
LIMITS: Mapping[str, int] = {
    "n_vocab": 1 << 17, "n_embd": 1 << 16, "n_mult": 1 << 20, "n_head": 1 << 12, "n_layer": 1 << 9,
}  # fmt: skip
MAX_TOKEN_BYTES = 1 << 10
MAX_VOCABULARY_BYTES = 16 << 20
MAX_NAME_BYTES = 128
BOS_ID, EOS_ID = 1, 2
DEFAULTS: Mapping[str, Value] = {
    "llama.context_length": 2048,
    "llama.attention.layer_norm_rms_epsilon": 5e-6,
    "llama.rope.freq_base": 10000.0,
}
"""What the files don't state, as llama.cpp took it for them."""

_HEAD = struct.Struct("<4sI7I")
_ENTRY = struct.Struct("<III")
_U32, _F32 = struct.Struct("<I"), struct.Struct("<f")
_READ_BYTES = 1 << 20
_OUTER = {
    "tok_embeddings.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "output.weight": "output.weight",
}
_LAYER = re.compile(r"layers\.(0|[1-9]\d{0,3})\.([a-z0-9_.]+)\.weight")
_OF_LAYER = {
    "attention.wq": "attn_q", "attention.wk": "attn_k", "attention.wv": "attn_v", "attention.wo": "attn_output",
    "attention_norm": "attn_norm", "ffn_norm": "ffn_norm", "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down", "feed_forward.w3": "ffn_up",
}  # fmt: skip


def has_ggml_suffix(name: str) -> bool:
    """Whether a file is a GGUF or ggjt file by its name."""
    return name.lower().endswith(GGML_SUFFIXES)


def is_ggjt(path: Path) -> bool:
    """Whether a file begins like one of GGML's forms before GGUF; one that can't be read doesn't."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        magic = os.pread(descriptor, 4, 0)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return magic == MAGIC or magic in OTHER_MAGICS


def read_ggjt(path: Path) -> GgufFile:
    """Read the header, and the places of the tensors under the names that GGUF gave them.

    Raises:
        CorruptCheckpoint: The file breaks the format or a limit; the message names file, tensor and rule.
        TensorShapeMismatch: A tensor contradicts the header.
        UnsupportedFormat: It is of another version, or has a type that isn't read.
        UnsupportedArchitecture: It has a tensor that llama doesn't have.
    """
    with _Opened(path) as file:
        numbers = file.head()
        file.skip_tokens(numbers["n_vocab"])
        tensors = file.tensors(numbers)
        return GgufFile(
            path,
            numbers["version"],
            _keys(numbers, tensors, path),
            tensors,
            ALIGNMENT,
            _HEAD.size,
            file.size_bytes,
            "ggjt",
        )


def read_ggjt_tokens(path: Path) -> list[tuple[bytes, float]]:
    """Read the tokens with their scores, by id.

    Raises:
        CorruptCheckpoint, UnsupportedFormat: As ``read_ggjt``.
    """
    with _Opened(path) as file:
        return file.tokens(file.head()["n_vocab"])


def _keys(numbers: Mapping[str, int], tensors: Mapping[str, GgufTensor], path: Path) -> dict[str, Value]:
    """Metadata as GGUF has them."""
    head_dim = numbers["n_embd"] // numbers["n_head"]
    keys: dict[str, Value] = {
        **DEFAULTS,
        "general.architecture": "llama",
        "general.file_type": numbers["ftype"] % 1000,  # thousands count the versions of codes
        "llama.block_count": numbers["n_layer"],
        "llama.embedding_length": numbers["n_embd"],
        "llama.vocab_size": numbers["n_vocab"],
        "llama.attention.head_count": numbers["n_head"],
        "llama.rope.dimension_count": numbers["n_rot"],
        "ggjt.n_mult": numbers["n_mult"],
    }
    key, gate = tensors.get("blk.0.attn_k.weight"), tensors.get("blk.0.ffn_gate.weight")
    if key is not None:
        rows = key.shape[0]
        if rows % head_dim or numbers["n_head"] % (rows // head_dim):
            raise TensorShapeMismatch(
                f"{path.name} has layers.0.attention.wk.weight with {rows} rows, which are no heads of {head_dim} for "
                f"{numbers['n_head']} heads of queries; convert the model again.",
                param="layers.0.attention.wk.weight",
            )
        keys["llama.attention.head_count_kv"] = rows // head_dim
    if gate is not None:
        keys["llama.feed_forward_length"] = gate.shape[0]
    if numbers["n_vocab"] > EOS_ID:
        keys |= {"tokenizer.ggml.bos_token_id": BOS_ID, "tokenizer.ggml.eos_token_id": EOS_ID}
    return keys


class _Opened:
    """An open file, read from its beginning on; the vocabulary in pieces, of the tensors the entries alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.size_bytes = 0

    def __enter__(self) -> _Opened:
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._fail(f"can't be opened: {error.strerror or error}")
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            self._fail("is not a regular file")
        self.size_bytes = status.st_size
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._descriptor)

    def head(self) -> dict[str, int]:
        """Read and check the numbers of the header."""
        data = self._read(0, _HEAD.size)
        magic = data[:4]
        if magic in OTHER_MAGICS:
            raise UnsupportedFormat(
                f"{self._path.name} is {OTHER_MAGICS[magic]}; of GGML's forms before GGUF only ggjt is read. Convert "
                "the model to GGUF.",
                param=self._path.name,
            )
        if magic != MAGIC:
            raise UnsupportedFormat(
                f"{self._path.name} is no ggjt file: it begins with {magic!r}.", param=self._path.name
            )
        if len(data) < _HEAD.size:
            self._fail(f"is truncated: it has {self.size_bytes} bytes, a ggjt file has at least {_HEAD.size}")
        _, version, *values = _HEAD.unpack(data)
        if version not in STORED_TYPES:
            raise UnsupportedFormat(
                f"{self._path.name} is a ggjt file of version {version}; the versions "
                f"{', '.join(map(str, STORED_TYPES))} are read. Convert the model to GGUF.",
                param=self._path.name,
            )
        numbers = dict(zip(HPARAMS, values, strict=True)) | {"version": version}
        for name, limit in LIMITS.items():
            if not 1 <= numbers[name] <= limit:
                self._fail(f"states {name} {numbers[name]}; 1 to {limit} is allowed")
        width, count = numbers["n_embd"], numbers["n_head"]
        if width % count or numbers["n_rot"] != width // count:
            self._fail(
                f"states n_embd {width}, n_head {count} and n_rot {numbers['n_rot']}; n_rot must be n_embd / n_head"
            )
        self._position = _HEAD.size
        return numbers

    def skip_tokens(self, count: int) -> None:
        """Move behind the vocabulary."""
        self._walk(count, None)

    def tokens(self, count: int) -> list[tuple[bytes, float]]:
        """Read the vocabulary."""
        found: list[tuple[bytes, float]] = []
        self._walk(count, found)
        return found

    def _walk(self, count: int, found: list[tuple[bytes, float]] | None) -> None:
        start, longest = self._position, MAX_TOKEN_BYTES + 8
        buffer, begin, position, end = b"", start, 0, 0
        for number in range(count):
            if end - position < longest:
                begin += position
                buffer = self._read(begin, _READ_BYTES)
                position, end = 0, len(buffer)
                if begin - start > MAX_VOCABULARY_BYTES:
                    self._fail(f"has a vocabulary of more than {MAX_VOCABULARY_BYTES} bytes, which is the limit")
            if end - position < 8:
                self._fail_truncated(f"token {number} of {count} begins at byte {begin + position}")
            length = _U32.unpack_from(buffer, position)[0]
            if length > MAX_TOKEN_BYTES:
                self._fail(f"has token {number} with {length} bytes; the limit is {MAX_TOKEN_BYTES}")
            behind = position + 8 + length
            if behind > end:
                self._fail_truncated(f"token {number} of {count} ends at byte {begin + behind}")
            if found is not None:
                found.append((buffer[position + 4 : behind - 4], _F32.unpack_from(buffer, behind - 4)[0]))
            position = behind
        self._position = begin + position

    def tensors(self, numbers: Mapping[str, int]) -> dict[str, GgufTensor]:
        """Read the entries of all tensors, up to the end of the file."""
        found: dict[str, GgufTensor] = {}
        while self._position < self.size_bytes:
            name, tensor = self._tensor(numbers)
            if name in found:
                self._fail(f"has two tensors that are {name}", name)
            found[name] = tensor
            self._position = tensor.end
        if not found:
            self._fail_truncated("it has no tensors")
        return found

    def _tensor(self, numbers: Mapping[str, int]) -> tuple[str, GgufTensor]:
        data = self._read(self._position, _ENTRY.size + 8 + MAX_NAME_BYTES)
        if len(data) < _ENTRY.size:
            self._fail_truncated(f"{len(data)} bytes lie behind the last tensor")
        rank, length, number = _ENTRY.unpack_from(data)
        if rank not in (1, 2) or not 1 <= length <= MAX_NAME_BYTES:
            self._fail(
                f"has a tensor with {rank} dimensions and a name of {length} bytes at byte {self._position}; 1 or 2 "
                f"and at most {MAX_NAME_BYTES} are allowed"
            )
        names_at = _ENTRY.size + 4 * rank
        if len(data) < names_at + length:
            self._fail_truncated(f"a tensor's entry begins at byte {self._position}")
        dimensions = struct.unpack_from(f"<{rank}I", data, _ENTRY.size)
        stored = data[names_at : names_at + length].decode("ascii", "backslashreplace")
        name = self._name(stored, numbers["n_layer"])
        version = numbers["version"]
        types = STORED_TYPES[version]
        if number not in types:
            raise UnsupportedFormat(
                f"{self._path.name} has the tensor {stored} of type {number}; of ggjt files of version {version} are "
                f"read {', '.join(BLOCK_TYPES[known].form_name for known in types.values())}. Convert the model to "
                "GGUF.",
                param=stored,
            )
        kind = BLOCK_TYPES[types[number]]
        if min(dimensions) < 1 or dimensions[0] % kind.values:
            self._fail(
                f"has the tensor {stored} with the dimensions {list(dimensions)}; {kind.name} has blocks of "
                f"{kind.values}",
                stored,
            )
        self._check_shape(stored, name, dimensions, numbers)
        begin = -(-(self._position + names_at + length) // ALIGNMENT) * ALIGNMENT
        end = begin + math.prod(dimensions) // kind.values * kind.num_bytes
        if end > self.size_bytes:
            self._fail_truncated(f"the tensor {stored} ends at byte {end}", stored)
        return name, GgufTensor(types[number], tuple(reversed(dimensions)), begin, end)

    def _name(self, stored: str, num_layers: int) -> str:
        """GGUF's name of a tensor."""
        match = _LAYER.fullmatch(stored)
        if stored in _OUTER:
            return _OUTER[stored]
        if match is None or match[2] not in _OF_LAYER or int(match[1]) >= num_layers:
            raise UnsupportedArchitecture(
                f"{self._path.name} has the tensor {stored[:80]!r}, which llama with {num_layers} layers doesn't have; "
                "ggjt files of other models are not read.",
                param=stored[:80],
            )
        return f"blk.{match[1]}.{_OF_LAYER[match[2]]}.weight"

    def _check_shape(self, stored: str, name: str, dimensions: tuple[int, ...], numbers: Mapping[str, int]) -> None:
        """Compare what the header states with a tensor's shape; families check the rest."""
        width, rows = numbers["n_embd"], numbers["n_vocab"]
        expected: tuple[int, ...] | None = None
        if name in ("token_embd.weight", "output.weight"):
            expected = (width, rows)
        elif name.endswith("norm.weight"):
            expected = (width,)
        elif name.endswith(("attn_q.weight", "attn_output.weight")):
            expected = (width, width)
        if expected is not None and dimensions != expected:
            raise TensorShapeMismatch(
                f"{self._path.name} has {stored} with the dimensions {list(dimensions)}, but n_embd {width} and "
                f"n_vocab {rows} make it {list(expected)}; convert the model again.",
                param=stored,
            )

    def _read(self, begin: int, count: int) -> bytes:
        """Bytes from ``begin`` on, fewer at the end of the file."""
        try:
            return os.pread(self._descriptor, count, begin)
        except OSError as error:
            self._fail(f"can't be read: {error.strerror}")

    def _fail_truncated(self, what: str, param: str | None = None) -> NoReturn:
        self._fail(f"is truncated: {what}, the file has {self.size_bytes}; download it again", param)

    def _fail(self, problem: str, param: str | None = None) -> NoReturn:
        message = f"{self._path.name} {with_remedy(problem)}."
        raise CorruptCheckpoint(message, param=(param or self._path.name)[:256])
