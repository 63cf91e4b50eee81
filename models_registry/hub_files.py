"""Fetch large files of the hub into its cache so that a killed download goes on in a later process.

The hub's library (2.4) begins each file anew in every process. Here the bytes are kept under a name of their own
beside the cache's blobs, one process writes at a time, and the file is a blob once its SHA-256 is right. The library
then finds it there.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.errors import BlazrError, ChecksumMismatch, Unavailable
from inference.host.disk import full_disk_as_error, kernel_lock

MAX_BYTES = 50 << 30
"""The hub sends larger files to its own library only."""


_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,199}\Z")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository, as the hub states it.

    Attributes:
        name: Its path in the repository.
        sha256: Empty: the hub has none, as for small files.
    """

    name: str
    size_bytes: int
    sha256: str


def fetch_into_cache(
    repo_id: str,
    name: str,
    *,
    commit: str,
    sha256: str,
    size_bytes: int,
    endpoint: str | None,
    cache_dir: Path | None,
    bar: type[Any],
    on_check: Callable[[], None] | None = None,
) -> None:
    """Fetch a file whose digest the hub has, unless the cache has it.

    Args:
        repo_id, name, commit: Of the file.
        sha256, size_bytes: As the hub states them.
        endpoint: URL of the hub; None: HF_ENDPOINT, or the official hub.
        cache_dir: Directory of the cache; None: that of HF_HOME.
        bar: The library's kind of progress bar.
        on_check: Called when all bytes are here, before their digest is computed.

    Raises:
        ChecksumMismatch: The content has another digest; nothing of it is kept.
        Unavailable: The file can't be fetched; what came is kept, unless it is more than ``size_bytes``.
        StorageFull: The disk is full.
    """
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(repo_id, name, revision=commit, endpoint=endpoint)
    blobs = _blobs_dir(repo_id, cache_dir)
    blob, part = blobs / sha256, _part(blobs, sha256)
    blobs.mkdir(parents=True, exist_ok=True)
    full = full_disk_as_error(f"the disk of {blobs} has no room for {name}; free some space, or set HF_HOME.")
    with kernel_lock(blobs / f"{sha256}.blazr-lock"), full:
        if blob.exists():
            return
        part.touch()
        try:
            _append(url, part, size_bytes, bar)
        except (BlazrError, OSError):
            if part.stat().st_size > size_bytes:  # more came than was stated
                part.unlink()
            raise
        except Exception as error:
            raise Unavailable(
                f"{name} of {repo_id} could not be fetched ({type(error).__name__}); pull it again: it goes on where "
                "it broke off."
            ) from error
        if on_check is not None:
            on_check()
        found = _digest(part)
        if found != sha256:
            part.unlink()
            raise ChecksumMismatch(
                f"{name} of {repo_id} has the SHA-256 {found}, but the hub states {sha256}; pull it again.", param=name
            )
        part.replace(blob)


def _append(url: str, part: Path, size_bytes: int, bar: type[Any]) -> None:
    """Fetch what is missing of a file; one that is too long begins anew."""
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils._headers import build_hf_headers

    with part.open("r+b") as file:
        size = file.seek(0, 2)
        if size > size_bytes:
            size = file.truncate(0)
            file.seek(0)
        headers = build_hf_headers()
        http_get(url, file, resume_size=size, headers=headers, expected_size=size_bytes, tqdm_class=bar)


def read_range(
    repo_id: str, file: RemoteFile, begin: int, end: int, *, commit: str, endpoint: str | None, cache_dir: Path | None
) -> bytes:
    """Return some bytes of a file: from the cache as far as a pull has left them there, else over the network.

    Args:
        begin, end: The first byte, and the one behind the last; within the file.

    Raises:
        Unavailable: They can't be fetched.
    """
    blobs = _blobs_dir(repo_id, cache_dir)
    for place in (blobs / file.sha256, _part(blobs, file.sha256)) if file.sha256 else ():
        try:
            with place.open("rb") as cached:
                cached.seek(begin)
                if len(found := cached.read(end - begin)) == end - begin:
                    return found
        except OSError:
            continue
    try:
        found = _fetch_range(repo_id, file.name, begin, end, commit=commit, endpoint=endpoint)
    except Exception as error:
        raise Unavailable(
            f"the header of {file.name} of {repo_id} could not be fetched ({type(error).__name__}); try again."
        ) from error
    if len(found) != end - begin:
        raise Unavailable(
            f"the hub sent {len(found)} bytes of {file.name} of {repo_id} where {end - begin} were asked for; try "
            "again, or check HF_ENDPOINT."
        )
    return found


def _fetch_range(repo_id: str, name: str, begin: int, end: int, *, commit: str, endpoint: str | None) -> bytes:
    """Ask for a range, and read no more than that, also of a server that sends the whole file."""
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils._http import hf_raise_for_status, http_stream_backoff

    url = hf_hub_url(repo_id, name, revision=commit, endpoint=endpoint)
    headers = {**build_hf_headers(), "Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
    received = bytearray()
    with http_stream_backoff("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response:
        hf_raise_for_status(response)
        skipped = begin if response.status_code == 200 else 0  # the whole file comes, from its beginning
        for piece in response.iter_bytes():
            received += piece[skipped:]
            skipped = max(0, skipped - len(piece))
            if len(received) >= end - begin:
                break
    return bytes(received[: end - begin])


def cached_bytes(repo_id: str, sha256: str, *, size_bytes: int, cache_dir: Path | None) -> int:
    """Return how much of a file that ``fetch_into_cache`` would fetch the cache has."""
    blobs = _blobs_dir(repo_id, cache_dir)
    if (blobs / sha256).exists():
        return size_bytes
    try:
        return min(_part(blobs, sha256).stat().st_size, size_bytes)
    except OSError:
        return 0


def remember_revision(repo_id: str, revision: str, commit: str, cache_dir: Path | None) -> None:
    """Note in the cache which commit a branch or tag is, so that its files are found there without a network."""
    from huggingface_hub.file_download import _cache_commit_hash_for_specific_revision

    if _REVISION.match(revision) and ".." not in revision:  # it becomes a file's path
        _cache_commit_hash_for_specific_revision(str(_blobs_dir(repo_id, cache_dir).parent), revision, commit)


def free_cache_bytes(cache_dir: Path | None) -> int:
    """Return the free bytes of the disk that the cache is on, or would be."""
    place = _cache_dir(cache_dir).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def _cache_dir(cache_dir: Path | None) -> Path:
    from huggingface_hub import constants

    return Path(cache_dir or constants.HF_HUB_CACHE)


def _blobs_dir(repo_id: str, cache_dir: Path | None) -> Path:
    from huggingface_hub.file_download import repo_folder_name

    return _cache_dir(cache_dir) / repo_folder_name(repo_id=repo_id, repo_type="model") / "blobs"


def _part(blobs: Path, sha256: str) -> Path:
    return blobs / f"{sha256}.blazr-part"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
