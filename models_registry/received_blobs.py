"""Keep files that arrive by their digest (``/api/blobs``) until a model is made of them, or an hour has passed.

<data>/blobs/<sha256>            the file, as of every upload
<data>/blobs/received/<sha256>   a second link, which keeps the file while no checkpoint has it
<data>/blobs/received/*.part     being received; its writer holds a lock
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from django.conf import settings

from inference.errors import ChecksumMismatch, InvalidRequest, NotFound, RequestTooLarge, StorageFull
from inference.host.disk import try_lock
from models_registry import storage

KEPT_S = 3600.0
"""How long a file stays after it has arrived, or was last asked for."""
DISK_RESERVE_BYTES = 256 << 20
MAX_FILES = 1000
_WAITING_LINKS = 2
"""Links of a file that waits: its blob, and the one that keeps it."""
_READ_BYTES = 1 << 20
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})\Z")


def digest_of(text: str) -> str:
    """Return the hexadecimal digits of ``sha256:…``.

    Raises:
        InvalidRequest: It is no such digest.
    """
    match = _DIGEST.match(text)
    if match is None:
        raise InvalidRequest(
            f"the digest {text[:80]!r} must be sha256: and 64 lower-case hexadecimal digits.", param="digest"
        )
    return match[1]


def blob_hold(sha256: str) -> Path:
    """Return the path of a file, which stays for an hour from now on.

    Raises:
        NotFound: It isn't here.
    """
    blob, held = storage.blobs_dir() / sha256, _directory() / sha256
    with storage.blobs_lock():
        if not blob.exists():
            raise NotFound(f"there is no blob sha256:{sha256}; send it to /api/blobs first.", param="digest")
        _hold(blob, held)
    return blob


def blob_receive(sha256: str, body: IO[bytes], declared_bytes: int) -> None:
    """Store a file under its digest; nothing of it stays unless the digest is right.

    Args:
        declared_bytes: Length of the body, as far as it is known.

    Raises:
        ChecksumMismatch: The content has another digest.
        RequestTooLarge: It has too many bytes, or too many files and bytes wait already.
        StorageFull: The disk is full.
    """
    with suppress(NotFound):
        blob_hold(sha256)
        return
    budget = int(settings.BLAZR_MAX_UPLOAD_BYTES) - _waiting_bytes()
    if declared_bytes > budget:
        raise _over_budget()
    with storage.full_disk_as_error():
        if storage.free_bytes() - declared_bytes < DISK_RESERVE_BYTES:
            raise StorageFull(f"the server's disk has no room for {declared_bytes} bytes; free some space first.")
        with _part() as (part, file):
            digest, size = hashlib.sha256(), 0
            while piece := body.read(_READ_BYTES):
                size += len(piece)
                if size > budget:
                    raise _over_budget()
                digest.update(piece)
                file.write(piece)
            if size == 0:
                raise InvalidRequest("the blob is empty; send the file's bytes as the body.", param="digest")
            if digest.hexdigest() != sha256:
                raise ChecksumMismatch(
                    f"the content has the SHA-256 {digest.hexdigest()}, not {sha256}; it was damaged on the way, or "
                    "the digest is another file's.",
                    param="digest",
                )
            file.flush()
            os.fsync(file.fileno())
            part.chmod(0o444)
            blob = storage.blobs_dir() / sha256
            with storage.blobs_lock():
                if not blob.exists():
                    os.link(part, blob)
                _hold(blob, _directory() / sha256)


def _hold(blob: Path, held: Path) -> None:
    """Make the second link of a file.

    The file's own times belong to the stamps of checkpoints, so a note beside it has the time. The note comes first: of
    a process that is killed in between, nothing stays for ever.
    """
    held.with_name(f"{held.name}.held").touch()
    with suppress(FileExistsError):
        os.link(blob, held)


def received_sweep() -> int:
    """Remove files that no model was made of for an hour, and parts of killed processes; returns their number."""
    removed, oldest = 0, time.time() - KEPT_S
    with storage.blobs_lock():
        for entry in _directory().iterdir():
            if entry.suffix == ".part":
                removed += _remove_unlocked(entry)
            elif entry.suffix == ".held" and entry.stat().st_mtime < oldest:
                entry.with_suffix("").unlink(missing_ok=True)
                entry.unlink(missing_ok=True)
                removed += 1
    return removed


def _directory() -> Path:
    directory = storage.blobs_dir() / "received"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _waiting_bytes() -> int:
    """Return the bytes of files that wait, and refuse further ones where too many do.

    A file that a checkpoint has is linked there too, and waits for nothing.
    """
    sizes = []
    for entry in _directory().iterdir():
        with suppress(FileNotFoundError):  # arrived, or swept, meanwhile
            status = entry.stat()
            if entry.suffix != ".held" and status.st_nlink <= _WAITING_LINKS:
                sizes.append(status.st_size)
    if len(sizes) >= MAX_FILES:
        raise _over_budget()
    return sum(sizes)


def _over_budget() -> RequestTooLarge:
    return RequestTooLarge(
        f"blobs that wait for /api/create have at most {settings.BLAZR_MAX_UPLOAD_BYTES} bytes together "
        f"(BLAZR_MAX_UPLOAD_BYTES) in {MAX_FILES} files; make a model of those that are here, or wait an hour.",
        param="digest",
    )


@contextmanager
def _part() -> Iterator[tuple[Path, IO[bytes]]]:
    """Open a new file that is locked, and removed at the end."""
    part = _directory() / f"{secrets.token_hex(16)}.part"
    with part.open("xb") as file:
        try_lock(file.fileno())
        try:
            yield part, file
        finally:
            part.unlink(missing_ok=True)


def _remove_unlocked(part: Path) -> bool:
    try:
        with part.open("rb") as file:
            if not try_lock(file.fileno()):
                return False
            part.unlink(missing_ok=True)
            return True
    except OSError:
        return False
