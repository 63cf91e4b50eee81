"""Find the checkpoints in the directory of a training run, and judge by their content whether they are complete.

A checkpoint is one of

    PREFIX_step_N.safetensors, PREFIX_final.safetensors   oxidizr's, side by side with one config.json
    checkpoint-N/                                         a directory of the trainer of HuggingFace
    model.safetensors, or its index, in the run's own directory: saved at the end

The trainer may be writing any of them at this moment, or may have been killed while it did. No name, time or marker
file is trusted, but the content: see ``look_at``.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from inference.errors import BlazrError, CorruptCheckpoint, InvalidRequest
from models_registry.detection.directory import (
    INDEX_SUFFIX,
    MAX_DIRECTORY_ENTRIES,
    CheckpointDirectory,
    resolve,
)
from models_registry.detection.json_file import read_object
from models_registry.detection.safetensors_header import read_header

MAX_STEPS = 2000
"""Most checkpoints of a run that are looked at."""
MAX_JSON_BYTES = 64 << 20
"""Largest tokenizer.json; one of a large vocabulary has about 20 MiB."""
OWN_DIRECTORY = "."
"""Name of the checkpoint that lies in the run's own directory."""

_STEP_FILE = re.compile(r".+_step_(\d{1,18})\.safetensors")
_FINAL_FILE = re.compile(r".+_final\.safetensors")
_STEP_DIRECTORY = re.compile(r"checkpoint-(\d{1,18})")
_OWN_WEIGHTS = ("model.safetensors", "model" + INDEX_SUFFIX)
_STATE_FILE = "trainer_state.json"
"""The trainer of HuggingFace writes it behind the weights."""


@dataclass(frozen=True, slots=True)
class StepFiles:
    """A checkpoint in a run's directory.

    Attributes:
        name: Name of the file or directory in there.
        number: Training steps; None: the end of the training, which doesn't say.
        path: What is registered.
    """

    name: str
    number: int | None
    path: Path

    @property
    def is_directory(self) -> bool:
        """Whether the trainer made a directory for it, in which nothing else is."""
        return self.name != OWN_DIRECTORY and self.path.is_dir()

    @property
    def label(self) -> str:
        """What people call it."""
        return "final" if self.number is None else f"step-{self.number}"


@dataclass(frozen=True, slots=True)
class Look:
    """What a checkpoint's files were at one moment.

    Attributes:
        everything: Digest of names, sizes, times and inodes of all files that the trainer writes for it.
        read: The same of the files that are read to serve it; empty: they aren't all there.
        problem: Why it isn't complete; empty: its content is.
    """

    everything: str
    read: str
    problem: str = ""


def list_steps(directory: Path) -> list[StepFiles]:
    """Return the checkpoints of a run in the order of training, the end last, whether complete or not.

    Raises:
        OSError: The directory can't be listed.
        InvalidRequest: It has more entries or checkpoints than are looked at.
    """
    found: list[StepFiles] = []
    with os.scandir(directory) as entries:
        for count, entry in enumerate(entries):
            if count == MAX_DIRECTORY_ENTRIES:
                raise InvalidRequest(f"{directory} has more than {MAX_DIRECTORY_ENTRIES} entries; it is no run.")
            name = entry.name
            if not name.isprintable():  # perhaps no Unicode, which no row can hold; no trainer writes such names
                continue
            match = (_STEP_DIRECTORY if entry.is_dir() else _STEP_FILE).fullmatch(name)
            if match is not None:
                found.append(StepFiles(name, int(match[1]), directory / name))
            elif _FINAL_FILE.fullmatch(name) and not entry.is_dir():
                found.append(StepFiles(name, None, directory / name))
            elif name in _OWN_WEIGHTS and not any(step.name == OWN_DIRECTORY for step in found):
                found.append(StepFiles(OWN_DIRECTORY, None, directory))
    if len(found) > MAX_STEPS:
        raise InvalidRequest(f"{directory} has {len(found)} checkpoints; at most {MAX_STEPS} are watched.")
    return sorted(found, key=lambda step: (step.number is None, step.number or 0, step.name))


def look_at(step: StepFiles, root: Path) -> Look:
    """Look at a checkpoint's files; it is complete if two looks, some time apart, are equal and have no problem.

    Content is complete if

    - every safetensors file is exactly as long as its header says: 8 bytes, the header, and all tensors, without a
      hole in it: a file that is given its length first has them where nothing was written yet,
    - every shard that an index (or the shards' names) names is there, with the tensors that the index has in it,
    - config.json and the JSON files of tokenizer and trainer are whole JSON objects.

    Equal looks are needed for what no content shows: files that are still to come, and the last block of a file.

    Args:
        root: The run's directory; no link leads out of it.
    """
    try:
        files = resolve(step.path)
    except BlazrError as error:
        return Look(_digest(_listed(step.path)), "", error.message)
    names = _read_files(files)
    read = _digest(names)
    # Beside a single file only what is read with it counts: the trainer writes its logs there all the time.
    everything = _digest(_listed(step.path)) if step.is_directory else read
    try:
        _check_links(names, root)
        _check_weights(files)
        _check_objects(step, files)
    except BlazrError as error:
        return Look(everything, "", error.message)
    return Look(everything, read)


def read_digest(step: StepFiles) -> str:
    """Return what ``Look.read`` is now; empty: not all files are there."""
    try:
        files = resolve(step.path)
    except BlazrError:
        return ""
    return _digest(_read_files(files))


def _read_files(files: CheckpointDirectory) -> list[Path]:
    return [files.directory / file.path for file in files.files]


def _listed(path: Path) -> list[Path]:
    """The file itself, or the files in a directory; directories in it hold no weights."""
    try:
        with os.scandir(path) as entries:
            return [path / entry.name for entry in entries if not entry.is_dir()]
    except OSError:
        return [path]


def _digest(files: Iterable[Path]) -> str:
    stamps: list[tuple[str | int, ...]] = []
    for file in sorted(files):
        try:
            status = file.stat()
        except OSError:
            stamps.append((file.name,))
            continue
        stamps.append((file.name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino))
    return hashlib.sha256(repr(stamps).encode()).hexdigest()


def _check_links(files: Iterable[Path], root: Path) -> None:
    """Refuse links that lead out of the run's directory.

    Raises:
        InvalidRequest: One does.
    """
    inside = root.resolve()
    for file in files:
        if not file.resolve().is_relative_to(inside):
            raise InvalidRequest(f"{file.name} is a link out of the run's directory; such files aren't read.")


def _check_weights(files: CheckpointDirectory) -> None:
    """Check all headers against the files' lengths, and the index against the headers.

    Raises:
        CheckpointError: A file is shorter or longer than its header says, or a tensor isn't where the index has it.
    """
    if files.is_gguf:
        raise InvalidRequest("it has GGUF files, which no trainer writes; register them as a model.")
    stored = {name: read_header(files.directory / name).keys() for name in files.weight_files}
    for name in files.weight_files:
        _check_written(files.directory / name)
    for tensor, file in (files.weight_map or {}).items():
        if tensor not in stored[file]:
            raise CorruptCheckpoint(f"{file} has no tensor {tensor[:80]}, which the index has in it.", param=file)


def _check_written(file: Path) -> None:
    """Refuse a file with a hole; where the file system doesn't know any, there is none.

    Raises:
        CorruptCheckpoint: It has one.
    """
    with file.open("rb") as opened:
        hole = os.lseek(opened.fileno(), 0, os.SEEK_HOLE)
        size = opened.seek(0, os.SEEK_END)
    if hole < size:
        raise CorruptCheckpoint(
            f"{file.name} has {size} bytes, but from byte {hole} on some were never written; if it is whole, copy it "
            "with cp --sparse=never.",
            param=file.name,
        )


def _check_objects(step: StepFiles, files: CheckpointDirectory) -> None:
    """Check that the JSON files are whole.

    Raises:
        CheckpointError: One isn't, or there is no config.json.
    """
    names = [file.path for file in files.files if file.path.endswith(".json") and file.role != "index"]
    if "config.json" not in names:
        raise CorruptCheckpoint("there is no config.json yet.", param="config.json")
    if step.is_directory and (step.path / _STATE_FILE).exists():
        names.append(_STATE_FILE)
    for name in names:
        read_object(files.directory / name, MAX_JSON_BYTES)
