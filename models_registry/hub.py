"""Download checkpoints from the HuggingFace hub into its usual cache.

Used by ``blazr pull``, ``blazr serve --model ORG/NAME`` and ``models_registry.pulls``. Offline, the cached files are
used. The module needs no Django, so that commands can use it alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from inference.errors import (
    BlazrError,
    CheckpointError,
    CorruptCheckpoint,
    InvalidRequest,
    NotFound,
    PermissionRefused,
    RequestTooLarge,
    Unavailable,
)
from inference.host.units import format_bytes
from inference.modelling.encodings.quantisation_config import SIDE_FILES
from inference.modelling.gguf.vocabulary_file import VOCABULARY_FILE
from models_registry.hub_files import MAX_BYTES, fetch_into_cache

FETCHING, CHECKING = "fetching", "checking"
"""Stages of a download."""
SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_REPO_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?\Z")
_SERVED = (
    "config.json",
    "generation_config.json",
    *SIDE_FILES,
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tekken.json",
    VOCABULARY_FILE,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
_SERVED_SUFFIXES = (".safetensors", ".safetensors.index.json", ".tiktoken")


@dataclass(frozen=True, slots=True)
class PullProgress:
    """State of a pull.

    Attributes:
        file: The file that is being downloaded; empty at the end.
        sha256: The file's digest, if the hub has one (large files).
        done_bytes, total_bytes: Downloaded bytes and size of the file.
        stage: ``fetching``, or ``checking`` while the digest of the file is computed.
        fetched_bytes, size_bytes: Downloaded bytes and size of all files; 0: not known.
        received_bytes: What has come over the network in this pull; the rest was in the cache.
    """

    file: str
    sha256: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    stage: str = FETCHING
    fetched_bytes: int = 0
    size_bytes: int = 0
    received_bytes: int = 0


ProgressCallback = Callable[[PullProgress], None]


def is_hub_id(text: str) -> bool:
    """Whether ``text`` can be a hub id (``ORG/NAME``)."""
    return "/" in text and _REPO_ID.match(text) is not None


def hub_host() -> str:
    """Return the host of the hub that pulls ask: that of HF_ENDPOINT, or the official one's."""
    return urlsplit(os.environ.get("HF_ENDPOINT", "")).hostname or "huggingface.co"


def files_to_serve(names: Iterable[str]) -> list[str]:
    """Return the files that serving needs: weights, config, tokenizer, templates; top level only.

    Beside ``model*.safetensors``, a second copy of the weights under another name is omitted (Mistral's
    ``consolidated.safetensors``).
    """
    top = [name for name in names if "/" not in name]
    chosen = sorted(name for name in top if name in _SERVED or name.endswith(_SERVED_SUFFIXES))
    if any(name.startswith("model") and name.endswith(".safetensors") for name in chosen):
        chosen = [name for name in chosen if not name.startswith("consolidated")]
    return chosen


def hub_pull(
    repo_id: str,
    revision: str | None = None,
    progress: ProgressCallback | None = None,
    *,
    endpoint: str | None = None,
    cache_dir: Path | None = None,
    max_bytes: int | None = None,
) -> Path:
    """Download the files that serving needs, resuming partial files; returns the directory.

    Args:
        repo_id: ``ORG/NAME``.
        revision: Branch, tag or commit; None: the main branch.
        progress: Called often, in this thread.
        endpoint: URL of the hub; None: HF_ENDPOINT, or the official hub.
        cache_dir: Directory of the cache; None: that of HF_HOME.
        max_bytes: Limit, checked before the download.

    Raises:
        InvalidRequest: ``repo_id`` is no repository id.
        RequestTooLarge: The files that serving needs have more than ``max_bytes``.
        NotFound: The hub has no such repository or revision.
        PermissionRefused: The repository is private or gated.
        CheckpointError: The repository has no .safetensors weights, or its files aren't as the hub states them.
        Unavailable: The hub can't be reached, and the cache doesn't have the repository.
    """
    try:
        info = hub_model(repo_id, revision, endpoint)
    except BlazrError:
        raise
    except Exception as error:
        return _from_cache(repo_id, revision, cache_dir, error)
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}
    files = files_to_serve(sizes)
    _require_weights(repo_id, files)
    total = sum(sizes[name] for name in files)
    if max_bytes is not None and total > max_bytes:
        raise RequestTooLarge(
            f"{repo_id} has {format_bytes(total)} of weights and tokenizer files, the limit is "
            f"{format_bytes(max_bytes)}.",
            param="model",
        )
    digests = {sibling.rfilename: sibling.lfs.sha256 for sibling in info.siblings or () if sibling.lfs is not None}
    remote = [_RemoteFile(name, sizes[name], digests.get(name) or "") for name in files]
    for item in remote:
        if item.sha256 and not SHA256.match(item.sha256):  # it becomes a file's name
            raise CorruptCheckpoint(
                f"the hub states {item.sha256[:80]!r} as the SHA-256 of {item.name}, which is none; check HF_ENDPOINT.",
                param=item.name,
            )
    return _download(repo_id, info.sha or revision or "main", remote, progress, endpoint, cache_dir)


def hub_model(repo_id: str, revision: str | None, endpoint: str | None) -> Any:
    """Return what the hub says of a repository, with its files' sizes.

    Raises:
        InvalidRequest, NotFound, PermissionRefused: As ``hub_pull``. Other errors are the library's own.
    """
    from huggingface_hub import HfApi, errors

    if not _REPO_ID.match(repo_id):
        raise InvalidRequest(f"{repo_id[:80]!r} is not a hub id; they look like ORG/NAME.", param="model")
    try:
        return HfApi(endpoint=endpoint).model_info(repo_id, revision=revision, files_metadata=True, timeout=20)
    except errors.GatedRepoError:
        raise gated(repo_id) from None
    except errors.RevisionNotFoundError:
        raise NotFound(f"{repo_id} has no revision {str(revision)[:60]!r}.", param="revision") from None
    except errors.RepositoryNotFoundError:
        raise NotFound(
            f"the hub has no model {repo_id} (or it is private and HF_TOKEN isn't set).", param="model"
        ) from None


def gated(repo_id: str) -> PermissionRefused:
    """Return the error for a repository whose terms nobody has accepted."""
    return PermissionRefused(
        f"{repo_id} is gated; accept its terms on the hub and set HF_TOKEN to a token of that account."
    )


@dataclass(frozen=True, slots=True)
class _RemoteFile:
    name: str
    size_bytes: int
    sha256: str


def _require_weights(repo_id: str, files: Sequence[str]) -> None:
    if not any(name.endswith(".safetensors") for name in files):
        raise CheckpointError(
            f"{repo_id} has no .safetensors weights at its top level; other formats are not read.", param="model"
        )


class _Meter:
    """Counts the bytes of a repository's files, and reports them.

    Args:
        size_bytes: Of all files.
    """

    def __init__(self, repo_id: str, size_bytes: int, progress: ProgressCallback | None) -> None:
        self._repo_id = repo_id
        self._size_bytes = size_bytes
        self._progress = progress
        self._item = _RemoteFile("", 0, "")
        self._num_before = 0
        self._num_received = 0

    def begin(self, item: _RemoteFile) -> None:
        """Count for another file from here on."""
        self._num_before += self._item.size_bytes
        self._item = item
        self.report(0)

    def report(self, count: int, received: int = 0, stage: str = FETCHING) -> None:
        """Report how much of the file is here.

        Args:
            count: Bytes of the file that are here.
            received: Bytes that have come since the last report.

        Raises:
            CorruptCheckpoint: More has come than the hub states.
        """
        item = self._item
        # Larger files come in the library's own way, which counts otherwise.
        if 0 < item.size_bytes <= MAX_BYTES and count > item.size_bytes:
            raise CorruptCheckpoint(
                f"{item.name} of {self._repo_id} has more than the {format_bytes(item.size_bytes)} that the hub "
                "states; check HF_ENDPOINT.",
                param=item.name,
            )
        self._num_received += max(received, 0)
        if self._progress is not None:
            done = min(count, item.size_bytes)
            fetched = self._num_before + done
            figures = (done, item.size_bytes, stage, fetched, self._size_bytes, self._num_received)
            self._progress(PullProgress(item.name, item.sha256, *figures))

    def check(self) -> None:
        """Report that the file is here and is being compared with its digest."""
        self.report(self._item.size_bytes, stage=CHECKING)


def _download(
    repo_id: str,
    commit: str,
    files: Sequence[_RemoteFile],
    progress: ProgressCallback | None,
    endpoint: str | None,
    cache_dir: Path | None,
) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    place = Path()
    meter = _Meter(repo_id, sum(item.size_bytes for item in files), progress)
    bar = _reporting_bar(meter.report)
    for item in files:
        meter.begin(item)
        try:
            if item.sha256 and item.size_bytes <= MAX_BYTES:
                fetch_into_cache(
                    repo_id,
                    item.name,
                    commit=commit,
                    sha256=item.sha256,
                    size_bytes=item.size_bytes,
                    endpoint=endpoint,
                    cache_dir=cache_dir,
                    bar=bar,
                    on_check=meter.check,
                )
            file = hf_hub_download(
                repo_id, item.name, revision=commit, endpoint=endpoint, cache_dir=cache_dir, tqdm_class=bar
            )
        except LocalEntryNotFoundError as error:
            raise _unreachable(repo_id, error) from error
        except OSError as error:
            raise Unavailable(
                f"{item.name} of {repo_id} could not be fetched ({offline_error(error)}); pull it again: it goes on "
                "where it broke off."
            ) from error
        meter.report(item.size_bytes)  # also for a file from the cache
        place = Path(file).parent
    if progress is not None:
        progress(PullProgress(""))
    return place


def _from_cache(repo_id: str, revision: str | None, cache_dir: Path | None, error: Exception) -> Path:
    """Return the cached snapshot, if it has weights and a config."""
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(repo_id, revision=revision, cache_dir=cache_dir, local_files_only=True)
    except Exception:
        raise _unreachable(repo_id, error) from error
    place = Path(str(found))
    _require_weights(repo_id, [entry.name for entry in place.iterdir()])
    return place


def _unreachable(repo_id: str, error: Exception) -> Unavailable:
    return Unavailable(
        f"{repo_id} is not in the local cache and the hub can't be reached ({offline_error(error)}); "
        "connect to the network once, or give a path to a checkpoint."
    )


def offline_error(error: Exception) -> str:
    """Return what an error of the hub's library says, for a message: the hub's status, or its first line."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"it answered {status}"
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160]}" if text else type(error).__name__


def _reporting_bar(report: Callable[[int, int], None]) -> Any:
    """Return a replacement of the hub library's progress bar that only counts bytes: those here, and the new ones."""
    from huggingface_hub.utils.tqdm import tqdm

    class ReportingBar(tqdm):
        """A bar that prints nothing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]
            self._seen = int(kwargs.get("initial") or 0)
            report(self._seen, 0)

        def update(self, n: float | None = 1) -> bool | None:
            self._seen += int(n or 0)
            report(self._seen, int(n or 0))
            return None

    return ReportingBar
