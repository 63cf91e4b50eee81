"""Read the header of a GGUF file with a bounded parser: metadata keys and the places of tensors.

Nothing here trusts the file: it costs at most ``MAX_HEADER_BYTES`` of reading and memory, and time that grows with
what is there, not with what is stated. Long arrays (vocabularies) are measured and read on demand. Format (little
endian): ``GGUF``, u32 version, u64 tensors, u64 keys; the keys (name, u32 type, value); the tensors (name, u32 rank,
u64 dimensions with the fastest first, u32 type, u64 offset); the data, from the next multiple of the alignment on.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Standard library only.
"""

from __future__ import annotations

import array
import math
import os
import re
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from inference.errors import BlazrError, CorruptCheckpoint, UnsupportedFormat
from inference.modelling.gguf.block_types import BLOCK_TYPES, BlockType

MAX_HEADER_BYTES = 32 << 20
MAX_KEYS = 4096
MAX_TENSORS = 1 << 14
MAX_RANK = 4
MAX_NAME_BYTES = 128
MAX_KEY_BYTES = 256
MAX_STRING_BYTES = 4 << 20
"""Of a single string: a chat template is the longest that occurs."""
MAX_STRINGS = 1 << 20
"""In all arrays together; the largest vocabularies have 263,000 tokens and 450,000 merges."""
MAX_DIMENSION = 1 << 40
MAX_FILE_BYTES = 1 << 50
MAX_ALIGNMENT = 1 << 16
DEFAULT_ALIGNMENT = 32
VERSIONS = (2, 3)

_READ_BYTES = 1 << 20
_NAME = re.compile(rb"[A-Za-z0-9_.:/+@-]+")
_KEY = re.compile(rb"[\x21-\x7e]+")
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: Mapping[int, tuple[str, str]] = {
    0: ("uint8", "B"), 1: ("int8", "b"), 2: ("uint16", "H"), 3: ("int16", "h"), 4: ("uint32", "I"), 5: ("int32", "i"),
    6: ("float32", "f"), 7: ("bool", "B"), 10: ("uint64", "Q"), 11: ("int64", "q"), 12: ("float64", "d"),
}  # fmt: skip
"""Value types to their names and the codes of ``struct``; 8 is a string and 9 an array."""
_CODES = dict(_SCALARS.values())
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_HEAD = struct.Struct("<4sIQQ")


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array of the metadata, which ``GgufFile.numbers`` or ``GgufFile.strings`` reads.

    Attributes:
        element: ``string``, or the name of a number's type, e.g. ``float32``.
        count: Number of elements.
        begin, end: Where the elements are in the file.
    """

    element: str
    count: int
    begin: int
    end: int

    def __str__(self) -> str:  # in messages that quote a key's value
        return f"array of {self.count} {self.element}"


Value = str | int | float | bool | GgufArray


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Place of a tensor.

    Attributes:
        type: Its number in ``BLOCK_TYPES``.
        shape: Slowest dimension first, as PyTorch has it: a matrix is (outputs, inputs).
        begin, end: Where its bytes are in the file.
    """

    type: int
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def block_type(self) -> BlockType:
        """How its values are stored."""
        return BLOCK_TYPES[self.type]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The header of a file.

    Attributes:
        path: The file.
        version: Of the format.
        keys: Metadata by key, arrays as ``GgufArray``.
        tensors: Places by name, in the order of the file.
        alignment: Tensors begin at multiples of it, counted from ``data_start``.
        data_start: Where the data begin.
        size_bytes: Of the file.
        format: ``GGUF``, or the form before it that was read as one.
    """

    path: Path
    version: int
    keys: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]
    alignment: int
    data_start: int
    size_bytes: int
    format: Literal["GGUF", "ggjt"] = "GGUF"

    def strings(self, key: str) -> list[bytes]:
        """Elements of an array of strings, as their bytes; empty when the key is missing.

        Raises:
            CorruptCheckpoint: The key is something else, or the file became shorter.
        """
        found = self._array(key)
        if found is None:
            return []
        if found.element != "string":
            raise _corrupt(self.path.name, f"has {key} as an array of {found.element}; strings are needed")
        data, position, strings = self._read(found), 0, []
        unpack = _U64.unpack_from
        try:
            for _ in range(found.count):
                start = position + 8
                position = start + unpack(data, position)[0]
                strings.append(data[start:position])
        except struct.error:
            position = -1
        if position != len(data):
            raise _corrupt(self.path.name, "changed while it was read")
        return strings

    def numbers(self, key: str) -> tuple[int | float, ...]:
        """Elements of an array of numbers or of true and false; empty when the key is missing.

        Raises:
            CorruptCheckpoint: The key is something else, or the file became shorter.
        """
        found = self._array(key)
        if found is None:
            return ()
        if found.element == "string":
            raise _corrupt(self.path.name, f"has {key} as an array of strings; numbers are needed")
        values = array.array(_CODES[found.element])
        values.frombytes(self._read(found))
        return tuple(values)

    def _array(self, key: str) -> GgufArray | None:
        value = self.keys.get(key)
        if value is not None and not isinstance(value, GgufArray):
            raise _corrupt(self.path.name, f"has {key} as a single value; an array is needed")
        return value

    def _read(self, place: GgufArray) -> bytes:
        descriptor = _open(self.path)
        try:
            data = os.pread(descriptor, place.end - place.begin, place.begin)
        except OSError as error:
            raise _corrupt(self.path.name, f"can't be read: {error.strerror}") from None
        finally:
            os.close(descriptor)
        if len(data) != place.end - place.begin:
            raise _corrupt(self.path.name, "changed while it was read")
        return data


def read_gguf(path: Path) -> GgufFile:
    """Read the header of one GGUF file; a part of a split file is read alone.

    Raises:
        CorruptCheckpoint: The file breaks the format or a limit; the message names file, key or tensor, and rule.
        UnsupportedFormat: It is no GGUF file, or of a version or with a type that isn't read.
    """
    descriptor = _open(path)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _corrupt(path.name, "is not a regular file")
        return _Parser(descriptor, status.st_size, path).parse()
    except OSError as error:
        raise _corrupt(path.name, f"can't be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def read_gguf_beginning(path: Path, size_bytes: int) -> GgufFile | None:
    """Read the header of a file of which only the beginning is here; None: the header isn't here as a whole.

    Args:
        path: The beginning.
        size_bytes: Of the whole file.

    Raises:
        CorruptCheckpoint, UnsupportedFormat: As ``read_gguf``.
    """
    descriptor = _open(path)
    try:
        return _Parser(descriptor, size_bytes, path, os.fstat(descriptor).st_size).parse()
    except _HeaderIncomplete:
        return None
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _corrupt(path.name, f"can't be opened: {error.strerror or error}") from None


def with_remedy(problem: str) -> str:
    """Return what is wrong with a file, and what to do about it, unless it says that or can't be read at all."""
    if problem.endswith("again") or problem.startswith("can't be"):
        return problem
    return f"{problem}; download the file or convert the model again"


def _corrupt(file: str, problem: str, param: str | None = None) -> CorruptCheckpoint:
    return CorruptCheckpoint(f"{file} {problem}.", param=(param or file)[:MAX_KEY_BYTES])


class _HeaderIncomplete(Exception):
    """The header goes on behind the bytes that are here."""


class _Parser:
    """Reads a header from its beginning to its end, more of the file whenever it gets there.

    Args:
        available: Bytes of the file that are here; None: all of them.
    """

    def __init__(self, descriptor: int, size: int, path: Path, available: int | None = None) -> None:
        self._descriptor = descriptor
        self._size = size
        self._available = size if available is None else min(size, available)
        self._path = path
        self._buffer = bytearray()
        self._position = 0
        self._num_strings = 0

    def parse(self) -> GgufFile:
        version, num_tensors, num_keys = self._head()
        keys: dict[str, Value] = {}
        for _ in range(num_keys):
            name = self._name(_KEY, MAX_KEY_BYTES, "key")
            if name in keys:
                self._fail(f"has the key {name} twice", name)
            keys[name] = self._value(self._number(_U32), name)
        alignment = keys.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            self._fail(
                f"has general.alignment {str(alignment)[:40]}; a power of two from 8 to {MAX_ALIGNMENT} is needed",
                "general.alignment",
            )
        entries: dict[str, tuple[int, tuple[int, ...], int, int]] = {}
        for _ in range(num_tensors):
            name = self._name(_NAME, MAX_NAME_BYTES, "tensor")
            if name in entries:
                self._fail(f"has two tensors named {name}", name)
            entries[name] = self._tensor(name)
        data_start = -(-self._position // alignment) * alignment
        tensors = self._placed(entries, data_start, alignment)
        return GgufFile(self._path, version, keys, tensors, alignment, data_start, self._size)

    def _head(self) -> tuple[int, int, int]:
        """(version, number of tensors, number of keys)."""
        head = os.pread(self._descriptor, _HEAD.size, 0)
        if self._size > MAX_FILE_BYTES:
            self._fail(f"has {self._size} bytes; the limit is {MAX_FILE_BYTES}")
        if head[:4] != b"GGUF":
            error: type[BlazrError] = CorruptCheckpoint if b"GGUF".startswith(head) else UnsupportedFormat
            raise error(
                f"{self._path.name} is not a GGUF file: it begins with {head[:4]!r}; download it again.",
                param=self._path.name,
            )
        if len(head) < _HEAD.size:
            self._fail(f"is truncated: it has {self._size} bytes, a GGUF file has at least {_HEAD.size}")
        _, version, num_tensors, num_keys = _HEAD.unpack(head)
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            raise UnsupportedFormat(
                f"{self._path.name} is "
                + ("a big-endian GGUF file" if swapped else f"of version {version} of GGUF")
                + "; little-endian files of the versions 2 and 3 are read. Convert the model again.",
                param=self._path.name,
            )
        if num_keys > MAX_KEYS or num_tensors > MAX_TENSORS:
            self._fail(f"states {num_keys} keys and {num_tensors} tensors; the limits are {MAX_KEYS} and {MAX_TENSORS}")
        self._position = _HEAD.size
        return version, num_tensors, num_keys

    def _require(self, count: int) -> int:
        """Have ``count`` more bytes in the buffer, move behind them, and return where they begin."""
        begin = self._position
        end = begin + count
        if end > len(self._buffer):
            if end > self._size:
                self._fail(
                    f"is truncated: its header needs {end} bytes at least, the file has {self._size}; download it again"
                )
            if end > MAX_HEADER_BYTES:
                self._fail(f"has a header of more than {MAX_HEADER_BYTES} bytes, which is the limit")
            self._read_until(end)
        self._position = end
        return begin

    def _read_until(self, end: int) -> None:
        if end > self._available:
            raise _HeaderIncomplete
        stop = min(self._available, MAX_HEADER_BYTES, max(end, len(self._buffer) + _READ_BYTES))
        while len(self._buffer) < stop:
            part = os.pread(self._descriptor, min(_READ_BYTES, stop - len(self._buffer)), len(self._buffer))
            if not part:
                self._fail("changed while it was read")
            self._buffer += part

    def _number(self, code: struct.Struct) -> int:
        number: int = code.unpack_from(self._buffer, self._require(code.size))[0]
        return number

    def _bytes(self, limit: int, what: str, param: str | None = None) -> bytes:
        length = self._number(_U64)
        if length > limit:
            self._fail(f"has {what} of {length} bytes; the limit is {limit}", param)
        begin = self._require(length)
        return bytes(self._buffer[begin : begin + length])

    def _name(self, pattern: re.Pattern[bytes], limit: int, what: str) -> str:
        begin = self._position
        raw = self._bytes(limit, f"a name of a {what}")
        if not pattern.fullmatch(raw):
            self._fail(f"has no name of a {what} at byte {begin} of its header, but {raw[:40]!r}")
        return raw.decode("ascii")

    def _value(self, kind: int, key: str) -> Value:
        if kind == _STRING:
            raw = self._bytes(MAX_STRING_BYTES, f"the key {key} with a string", key)
            try:
                return raw.decode("utf-8")
            except UnicodeDecodeError:
                self._fail(f"has the key {key} with a string that isn't UTF-8", key)
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            self._fail(f"has the key {key} of type {kind}, which GGUF doesn't have", key)
        code = struct.Struct("<" + _SCALARS[kind][1])
        value: int | float = code.unpack_from(self._buffer, self._require(code.size))[0]
        if kind != _BOOL:
            return value
        if value not in (0, 1):
            self._fail(f"has the key {key} with the truth value {value}; 0 or 1 is needed", key)
        return bool(value)

    def _array(self, key: str) -> GgufArray:
        kind, count = self._number(_U32), self._number(_U64)
        begin = self._position
        if kind == _STRING:
            self._num_strings += count
            if self._num_strings > MAX_STRINGS:
                self._fail(f"has arrays of {self._num_strings} strings with {key}; the limit is {MAX_STRINGS}", key)
            self._skip_strings(count)
            return GgufArray("string", count, begin, self._position)
        if kind not in _SCALARS:
            self._fail(f"has the key {key} with an array of type {kind}; arrays of numbers and strings are read", key)
        name, code = _SCALARS[kind]
        # Bounded before anything is read.
        self._require(count * struct.calcsize("<" + code))
        return GgufArray(name, count, begin, self._position)

    def _skip_strings(self, count: int) -> None:
        """Move behind so many strings."""
        unpack, left = _U64.unpack_from, count
        while left:
            position = self._require(8)  # so that the loop gets on by one string at least
            buffer = self._buffer
            try:
                while left:
                    position += 8 + unpack(buffer, position)[0]
                    left -= 1
            except (struct.error, OverflowError):  # the next length is not in the buffer yet, or nowhere
                pass
            self._position = position
        self._require(0)

    def _tensor(self, name: str) -> tuple[int, tuple[int, ...], int, int]:
        """(type, shape, offset, bytes) of the entry behind a tensor's name."""
        rank = self._number(_U32)
        if not 1 <= rank <= MAX_RANK:
            self._fail(f"has the tensor {name} with {rank} dimensions; 1 to {MAX_RANK} are allowed", name)
        dimensions = struct.unpack_from(f"<{rank}Q", self._buffer, self._require(8 * rank))
        number, offset = self._number(_U32), self._number(_U64)
        kind = BLOCK_TYPES.get(number)
        if kind is None:
            raise UnsupportedFormat(
                f"{self._path.name} has the tensor {name} of type {number}, which is not known here; known are "
                f"{', '.join(found.name for known, found in BLOCK_TYPES.items() if known >= 0)}; get the model in one "
                "of these.",
                param=name,
            )
        if min(dimensions) < 1 or max(dimensions) > MAX_DIMENSION or math.prod(dimensions) > MAX_FILE_BYTES:
            self._fail(f"has the tensor {name} with the impossible shape {list(dimensions)}", name)
        if dimensions[0] % kind.values:
            self._fail(
                f"has the tensor {name} with {dimensions[0]} columns; {kind.name} has blocks of {kind.values}", name
            )
        size = math.prod(dimensions) // kind.values * kind.num_bytes
        return number, tuple(reversed(dimensions)), offset, size

    def _placed(
        self, entries: Mapping[str, tuple[int, tuple[int, ...], int, int]], data_start: int, alignment: int
    ) -> dict[str, GgufTensor]:
        """Check the places of the tensors: aligned, none over another, all within the file."""
        last, end = "", 0
        for name, (_, _, offset, size) in sorted(entries.items(), key=lambda item: item[1][2]):
            if offset % alignment:
                self._fail(f"has the tensor {name} at offset {offset}, which is no multiple of {alignment}", name)
            if offset < end:
                self._fail(f"has the tensor {name} at offset {offset}, where {last} is until {end}", name)
            last, end = name, offset + size
            if data_start + end > self._size:
                self._fail(
                    f"is truncated: the tensor {name} ends at byte {data_start + end}, the file has {self._size}; "
                    "download it again",
                    name,
                )
        return {
            name: GgufTensor(number, shape, data_start + offset, data_start + offset + size)
            for name, (number, shape, offset, size) in entries.items()
        }

    def _fail(self, problem: str, param: str | None = None) -> NoReturn:
        raise _corrupt(self._path.name, with_remedy(problem), param)
