"""Download checkpoints from the HuggingFace hub into its usual cache.

Used by ``blazr pull``, ``blazr serve --model ORG/NAME`` and ``models_registry.pulls``. Offline, the cached files are
used. The module needs no Django, so that commands can use it alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from inference.errors import (
    BlazrError,
    CheckpointError,
    CorruptCheckpoint,
    NotFound,
    PermissionRefused,
    RequestTooLarge,
    Unavailable,
)
from inference.host.units import format_bytes
from inference.modelling.encodings.quantisation_config import SIDE_FILES
from inference.modelling.gguf.vocabulary_file import VOCABULARY_FILE
from inference.text.tokenisation.tiktoken_file import KIMI_FILE
from models_registry.gguf_choice import choice_message, choose_model, gguf_models
from models_registry.hub_files import MAX_BYTES, RemoteFile, fetch_into_cache, remember_revision
from models_registry.hub_headers import inspect_headers
from models_registry.hub_reference import HubReference

FETCHING, CHECKING = "fetching", "checking"
"""Stages of a download."""
SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_SERVED = (
    "config.json",
    "generation_config.json",
    *SIDE_FILES,
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tekken.json",
    KIMI_FILE,
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


def hub_host() -> str:
    """Return the host of the hub that pulls ask: that of HF_ENDPOINT, or the official one's."""
    return urlsplit(os.environ.get("HF_ENDPOINT", "")).hostname or "huggingface.co"


def files_to_serve(names: Iterable[str]) -> list[str]:
    """Return the files that serving safetensors needs: weights, config, tokenizer, templates; top level only.

    Beside ``model*.safetensors``, a second copy of the weights under another name is omitted (Mistral's
    ``consolidated.safetensors``).
    """
    top = [name for name in names if "/" not in name]
    chosen = sorted(name for name in top if name in _SERVED or name.endswith(_SERVED_SUFFIXES))
    if any(name.startswith("model") and name.endswith(".safetensors") for name in chosen):
        chosen = [name for name in chosen if not name.startswith("consolidated")]
    return chosen


@dataclass(frozen=True, slots=True)
class ChosenFiles:
    """Which of a repository's files are a model.

    Attributes:
        names: Paths in the repository; of a GGUF model its parts, in order.
        is_gguf: Whether they are a GGUF model, which has everything in it.
        choice_message: Says that one of several GGUF files is taken; empty: there is no choice, or it was made.
    """

    names: tuple[str, ...]
    is_gguf: bool
    choice_message: str = ""


def choose_files(reference: HubReference, sizes: Mapping[str, int]) -> ChosenFiles:
    """Return the files of the model that a reference means: safetensors, unless there are none or it has a choice.

    Args:
        sizes: Bytes by path, of all files of the repository.

    Raises:
        NotFound: It has no such GGUF file.
        MissingTensor: Parts of the file are missing.
        CheckpointError: It has no weights that are read.
    """
    files = files_to_serve(sizes)
    if not reference.choice and any(name.endswith(".safetensors") for name in files):
        return ChosenFiles(tuple(files), is_gguf=False)
    models = gguf_models(sizes)
    if not models and not reference.choice:
        raise CheckpointError(
            f"{reference.repo_id} has no .safetensors weights at its top level and no .gguf files; other formats are "
            "not read.",
            param="model",
        )
    model = choose_model(reference, models)
    return ChosenFiles(model.files, is_gguf=True, choice_message=choice_message(reference, model, models))


def hub_pull(
    name: str,
    revision: str | None = None,
    progress: ProgressCallback | None = None,
    *,
    endpoint: str | None = None,
    cache_dir: Path | None = None,
    max_bytes: int | None = None,
    on_choice: Callable[[str], None] | None = None,
) -> Path:
    """Download the files that serving needs, resuming partial files.

    The headers of GGUF files are read and inspected first, so that a model that can't be served isn't fetched.

    Args:
        name: As ``HubReference.parse`` takes it.
        revision: Branch, tag or commit; None: the main branch.
        progress: Called often, in this thread.
        endpoint: URL of the hub; None: HF_ENDPOINT, or the official hub.
        cache_dir: Directory of the cache; None: that of HF_HOME.
        max_bytes: Limit, checked before the download.
        on_choice: Gets a sentence where one of several GGUF files was taken.

    Returns:
        The directory of a checkpoint in safetensors, or a GGUF model's first file.

    Raises:
        InvalidRequest: ``name`` is no reference.
        RequestTooLarge: The files that serving needs have more than ``max_bytes``.
        NotFound: The hub has no such repository, revision or GGUF file.
        PermissionRefused: The repository is private or gated.
        CheckpointError: The repository has no weights that are read, or its files aren't as the hub states them.
        Unavailable: The hub can't be reached, and the cache doesn't have the repository.
    """
    reference = HubReference.parse(name)
    try:
        info = hub_model(reference.repo_id, revision, endpoint)
    except BlazrError:
        raise
    except Exception as error:
        return _from_cache(reference, revision, cache_dir, error)
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}
    chosen = choose_files(reference, sizes)
    total = sum(sizes[name] for name in chosen.names)
    if max_bytes is not None and total > max_bytes:
        raise RequestTooLarge(
            f"{reference.repo_id} has {format_bytes(total)} of weights and tokenizer files, the limit is "
            f"{format_bytes(max_bytes)}.",
            param="model",
        )
    files = remote_files(info, chosen.names)
    commit = info.sha or revision or "main"
    if chosen.choice_message and on_choice is not None:
        on_choice(chosen.choice_message)
    if chosen.is_gguf:
        inspect_headers(reference.repo_id, commit, files, endpoint=endpoint, cache_dir=cache_dir)
    paths = _download(reference.repo_id, commit, files, progress, endpoint, cache_dir)
    remember_revision(reference.repo_id, revision or "main", commit, cache_dir)
    return paths[0] if chosen.is_gguf else paths[0].parent


def remote_files(info: Any, names: Sequence[str]) -> list[RemoteFile]:
    """Return files of a repository as the hub states them.

    Args:
        info: As ``hub_model`` returns it.

    Raises:
        CorruptCheckpoint: A digest is none.
    """
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    files = []
    for name in names:
        sibling = siblings[name]
        digest = (sibling.lfs.sha256 if sibling.lfs is not None else "") or ""
        if digest and not SHA256.match(digest):  # it becomes a file's name
            raise CorruptCheckpoint(
                f"the hub states {digest[:80]!r} as the SHA-256 of {name}, which is none; check HF_ENDPOINT.",
                param=name,
            )
        files.append(RemoteFile(name, sibling.size or 0, digest))
    return files


def hub_model(repo_id: str, revision: str | None, endpoint: str | None, *, timeout_s: float = 20.0) -> Any:
    """Return what the hub says of a repository, with its files' sizes.

    Args:
        timeout_s: Seconds for the hub to take the question, and again to answer it.

    Raises:
        NotFound, PermissionRefused: As ``hub_pull``. Other errors are the library's own.
    """
    from huggingface_hub import HfApi, errors

    try:
        return HfApi(endpoint=endpoint).model_info(repo_id, revision=revision, files_metadata=True, timeout=timeout_s)
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


class _Meter:
    """Counts the bytes of a repository's files, and reports them.

    Args:
        size_bytes: Of all files.
    """

    def __init__(self, repo_id: str, size_bytes: int, progress: ProgressCallback | None) -> None:
        self._repo_id = repo_id
        self._size_bytes = size_bytes
        self._progress = progress
        self._item = RemoteFile("", 0, "")
        self._num_before = 0
        self._num_received = 0

    def begin(self, item: RemoteFile) -> None:
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
        if item.size_bytes <= MAX_BYTES and count > item.size_bytes:
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
    files: Sequence[RemoteFile],
    progress: ProgressCallback | None,
    endpoint: str | None,
    cache_dir: Path | None,
) -> list[Path]:
    """Fetch files into the cache; returns where each is."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    paths: list[Path] = []
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
        paths.append(Path(file))
    if progress is not None:
        progress(PullProgress(""))
    return paths


def _from_cache(reference: HubReference, revision: str | None, cache_dir: Path | None, error: Exception) -> Path:
    """Return the model in the cached snapshot, if it has weights."""
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(reference.repo_id, revision=revision, cache_dir=cache_dir, local_files_only=True)
    except Exception:
        raise _unreachable(reference.repo_id, error) from error
    place = Path(str(found))
    sizes = {path.relative_to(place).as_posix(): path.stat().st_size for path in place.rglob("*") if path.is_file()}
    chosen = choose_files(reference, sizes)
    return place / chosen.names[0] if chosen.is_gguf else place


def _unreachable(repo_id: str, error: Exception) -> Unavailable:
    return Unavailable(
        f"{repo_id} is not in the local cache and the hub can't be reached ({offline_error(error)}); "
        "connect to the network once, or give a path to a checkpoint."
    )


def offline_error(error: Exception) -> str:
    """Return what an error of the hub's library says, for a message: the hub's status, or its first line."""
    if isinstance(error, MemoryError):
        return "its reply needs more memory than a pull may take; check HF_ENDPOINT"
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
