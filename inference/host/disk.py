"""What stores of files on this machine's disk share. Standard library only, besides the errors."""

from __future__ import annotations

import errno
import fcntl
import os
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
