"""Store uploaded files: receive, publish as read-only blobs, link into checkpoints, remove.

    <data>/uploads/<upload id>/<number>.part   being received; ``lock`` is held by the process that checks them
    <data>/uploads/<job id>/                   the same for a job; a quantisation's child writes ``checkpoint``
    <data>/blobs/<sha256>                      whole files, read-only
    <data>/blobs/received/                     links of those that no checkpoint has yet (``received_blobs``)
    <data>/checkpoints/<checkpoint id>/<name>  hard links to blobs: what gets served
    <data>/checkpoints/<checkpoint id>/copy/   copies of a trainer's files; ``lock`` is held by who makes them

A blob with one link left belongs to no checkpoint and may be removed. Blobs are moved and removed under one file
lock, so that a sweep in another process can't remove a blob that is about to be linked. Locks are kernel locks: a
killed process holds none.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from django.conf import settings

from inference.host import disk
from inference.host.disk import kernel_lock, try_lock

_READ_BYTES = 1 << 20
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV}


def uploads_dir() -> Path:
    return _create_private(Path(settings.BLAZR_UPLOADS_DIR))


def blobs_dir() -> Path:
    """Return the directory of whole files by digest."""
    return _create_private(Path(settings.BLAZR_BLOBS_DIR))


def checkpoints_dir() -> Path:
    return _create_private(Path(settings.BLAZR_CHECKPOINTS_DIR))


def upload_path(upload_id: uuid.UUID | str) -> Path:
    """Return the directory of an upload or a job that is under way."""
    return uploads_dir() / str(upload_id)


def part_path(upload_id: uuid.UUID, number: int) -> Path:
    """Return the temporary path of one file of an upload, which the uploader does not name."""
    return upload_path(upload_id) / f"{number}.part"


def checkpoint_path(checkpoint_id: uuid.UUID) -> Path:
    return checkpoints_dir() / str(checkpoint_id)


def copy_path(checkpoint_id: uuid.UUID) -> Path:
    """Return the directory of copies of a checkpoint's files."""
    return checkpoint_path(checkpoint_id) / "copy"


def copy_lock(checkpoint_id: uuid.UUID) -> AbstractContextManager[bool]:
    """Lock the copies of a checkpoint's files; yields False at once if another process or thread holds the lock."""
    return _directory_lock(checkpoint_path(checkpoint_id))


def copy_files(source: Path, names: Iterable[str], target: Path) -> dict[str, str]:
    """Copy files into a directory that replaces ``target`` once it is whole; returns their SHA-256 by name.

    Raises:
        StorageFull: The disk became full.
    """
    partial = target.with_name("partial")
    _remove_tree(partial)
    digests = {}
    try:
        with full_disk_as_error():
            for name in names:
                file = partial / name
                file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                digests[name] = _copy_file(source / name, file)
        _remove_tree(target)
        partial.rename(target)
    except BaseException:
        _remove_tree(partial)
        raise
    _fsync_directory(target.parent)
    return digests


def _copy_file(source: Path, target: Path) -> str:
    digest = hashlib.sha256()
    with source.open("rb") as read, target.open("xb") as written:
        while chunk := read.read(_READ_BYTES):
            digest.update(chunk)
            written.write(chunk)
        written.flush()
        os.fsync(written.fileno())
    target.chmod(0o444)
    return digest.hexdigest()


def free_bytes() -> int:
    """Return the bytes that can still be written to the disk of the data directory."""
    return shutil.disk_usage(uploads_dir()).free


def full_disk_as_error() -> AbstractContextManager[None]:
    """Turn a full disk into an error for the uploader.

    Raises:
        StorageFull: The disk became full in the block.
    """
    return disk.full_disk_as_error(
        "the server's disk has no room for this; free some space (or delete models) and try again."
    )


def sha256_file(path: Path, on_bytes: Callable[[int], None]) -> str:
    """Return the SHA-256 of a file; ``on_bytes`` gets the bytes of each read, and may raise to stop."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
            on_bytes(len(chunk))
    return digest.hexdigest()


def publish_file(part: Path, sha256: str, target: Path) -> None:
    """Make a received file read-only, store it as a blob, and link the blob to ``target``.

    If the blob exists already, it is linked and the received copy removed. On a filesystem without hard links the file
    itself moves to ``target``.
    """
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.chmod(0o444)
    blob = blobs_dir() / sha256
    with blobs_lock():
        try:
            if blob.exists():
                os.link(blob, target)
                part.unlink()
            else:
                os.link(part, target)
                part.replace(blob)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            part.replace(target)
    _fsync_directory(target.parent)


def prune_blobs() -> int:
    """Remove the blobs that no checkpoint links to; returns their number."""
    removed = 0
    with blobs_lock():
        for blob in blobs_dir().iterdir():
            if len(blob.name) == 64 and blob.stat().st_nlink == 1:
                blob.unlink()
                removed += 1
    return removed


def remove_upload_files(upload_id: uuid.UUID | str) -> None:
    _remove_tree(upload_path(upload_id))


def remove_checkpoint_files(checkpoint_id: uuid.UUID | str) -> None:
    """Remove the directory of an uploaded checkpoint, and the blobs that no other checkpoint uses."""
    _remove_tree(checkpoints_dir() / str(checkpoint_id))
    prune_blobs()


def upload_lock(upload_id: uuid.UUID | str) -> AbstractContextManager[bool]:
    """Lock an upload or a job for work on it; yields False at once if another process holds the lock."""
    return _directory_lock(upload_path(upload_id))


@contextmanager
def _directory_lock(directory: Path) -> Iterator[bool]:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield try_lock(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def part_lock(upload_id: uuid.UUID, number: int) -> Iterator[int | None]:
    """Lock one file of an upload for writing; yields its descriptor, or None at once if another request holds it."""
    path = part_path(upload_id, number)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor if try_lock(descriptor) else None
    finally:
        os.close(descriptor)


def blobs_lock() -> AbstractContextManager[None]:
    """Lock the blobs against sweeps and other writers."""
    return kernel_lock(blobs_dir() / ".lock")


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_tree(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def _create_private(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path
