"""What stores of files on this machine's disk share. Standard library only, besides the errors."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inference.errors import StorageFull

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def full_disk_as_error(message: str) -> Iterator[None]:
    """Turn "no space", "over quota" and "over the file size limit" into ``StorageFull``.

    Raises:
        StorageFull: The body ran out of room.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise StorageFull(message) from error
        raise


def path_exists(path: Path) -> bool:
    """Whether something is at a path; False also where the system can't tell: no permission, a mount that is gone."""
    try:
        return path.exists()
    except OSError:
        return False


@contextmanager
def kernel_lock(path: Path) -> Iterator[None]:
    """Hold the lock on a file, which is made if need be; waits for it. A killed process holds none."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file at once, until it is closed; False: another process or descriptor holds its lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def staging_folder(parent: Path) -> Iterator[Path]:
    """Make a folder for files that aren't complete, and remove it at the end, with those of killed processes.

    The folder itself is locked: the lock of a killed process is free.
    """
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for left in parent.glob(".staging-*"):
        with _locked(left) as is_locked:
            if is_locked:
                shutil.rmtree(left, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=parent))
    try:
        with _locked(staging):
            yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        yield try_lock(descriptor)
    finally:
        os.close(descriptor)
