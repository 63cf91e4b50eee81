"""Store the bytes of the API's files below the data directory, read-only, named by digest.

    <data>/files/<sha256>        whole files
    <data>/files/tmp/<random>    files being written

A process locks the file that it writes. The sweep removes what killed processes left: unfinished files that nobody
locks, and old bytes without a row.

Rows hold the owners (``inference.files.services``). Several rows may have the same digest; deleting the last one
removes the bytes. One file lock covers publishing and removing, so that no bytes are removed while a row is stored.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO

from asgiref.sync import sync_to_async
from django.conf import settings

from inference.errors import RequestTooLarge, StorageFull
from inference.host import disk
from inference.host.disk import kernel_lock, try_lock
from inference.host.fault_points import fault_point

READ_BYTES = 1 << 20
RESERVE_BYTES = 256 << 20
"""Free disk space in bytes that files leave to the database."""
STRAY_S = 24 * 3600.0
"""Age in seconds of published bytes that the sweep removes when no row names them."""
UNLOCKED_S = 60.0
"""Age in seconds of unfinished files that the sweep removes when nobody locks them; a new file is locked sooner."""


def _directory() -> Path:
    directory = Path(settings.BLAZR_FILES_DIR)
    (directory / "tmp").mkdir(parents=True, exist_ok=True, mode=0o700)
    return directory


def file_path(sha256: str) -> Path:
    return _directory() / sha256


class FileWriter:
    """Writes a new file piece by piece, in constant memory.

    Call ``publish`` or ``discard`` at the end.

    Args:
        max_bytes: Limit, enforced while bytes arrive; None: no limit.
        expected_bytes: Bytes that will come, for which the disk must have room now.
    """

    def __init__(self, max_bytes: int | None = None, *, expected_bytes: int = 0) -> None:
        self.size_bytes = 0
        self._max_bytes = max_bytes
        self._digest = hashlib.sha256()
        self._path = _directory() / "tmp" / secrets.token_hex(16)
        with full_disk_as_error():
            if shutil.disk_usage(self._path.parent).free < RESERVE_BYTES + expected_bytes:
                raise StorageFull("the server's disk has no room for files; delete some and try again.")
            self._file = self._path.open("xb")
            try_lock(self._file.fileno())  # until it is closed

    @property
    def path(self) -> Path:
        """Where the unfinished file is; flush it before it is read."""
        return self._path

    def flush(self) -> None:
        """Bring the bytes to the disk, so that ``publish`` takes little time under locks.

        Raises:
            StorageFull: The disk is full; the file is discarded.
        """
        try:
            with full_disk_as_error():
                self._file.flush()
                os.fsync(self._file.fileno())
        except BaseException:
            self.discard()
            raise

    def write(self, piece: bytes | memoryview) -> None:
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
            self.flush()
            self._file.close()
            self._path.chmod(0o400)
            fault_point("file.publish")
            self._path.replace(file_path(sha256))
        except BaseException:
            self.discard()
            raise
        descriptor = os.open(_directory(), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fault_point("file.published")
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


async def file_pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    """Read a file piece by piece, off the event loop, and close it."""
    try:
        while piece := await sync_to_async(file.read)(READ_BYTES):
            yield piece
    finally:
        file.close()


def remove(sha256: str) -> None:
    """Remove the bytes of a digest that no row has; the caller holds ``store_lock``."""
    file_path(sha256).unlink(missing_ok=True)


def sweep_strays(named: Callable[[Collection[str]], Collection[str]]) -> int:
    """Remove what killed processes left: unfinished files, and old bytes that no row names.

    Args:
        named: Returns those digests that a row names; called while ``store_lock`` is held.

    Returns:
        The number of removed files.
    """
    old = [path for path in unfinished_files() if _is_older(path, UNLOCKED_S) and is_abandoned(path)]
    published = {path.name: path for path in _directory().iterdir() if _is_digest(path.name)}
    published = {name: path for name, path in published.items() if _is_older(path, STRAY_S)}
    with store_lock():
        found = named(published)
        old += [path for name, path in published.items() if name not in found]
        for path in old:
            path.unlink(missing_ok=True)
    return len(old)


def unfinished_files() -> list[Path]:
    """Return the paths of the files that are being written, or that killed processes left."""
    return list((_directory() / "tmp").iterdir())


def is_abandoned(path: Path) -> bool:
    """Whether no process writes an unfinished file any more."""
    try:
        with path.open("rb") as file:
            return try_lock(file.fileno())
    except FileNotFoundError:
        return False


def _is_digest(name: str) -> bool:
    return len(name) == hashlib.sha256().digest_size * 2


def _is_older(path: Path, seconds: float) -> bool:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime < time.time() - seconds
    return False


def store_lock() -> AbstractContextManager[None]:
    """Return the lock to hold while bytes and their row are stored or removed."""
    return kernel_lock(_directory() / ".lock")


def full_disk_as_error() -> AbstractContextManager[None]:
    """Translate errors of a full disk into ``StorageFull``.

    Raises:
        StorageFull: The disk is full.
    """
    return disk.full_disk_as_error("the server's disk has no room for this file; delete some and try again.")
