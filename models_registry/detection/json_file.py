"""Read small JSON files of a checkpoint within limits of size and depth."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from inference.errors import CorruptCheckpoint

MAX_CONFIG_BYTES = 1 << 20
MAX_DEPTH = 32


def read_bytes(path: Path, limit: int) -> bytes:
    """A whole file.

    Raises:
        CorruptCheckpoint: Not a regular file, unreadable, or larger than ``limit`` bytes.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CorruptCheckpoint(f"{path.name} can't be opened: {error.strerror or error}.", param=path.name) from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CorruptCheckpoint(f"{path.name} is not a regular file.", param=path.name)
        try:
            content = b"" if status.st_size > limit else file.read(limit + 1)
        except OSError as error:
            raise CorruptCheckpoint(f"{path.name} can't be read: {error.strerror}.", param=path.name) from None
    if max(status.st_size, len(content)) > limit:
        raise CorruptCheckpoint(f"{path.name} has {status.st_size} bytes; the limit is {limit}.", param=path.name)
    if len(content) != status.st_size:  # also a link into /proc, whose files have no size
        raise CorruptCheckpoint(
            f"{path.name} has {status.st_size} bytes, but {len(content)} were read; it changed meanwhile, or is no "
            "file on a disk.",
            param=path.name,
        )
    return content


def read_text(path: Path, limit: int) -> str:
    """A whole UTF-8 file; a byte order mark is dropped."""
    try:
        return read_bytes(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(f"{path.name} is not UTF-8 text (byte {error.start}).", param=path.name) from None


def read_object(path: Path, limit: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """A file that holds one JSON object. Bare ``Infinity`` and ``NaN`` are read, as older tools wrote them.

    Raises:
        CorruptCheckpoint: Not JSON, not an object, too large or too deep.
    """
    try:
        value = json.loads(read_text(path, limit))
    except RecursionError:
        raise _too_deep(path) from None
    except ValueError as error:
        # json's messages quote nothing of the content, only positions.
        raise CorruptCheckpoint(f"{path.name} is not JSON: {str(error)[:120]}.", param=path.name) from None
    if not isinstance(value, dict):
        raise CorruptCheckpoint(f"{path.name} must hold a JSON object.", param=path.name)
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            member
            for item in level
            for member in (item.values() if isinstance(item, dict) else item)
            if isinstance(member, dict | list)
        ]
        if not level:
            return value
    raise _too_deep(path)


def _too_deep(path: Path) -> CorruptCheckpoint:
    return CorruptCheckpoint(f"{path.name} is nested more than {MAX_DEPTH} levels deep.", param=path.name)
