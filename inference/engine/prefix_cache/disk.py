"""DiskTier: write and read blocks and snapshots as files, in threads of their own.

One directory per model (``model_key``: weights, spec, number formats, block size), one file per block or snapshot:

    magic, header length, header (JSON: kind, digest, parent's digest, tokens), payload, checksum of everything before

A file is written under a temporary name and renamed; incomplete and foreign files are removed when they are read. The
budget covers all models in the directory. The least recently used files are removed first, and of one sequence the
files of its end first. Several processes may share the directory: a missing file is a cache miss.

The files hold the tokens of prompts, and states from which tokens could be derived; so only the owner can read them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast
from weakref import WeakValueDictionary

import numpy as np

from inference.engine.prefix_cache.state_access import Payload
from inference.errors import InvalidRequest

logger = logging.getLogger(__name__)

MAGIC = b"blazrPC1"
MAX_HEADER_BYTES = 16 << 20
CHECKSUM_BYTES = 16
MAX_PENDING_BYTES = 256 << 20
"""Maximum bytes of states that wait to be written; further states aren't written. Each is copied when it is written."""
TEMPORARY_FOR_S = 600
FREE_SHARE = 0.1
"""Share of the budget that is freed when the budget is exceeded."""

Kind = Literal["block", "state"]
Key = tuple[Kind, bytes]


@dataclass(frozen=True, slots=True)
class Entry:
    """The content of one file: the state of ``tokens``, which follow the prefix with the digest ``parent``.

    Attributes:
        kind: ``block``: paged state of the tokens; ``state``: recurrent state after the last token.
        digest: Digest of the namespace and of all tokens up to the last.
        start: Position of the first token.
    """

    kind: Kind
    digest: bytes
    parent: bytes
    start: int
    tokens: tuple[int, ...]

    @property
    def key(self) -> Key:
        """The entry's key among its model's entries."""
        return self.kind, self.digest

    @property
    def file_name(self) -> str:
        """The name of the entry's file; the position in it orders removals."""
        return f"{self.digest.hex()}.{self.start + len(self.tokens)}.{self.kind}"


class DiskTier:
    """Write, read and remove the files of one model.

    Args:
        directory: Directory of all models; created if it doesn't exist.
        model_key: Identifies the model and everything that its states depend on.
        budget_bytes: Budget of all models together.

    Attributes:
        missing: Keys of files that were removed or couldn't be read; the owner takes them from here.
    """

    def __init__(self, directory: Path, model_key: str, budget_bytes: int) -> None:
        self.missing: deque[Key] = deque()
        self.num_written = self.num_skipped = self.num_corrupt = self.num_removed = 0
        self._top = directory / "v1"
        self._root = self._top / hashlib.sha256(model_key.encode()).hexdigest()[:32]
        self._budget = budget_bytes
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequest(
                f"the cache directory {str(directory)!r} can't be used ({error.strerror}); choose another.",
                param="cache_dir",
            ) from error
        self._lock = threading.Lock()
        self._pending_bytes = 0
        self._in_use: WeakValueDictionary[Key, Payload] = WeakValueDictionary()  # of the reader's thread
        self._total_bytes = sum(size for _, _, size, _ in self._files())
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="prefix-write")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="prefix-read")

    @property
    def total_bytes(self) -> int:
        """Bytes of all models' files, without later changes of other processes."""
        return self._total_bytes

    def scan(self) -> list[Entry]:
        """Return all entries of the model, shortest sequences first; remove invalid files."""
        found = []
        for path in list(self._root.iterdir()):
            entry = self._read_entry(path)
            if entry is None and path.suffix == ".tmp" and _is_recent(path):
                continue  # another process writes it
            if entry is None:
                self._discard(path, corrupt=True)
            else:
                found.append(entry)
        return sorted(found, key=lambda entry: (entry.start, entry.kind))

    def save(
        self, entry: Entry, size_bytes: int, read: Callable[[], Payload], is_intact: Callable[[], bool], stamp: int
    ) -> bool:
        """Queue the write of an entry.

        Args:
            size_bytes: Size of the payload.
            read: Copies the payload; called in the writer's thread.
            is_intact: Called after ``read``; False if the source was overwritten, and the entry isn't written.
            stamp: Time of the last use, in nanoseconds since the epoch.

        Returns:
            Whether the write is queued; False when ``MAX_PENDING_BYTES`` wait.
        """
        with self._lock:
            if self._pending_bytes + size_bytes > max(MAX_PENDING_BYTES, size_bytes):
                self.num_skipped += 1
                return False
            self._pending_bytes += size_bytes
        self._writer.submit(self._save, entry, size_bytes, read, is_intact, stamp)
        return True

    def touch(self, entries: Iterable[Entry], stamp: int) -> None:
        """Record that entries were used."""
        self._writer.submit(self._touch, list(entries), stamp)

    def load(self, entries: Iterable[Entry]) -> Future[Mapping[Key, Payload]]:
        """Read entries; the result lacks entries that can't be read.

        Results share the payload of an entry: requests that begin alike wait at the same time after a restart.
        """
        return self._reader.submit(self._load, list(entries))

    def remove(self, entry: Entry) -> None:
        """Queue the removal of an entry."""
        self._writer.submit(self._discard, self._root / entry.file_name)

    def flush(self) -> None:
        """Wait until all queued work is done."""
        self._writer.submit(_nothing).result()
        self._reader.submit(_nothing).result()

    def close(self) -> None:
        """Write all queued entries and end the threads."""
        self._reader.shutdown(wait=True, cancel_futures=True)  # the reader submits work to the writer
        self._writer.shutdown(wait=True)

    # --- threads -------------------------------------------------------------------------------

    def _save(
        self, entry: Entry, size_bytes: int, read: Callable[[], Payload], is_intact: Callable[[], bool], stamp: int
    ) -> None:
        try:
            payload = read()
            if not is_intact():
                self.num_skipped += 1
                self.missing.append(entry.key)
                return
            self._write(entry, payload, stamp)
        except OSError as error:
            logger.warning("a prefix could not be written to the cache directory: %s", error)
            self.missing.append(entry.key)
        except Exception:
            logger.exception("a prefix could not be written to the cache directory")
            self.missing.append(entry.key)
        finally:
            with self._lock:
                self._pending_bytes -= size_bytes

    def _write(self, entry: Entry, payload: Payload, stamp: int) -> None:
        header = json.dumps(
            {
                "kind": entry.kind,
                "digest": entry.digest.hex(),
                "parent": entry.parent.hex(),
                "start": entry.start,
                "tokens": entry.tokens,
                "size": payload.nbytes,
            }
        ).encode()
        head = MAGIC + struct.pack("<I", len(header)) + header
        checksum = hashlib.blake2b(head, digest_size=CHECKSUM_BYTES)
        checksum.update(payload.data)
        path = self._root / entry.file_name
        partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        size = len(head) + payload.nbytes + CHECKSUM_BYTES
        if size > self._budget:
            self.num_skipped += 1
            self.missing.append(entry.key)
            return
        self._free_space(size)
        try:
            handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "wb", buffering=0) as file:
                for part in (head, payload.data, checksum.digest()):
                    _write_all(file, part)
            os.utime(partial, ns=(stamp, stamp))
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        self._total_bytes += size
        self.num_written += 1

    def _load(self, entries: list[Entry]) -> Mapping[Key, Payload]:
        found: dict[Key, Payload] = {}
        for entry in entries:
            payload = self._in_use.get(entry.key)
            if payload is None:
                payload = self._read_or_discard(entry)
            if payload is None:
                self.missing.append(entry.key)
            else:
                found[entry.key] = self._in_use[entry.key] = payload
        self.touch(entries, time.time_ns())
        return found

    def _read_or_discard(self, entry: Entry) -> Payload | None:
        """Return the payload of an entry; None if the file can't be read now, or is corrupt, and then removed."""
        path = self._root / entry.file_name
        try:
            payload = self._read_payload(path, entry)
        except (OSError, MemoryError) as error:
            logger.info("a file can't be read from the cache directory: %s", error)
            return None
        if payload is None:
            self._discard(path, corrupt=True)
        return payload

    def _touch(self, entries: list[Entry], stamp: int) -> None:
        for entry in entries:
            try:
                os.utime(self._root / entry.file_name, ns=(stamp, stamp))
            except FileNotFoundError:
                self.missing.append(entry.key)
            except OSError as error:
                logger.warning("the cache directory can't be written: %s", error.strerror)

    # --- files ---------------------------------------------------------------------------------

    def _read_entry(self, path: Path) -> Entry | None:
        """Return the entry of a file; None if the file is no cache file or is incomplete."""
        try:
            if path.is_symlink() or not path.is_file():
                return None
            with path.open("rb") as file:
                header = _read_header(file.read(12), lambda size: file.read(size))
            if header is None:
                return None
            entry = Entry(
                cast("Kind", {"block": "block", "state": "state"}[header["kind"]]),
                bytes.fromhex(header["digest"]),
                bytes.fromhex(header["parent"]),
                int(header["start"]),
                tuple(int(token) for token in header["tokens"]),
            )
            size = header["header_bytes"] + int(header["size"]) + CHECKSUM_BYTES
            return entry if path.name == entry.file_name and path.stat().st_size == size else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _read_payload(self, path: Path, entry: Entry) -> Payload | None:
        """Return the payload of an entry; None if the file is corrupt."""
        content = np.fromfile(path, np.uint8)
        data = content.data
        try:
            header = _read_header(bytes(data[:12]), lambda size: bytes(data[12 : 12 + size]))
            if header is None or header["kind"] != entry.kind or tuple(header["tokens"]) != entry.tokens:
                return None
            begin, size = header["header_bytes"], int(header["size"])
        except (ValueError, KeyError, TypeError):
            return None
        if begin + size + CHECKSUM_BYTES != len(content):
            return None
        checksum = hashlib.blake2b(data[: begin + size], digest_size=CHECKSUM_BYTES).digest()
        return content[begin : begin + size] if checksum == bytes(data[begin + size :]) else None

    def _files(self) -> list[tuple[int, int, int, Path]]:
        """Return (time of last use, negative position, size, path) of all models' files."""
        found = []
        for path in self._top.glob("*/*"):
            try:
                status = path.lstat()
            except OSError:
                continue
            parts = path.name.split(".")
            position = int(parts[1]) if len(parts) > 2 and parts[1].isdigit() else 0
            found.append((status.st_mtime_ns, -position, status.st_size, path))
        return found

    def _free_space(self, size: int) -> None:
        if self._total_bytes + size <= self._budget:
            return
        files = sorted(self._files())
        total = sum(entry[2] for entry in files)
        target = max(0, int(self._budget * (1 - FREE_SHARE)) - size)
        for _, _, file_size, path in files:
            if total <= target:
                break
            self._discard(path)
            total -= file_size
            self.num_removed += 1
            digest, _, rest = path.name.partition(".")
            kind = rest.partition(".")[2]
            if path.parent == self._root and kind in ("block", "state"):
                self.missing.append((cast("Kind", kind), bytes.fromhex(digest)))
        self._total_bytes = total

    def _discard(self, path: Path, *, corrupt: bool = False) -> None:
        self.num_corrupt += corrupt
        try:
            size = path.lstat().st_size
            path.unlink()
            self._total_bytes = max(0, self._total_bytes - size)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                logger.warning("%s can't be removed from the cache directory: %s", path.name, error.strerror)


def _read_header(prefix: bytes, read: Callable[[int], bytes]) -> dict[str, Any] | None:
    if len(prefix) != 12 or prefix[:8] != MAGIC:
        return None
    size = struct.unpack("<I", prefix[8:])[0]
    if size > MAX_HEADER_BYTES:
        return None
    header: dict[str, Any] = json.loads(read(size))
    header["header_bytes"] = 12 + size
    return header


def _is_recent(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime < TEMPORARY_FOR_S
    except OSError:
        return True


def _write_all(file: Any, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _nothing() -> None:
    return None
