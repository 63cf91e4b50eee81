"""Read the header of a safetensors file with a bounded parser.

Nothing here trusts the file: a header costs at most ``MAX_HEADER_BYTES`` of reading and about as much
time as it has tensors, whatever it says. The library is only let near a file that has passed. (A 78 MB
header costs the library 7.7 s and 1.2 GiB; it also keeps the last of two tensors with one name.)

Format: 8 bytes of length n (little endian), n bytes of JSON, then the data. The rules are those of
https://github.com/huggingface/safetensors#format, with smaller limits and a narrower grammar:
exactly three members for each tensor, plain decimal numbers, names of a safe alphabet.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from inference.errors import CorruptCheckpoint, UnsupportedFormat
from inference.modelling.families.config import TensorInfo

MAX_HEADER_BYTES = 8 << 20
MAX_HEADER_SHARE = 10
"""A header above ``SHARE_FREE_BYTES`` may be at most 1/10 of its file. Below, tiny files for tests
(a few numbers behind a page of names) are legal, and the cost is bounded anyway."""
SHARE_FREE_BYTES = 1 << 20
MAX_TENSORS = 100_000
MAX_RANK = 8
MAX_NAME_BYTES = 512
MAX_DIMENSION = 1 << 40
MAX_METADATA_BYTES = 1 << 20
MAX_FILE_BYTES = 1 << 50

DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
}  # fmt: skip
"""dtypes that may stand in a header; which of them a network can be built from is decided later."""

# Possessive quantifiers: no pattern can backtrack over white space.
_SPACE = re.compile(rb"[ \t\r\n]*+")
_NAME = re.compile(rb'"([A-Za-z0-9_.:/+@-]*+)"[ \t\r\n]*+:[ \t\r\n]*+\{')
_MEMBER = re.compile(
    rb'[ \t\r\n]*+"(dtype|shape|data_offsets)"[ \t\r\n]*+:[ \t\r\n]*+'
    rb'(?:"([A-Z0-9_]{1,16})"|\[([0-9, \t\r\n]{0,400})\])[ \t\r\n]*+([,}])'
)
_NUMBER = re.compile(rb"[ \t\r\n]*+(0|[1-9][0-9]{0,19})[ \t\r\n]*+")
_METADATA = re.compile(rb'"__metadata__"[ \t\r\n]*+:[ \t\r\n]*+\{')
_STRING = re.compile(rb'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4}){0,65536}+"')
_COLON = re.compile(rb"[ \t\r\n]*+:[ \t\r\n]*+")
_NEXT = re.compile(rb"[ \t\r\n]*+([,}])[ \t\r\n]*+")


def read_header(path: Path) -> dict[str, TensorInfo]:
    """All tensors of one file, in the order of their data.

    Args:
        path: A regular file, or a link to one. ``TensorInfo.file`` is its name.

    Raises:
        CorruptCheckpoint: The file breaks the format or a limit; the message names file, tensor and rule.
        UnsupportedFormat: The content is of another known kind (a pickle, GGUF, …), whatever the name says.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CorruptCheckpoint(f"{path.name} can't be opened: {error.strerror or error}.", param=path.name) from None
    try:
        return read_open_header(descriptor, path.name)[0]
    finally:
        os.close(descriptor)


def read_open_header(descriptor: int, file: str) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """All tensors of an open file, in the order of their data, and its metadata.

    Args:
        file: The file's name.

    Raises:
        CorruptCheckpoint, UnsupportedFormat: As ``read_header``.
    """
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CorruptCheckpoint(f"{file} is not a regular file.", param=file)
        header, data_bytes = _read_header_bytes(descriptor, status.st_size, file)
    except OSError as error:
        raise CorruptCheckpoint(f"{file} can't be read: {error.strerror}.", param=file) from None
    parser = _Parser(header, file)
    entries = parser.parse()
    return _placed(entries, 8 + len(header), data_bytes, file), parser.metadata


def kind_by_content(head: bytes) -> str | None:
    """What a file that is not safetensors is, by its first bytes; None: unknown."""
    for magic, kind in (
        (b"PK\x03\x04", "a zip archive (a PyTorch pickle file)"),
        (b"\x80", "a pickle"),
        (b"GGUF", "a GGUF file"),
        (b"\x93NUMPY", "a NumPy file"),
        (b"\x89HDF", "an HDF5 file"),
        (b"\x1f\x8b", "a gzip archive"),
        (b"BZh", "a bzip2 archive"),
        (b"\xfd7zXZ", "an xz archive"),
        (b"\x28\xb5\x2f\xfd", "a zstd archive"),
        (b"version https://git-lfs", "a Git LFS pointer; the weights themselves were not downloaded"),
        (b"<!DOCTYPE", "a web page"),
        (b"<html", "a web page"),
    ):
        if head.startswith(magic):
            return kind
    return "a tar archive" if head[257:262] == b"ustar" else None


def _read_header_bytes(descriptor: int, size: int, file: str) -> tuple[bytes, int]:
    head = _read_at(descriptor, 0, 512)
    length = int.from_bytes(head[:8], "little")
    limit = min(MAX_HEADER_BYTES, max(SHARE_FREE_BYTES, size // MAX_HEADER_SHARE))
    problem = None
    if size > MAX_FILE_BYTES:
        problem = f"has {size} bytes; the limit is {MAX_FILE_BYTES}"
    elif len(head) < 8:
        problem = f"has {size} bytes; a safetensors file has at least 10"
    elif length < 2:
        problem = f"states a header of {length} bytes; the shortest is 2"
    elif length > limit:
        problem = f"states a header of {length} bytes; the limit is {limit} for a file of {size}"
    elif 8 + length > size:
        problem = f"is truncated: its header should end at byte {8 + length}, the file ends at {size}"
    elif head[8:9] != b"{":
        problem = "has a header that doesn't begin with {"
    if problem is None:
        header = _read_at(descriptor, 8, length)
        if len(header) == length:
            return header, size - 8 - length
        problem = "changed while it was read"
    kind = kind_by_content(head)
    if kind is not None:
        raise UnsupportedFormat(f"{file} is {kind}, not safetensors; convert it to safetensors.", param=file)
    raise CorruptCheckpoint(f"{file} {problem}.", param=file)


def _read_at(descriptor: int, begin: int, count: int) -> bytes:
    parts, left = [], count
    while left:
        part = os.pread(descriptor, min(left, 1 << 20), begin + count - left)
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


_Entry = tuple[str, str, tuple[int, ...], int, int]
"""Name, dtype, shape, begin and end within the data."""


class _Parser:
    """Recursive descent over the bytes, without building anything but entries and metadata."""

    def __init__(self, header: bytes, file: str) -> None:
        self.header = header
        self.file = file
        self.position = 0
        self.metadata: dict[str, str] = {}

    def parse(self) -> list[_Entry]:
        header = self.header
        entries: list[_Entry] = []
        names: set[str] = set()
        had_metadata = False
        self._skip(1)
        if header[self.position : self.position + 1] == b"}":
            self._expect_end(self.position + 1)
            return entries
        while True:
            metadata = _METADATA.match(header, self.position)
            if metadata is not None:
                if had_metadata:
                    self._fail("has two __metadata__ objects")
                had_metadata = True
                self._read_metadata(metadata.end())
            else:
                entry = self._entry()
                if entry[0] in names:
                    self._fail(f"has two tensors named {entry[0]}", entry[0])
                if len(entries) == MAX_TENSORS:
                    self._fail(f"has more than {MAX_TENSORS} tensors")
                names.add(entry[0])
                entries.append(entry)
            following = _NEXT.match(header, self.position)
            if following is None:
                self._fail(f"has a header that is not JSON at byte {8 + self.position}")
            self.position = following.end()
            if following[1] == b"}":
                self._expect_end(following.end())
                return entries

    def _entry(self) -> _Entry:
        match = _NAME.match(self.header, self.position)
        if match is None:
            self._fail(
                f"has no tensor entry at byte {8 + self.position} of its header (names are made of letters, digits "
                "and _ . : / + @ -)"
            )
        raw = match[1]
        name = raw.decode("ascii")
        if not 0 < len(raw) <= MAX_NAME_BYTES:
            self._fail(f"has a tensor name of {len(raw)} bytes; 1 to {MAX_NAME_BYTES} are allowed")
        if b".." in raw or raw.startswith(b"/"):
            self._fail(f"has a tensor name that looks like a path: {name[:80]}", name)
        position = match.end()
        dtype: bytes | None = None
        shape: tuple[int, ...] | None = None
        offsets: tuple[int, ...] | None = None
        for count in (1, 2, 3):
            member = _MEMBER.match(self.header, position)
            if member is None or (member[4] == b"}") != (count == 3):
                self._fail_entry(name)
            key, text, numbers = member[1], member[2], member[3]
            if (key == b"dtype") != (text is not None):
                self._fail_entry(name)
            if key == b"dtype":
                dtype = text
            elif key == b"shape":
                shape = self._numbers(numbers, name)
            else:
                offsets = self._numbers(numbers, name)
            position = member.end()
        if dtype is None or shape is None or offsets is None or len(offsets) != 2:
            self._fail_entry(name)
        self.position = position
        return name, dtype.decode("ascii"), shape, offsets[0], offsets[1]

    def _numbers(self, text: bytes, name: str) -> tuple[int, ...]:
        if not text.strip(b" \t\r\n"):
            return ()
        found = []
        for part in text.split(b","):
            match = _NUMBER.fullmatch(part)
            if match is None:
                self._fail_entry(name)
            found.append(int(match[1]))
        if len(found) > MAX_RANK:
            self._fail(f"tensor {name} has {len(found)} dimensions; the limit is {MAX_RANK}", name)
        return tuple(found)

    def _read_metadata(self, begin: int) -> None:
        header, limit = self.header, begin + MAX_METADATA_BYTES
        self._skip(begin)
        if header[self.position : self.position + 1] == b"}":
            self.position += 1
            return
        while True:
            key = self._string()
            if key in self.metadata:
                self._fail(f"has two __metadata__ entries named {key[:80]!r}")
            colon = _COLON.match(header, self.position)
            if colon is None:
                self._fail("has a __metadata__ that isn't a plain object of strings")
            self.position = colon.end()
            self.metadata[key] = self._string()
            if self.position > limit:
                self._fail(f"has more than {MAX_METADATA_BYTES} bytes of __metadata__")
            following = _NEXT.match(header, self.position)
            if following is None:
                self._fail("has a __metadata__ that isn't a plain object of strings")
            if following[1] == b"}":
                self.position = following.start(1) + 1
                return
            self.position = following.end()

    def _string(self) -> str:
        match = _STRING.match(self.header, self.position)
        if match is None:
            self._fail("has a __metadata__ that isn't a plain object of strings of at most 65536 characters")
        try:
            text = json.loads(match[0])
            text.encode()  # a lone surrogate is legal for Python's JSON, and for nobody else
        except ValueError:
            self._fail("has a __metadata__ string that isn't Unicode")
        self.position = match.end()
        return str(text)

    def _skip(self, position: int) -> None:
        match = _SPACE.match(self.header, position)
        self.position = position if match is None else match.end()

    def _expect_end(self, position: int) -> None:
        # The format pads with spaces only.
        if self.header[position:].strip(b" "):
            self._fail(f"has something behind the header's JSON, at byte {8 + position}")

    def _fail_entry(self, name: str) -> NoReturn:
        self._fail(
            f"tensor {name[:80]} has a malformed entry; it needs exactly dtype, shape (at most {MAX_RANK} plain "
            "numbers) and data_offsets (two)",
            name,
        )

    def _fail(self, problem: str, name: str | None = None) -> NoReturn:
        separator = ": " if problem.startswith("tensor ") else " "
        raise CorruptCheckpoint(f"{self.file}{separator}{problem}.", param=(name or self.file)[:MAX_NAME_BYTES])


def _placed(entries: Iterable[_Entry], data_start: int, data_bytes: int, file: str) -> dict[str, TensorInfo]:
    """Check sizes and places: the tensors follow one another without gap or overlap, from first to last byte."""
    found: dict[str, TensorInfo] = {}
    expected = 0
    for name, dtype, shape, begin, end in sorted(entries, key=lambda entry: entry[3:]):
        bits = DTYPE_BITS.get(dtype)
        if bits is None:
            raise CorruptCheckpoint(
                f"{file}: tensor {name} has the dtype {dtype}; known are {', '.join(DTYPE_BITS)}.", param=name
            )
        size = bits // 8
        for dimension in shape:
            # Checked at every step, as the library does: a later 0 doesn't heal an overflow.
            size *= dimension
            if dimension > MAX_DIMENSION or size > MAX_FILE_BYTES:
                raise CorruptCheckpoint(f"{file}: tensor {name} has the impossible shape {list(shape)}.", param=name)
        if begin != expected or end < begin:
            raise CorruptCheckpoint(
                f"{file}: tensor {name} lies at bytes {begin} to {end} of the data; it must begin at {expected}, where "
                "the tensor before it ends.",
                param=name,
            )
        if end > data_bytes:
            raise CorruptCheckpoint(
                f"{file}: tensor {name} ends at byte {end} of the data, but there are {data_bytes}; the file is "
                "truncated.",
                param=name,
            )
        if end - begin != size:
            raise CorruptCheckpoint(
                f"{file}: tensor {name} ({dtype}, shape {list(shape)}) needs {size} bytes, but has {end - begin}.",
                param=name,
            )
        found[name] = TensorInfo(dtype, shape, file, data_start + begin, data_start + end)
        expected = end
    if expected != data_bytes:
        raise CorruptCheckpoint(f"{file} has {data_bytes - expected} bytes behind its last tensor.", param=file)
    return found
