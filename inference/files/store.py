"""Store the bytes of the API's files below the data directory, read-only, named by digest.

    <data>/files/<sha256>        whole files
    <data>/files/tmp/<random>    files being written; the sweep removes those of killed processes

Rows hold the owners (``inference.files.services``). Several rows may have the same digest; deleting the last one
removes the bytes. One file lock covers publishing and removing, so that no bytes are removed while a row is stored.
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
"""Free disk space in bytes that files leave to the database."""
STRAY_S = 24 * 3600.0


def _directory() -> Path:
    directory = Path(settings.BLAZR_FILES_DIR)
    (directory / "tmp").mkdir(parents=True, exist_ok=True, mode=0o700)
    return directory


def file_path(sha256: str) -> Path:
    """Return the path of the bytes of a digest."""
    return _directory() / sha256


class FileWriter:
    """Writes a new file piece by piece, in constant memory.

    Call ``publish`` or ``discard`` at the end.

    Args:
        max_bytes: Limit, enforced while bytes arrive; None: no limit.
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
        """Append ``piece``.

        Raises:
            RequestTooLarge: The file exceeds ``max_bytes``; the file is discarded.
            StorageFull: The disk is full; the file is discarded.
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
        """Flush the file to disk and give it its name. Hold ``store_lock`` until a row has the digest.

        Returns:
            The SHA-256 as hexadecimal digits.
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
        """Remove the unfinished file; does nothing after ``publish``."""
        with suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)


def open_file(sha256: str) -> IO[bytes]:
    """Open the bytes of a digest for reading.

    Raises:
        FileNotFoundError: The bytes were removed.
    """
    return os.fdopen(os.open(file_path(sha256), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def remove(sha256: str) -> None:
    """Remove the bytes of a digest that no row has; the caller holds ``store_lock``."""
    file_path(sha256).unlink(missing_ok=True)


def sweep_strays() -> int:
    """Remove unfinished files of killed processes and return their number."""
    removed, limit = 0, time.time() - STRAY_S
    for path in (_directory() / "tmp").iterdir():
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < limit:
                path.unlink()
                removed += 1
    return removed


def store_lock() -> AbstractContextManager[None]:
    """Return the lock to hold while bytes and their row are stored or removed."""
    return kernel_lock(_directory() / ".lock")


def full_disk_as_error() -> AbstractContextManager[None]:
    """Translate errors of a full disk into ``StorageFull``.

    Raises:
        StorageFull: The disk is full.
    """
    return disk.full_disk_as_error("the server's disk has no room for this file; delete some and try again.")
