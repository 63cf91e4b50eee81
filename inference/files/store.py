"""Bytes of the API's files: named by their digest, read-only, below the data directory.

    <data>/files/<sha256>        whole files
    <data>/files/tmp/<random>    being written; a killed process leaves them, the sweep removes old ones

Rows say whose a file is (``inference.files.services``); several may speak for one digest, and the bytes go with the
last. Publishing and removing happen under one kernel lock, so that bytes can't go away between a look and a link.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO

from django.conf import settings

from inference.errors import RequestTooLarge, StorageFull
from inference.host import disk
from inference.host.disk import kernel_lock

READ_BYTES = 1 << 20
RESERVE_BYTES = 256 << 20
"""Room on the disk that files leave to the database."""
STRAY_S = 24 * 3600.0


def _directory() -> Path:
    directory = Path(settings.BLAZR_FILES_DIR)
    (directory / "tmp").mkdir(parents=True, exist_ok=True, mode=0o700)
    return directory


def file_path(sha256: str) -> Path:
    """Where the bytes of a digest are."""
    return _directory() / sha256


class FileWriter:
    """Writes a new file piece by piece; memory stays flat.

    ``publish`` (or ``discard``) ends it.

    Args:
        max_bytes: More are refused while they arrive; None: no limit.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        self.size_bytes = 0
        self._max_bytes = max_bytes
        self._digest = hashlib.sha256()
        self._path = _directory() / "tmp" / secrets.token_hex(16)
        with full_disk_as_error():
            if shutil.disk_usage(self._path.parent).free < RESERVE_BYTES:
                raise StorageFull("the server's disk has no room for files; delete some and try again.")
            self._file = self._path.open("xb")

    def write(self, piece: bytes) -> None:
        """Append.

        Raises:
            RequestTooLarge: Over ``max_bytes``; the file is discarded.
            StorageFull: The disk is full; likewise.
        """
        self.size_bytes += len(piece)
        try:
            if self._max_bytes is not None and self.size_bytes > self._max_bytes:
                raise RequestTooLarge(
                    f"The file has more than {self._max_bytes:,} bytes, the limit of this server; split it.",
                    param="file",
                )
            with full_disk_as_error():
                self._file.write(piece)
        except BaseException:
            self.discard()
            raise
        self._digest.update(piece)

    def publish(self) -> str:
        """Make the file durable and give it its name. Keep ``store_lock`` until a row speaks for it.

        Returns:
            The SHA-256.
        """
        sha256 = self._digest.hexdigest()
        try:
            with full_disk_as_error():
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
            self._path.chmod(0o400)
            self._path.replace(file_path(sha256))
        except BaseException:
            self.discard()
            raise
        descriptor = os.open(_directory(), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return sha256

    def discard(self) -> None:
        """Remove what was written; harmless after ``publish``."""
        with suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)


def open_file(sha256: str) -> IO[bytes]:
    """The bytes of a digest, for reading.

    Raises:
        FileNotFoundError: They are gone.
    """
    return os.fdopen(os.open(file_path(sha256), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def remove(sha256: str) -> None:
    """Remove the bytes of a digest that no row speaks for; with ``store_lock`` held."""
    file_path(sha256).unlink(missing_ok=True)


def sweep_strays() -> int:
    """Remove what killed processes were writing; returns how many files."""
    removed, limit = 0, time.time() - STRAY_S
    for path in (_directory() / "tmp").iterdir():
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < limit:
                path.unlink()
                removed += 1
    return removed


def store_lock() -> AbstractContextManager[None]:
    """Hold while bytes are published and their row is written, or are removed."""
    return kernel_lock(_directory() / ".lock")


def full_disk_as_error() -> AbstractContextManager[None]:
    """A full disk is the caller's to know of.

    Raises:
        StorageFull: The body ran out of room.
    """
    return disk.full_disk_as_error("the server's disk has no room for this file; delete some and try again.")
