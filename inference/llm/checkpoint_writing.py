"""Write a checkpoint's directory: complete or not there, its tensors in safetensors files of bounded size."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from inference.errors import CorruptCheckpoint, InvalidRequest
from inference.host.units import format_bytes
from inference.modelling.families.config import TensorInfo
from inference.modelling.weights.files import DTYPES_BY_SPELLING

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = WEIGHTS_FILE + ".index.json"
CONFIG_FILE = "config.json"
SHARD_BYTES = 4 << 30
"""Most bytes of the tensors in one file, unless one tensor alone has more."""
HEADER_BYTES = 128
"""Most bytes of a tensor's entry in a header, beside its name; and of what a header has beside its entries."""
MAX_HEADER_BYTES = 4 << 20
"""Most bytes of a header: readers refuse longer ones than twice that (``safetensors_header``)."""

_MOVED_FILE = "moved.json"
_COPY_BYTES = 16 << 20
_LENGTH_BYTES = 8
SPELLINGS = {dtype: spelling for spelling, dtype in DTYPES_BY_SPELLING.items()}
"""torch's dtypes to safetensors' names of them."""


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The checkpoint that is written anew.

    Attributes:
        directory: Its directory.
        tensors: Header entries of all its files.
        others: Names of config, tokenizer and template files, which are copied.
        made: Contents of files that are written in their place, or that the directory doesn't have, by name.
    """

    directory: Path
    tensors: Mapping[str, TensorInfo]
    others: Sequence[str]
    made: Mapping[str, bytes] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """Return the content of config.json; empty: there is none."""
        data = self.made.get(CONFIG_FILE)
        if data is None and CONFIG_FILE in self.others:
            data = (self.directory / CONFIG_FILE).read_bytes()
        return {} if data is None else cast("dict[str, Any]", json.loads(data))


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a written file; ``pieces`` gives its bytes."""

    name: str
    dtype: str
    shape: Sequence[int]
    size: int
    pieces: Callable[[], Iterator[bytes | memoryview]]


def check_target(directory: Path, size_bytes: int) -> None:
    """Refuse a target that can't be written, before anything is computed for it.

    Args:
        directory: The target.
        size_bytes: Minimum bytes of the weights' file.

    Raises:
        InvalidRequest: The target exists, can't be created, or has too little space.
    """
    with partial_directory(directory) as partial:
        free_bytes = shutil.disk_usage(partial).free
    if free_bytes < size_bytes:
        raise InvalidRequest(
            f"the disk of {str(directory)[:200]} has {format_bytes(free_bytes)} free, the checkpoint takes "
            f"{format_bytes(size_bytes)}; free some, or name another directory with -o.",
            param="output",
        )


@contextmanager
def partial_directory(target: Path) -> Iterator[Path]:
    """Create the target with a directory for unfinished files in it.

    At the end the latter is removed, and so are the directories that were created and are still empty.

    Raises:
        InvalidRequest: The target isn't new or empty, or the body couldn't write to it.
        CorruptCheckpoint: The body couldn't read a file outside of it.
    """
    target = target.absolute()
    partial = target / f".partial-{os.getpid()}"
    created: list[Path] = []
    try:
        _remove_stale_partial_directories(target)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise InvalidRequest(
                f"{str(target)[:200]} exists and isn't an empty directory; name another one with -o.", param="output"
            )
        created = [directory for directory in (target, *target.parents) if not directory.exists()]
        partial.mkdir(parents=True)
        yield partial
    except OSError as error:
        at = target if error.filename is None else Path(error.filename)
        if not (at.is_relative_to(target) or target.is_relative_to(at)):
            raise CorruptCheckpoint(f"{at} can't be read: {error.strerror}.", param=at.name) from None
        raise InvalidRequest(
            f"{str(target)[:200]} can't be written: {error.strerror or error}; name another one with -o.",
            param="output",
        ) from None
    finally:
        with suppress(OSError):
            _remove_moved(partial, target)
        shutil.rmtree(partial, ignore_errors=True)
        for directory in created:
            with suppress(OSError):
                directory.rmdir()


def publish(partial: Path, target: Path, names: Sequence[str]) -> None:
    """Move finished files into the target, the config last: it makes a checkpoint of them.

    What was moved is removed again if that fails: by ``partial_directory``, or, where the process was killed, by the
    next one, for which it leaves the names.
    """
    (partial / _MOVED_FILE).write_text(json.dumps(list(names)), encoding="utf-8")
    for name in sorted(names, key=lambda name: name == CONFIG_FILE):
        (partial / name).rename(target / name)


def _remove_stale_partial_directories(target: Path) -> None:
    """Remove what killed processes left: the target would count as not empty. Pids are those of this machine."""
    for left in target.glob(".partial-*"):
        if _is_stale(left.name.removeprefix(".partial-")):
            _remove_moved(left, target)
            shutil.rmtree(left, ignore_errors=True)


def _is_stale(pid: str) -> bool:
    """Whether no process writes to the partial directory of ``pid``; this one doesn't yet."""
    if pid == str(os.getpid()):
        return True  # in a container every process may have the number of the one that was killed
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (ValueError, OverflowError, PermissionError):
        pass  # not ours, or another account's process writes here
    return False


def _remove_moved(partial: Path, target: Path) -> None:
    """Remove the files that were moved out of a partial directory, unless all of them were."""
    try:
        names = set(json.loads((partial / _MOVED_FILE).read_bytes()))
    except (OSError, ValueError):
        return
    waiting = names & {path.name for path in partial.iterdir()}
    if waiting:
        for name in names - waiting:
            (target / Path(name).name).unlink(missing_ok=True)


def json_content(values: Mapping[str, Any]) -> bytes:
    """Return what a JSON file of these members holds."""
    return (json.dumps(values, indent=1) + "\n").encode()


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor on the CPU."""
    return memoryview(cast("Any", tensor.contiguous().view(torch.uint8).flatten().numpy()))


def computed_entry(name: str, dtype: torch.dtype, shape: Sequence[int], compute: Callable[[], torch.Tensor]) -> Entry:
    """Return the entry of a tensor that is computed when it is written."""

    def pieces() -> Iterator[memoryview]:
        tensor = compute()
        assert tensor.dtype == dtype, (name, tensor.dtype, dtype)
        yield tensor_bytes(tensor)

    return Entry(name, SPELLINGS[dtype], shape, math.prod(shape) * dtype.itemsize, pieces)


def stored_entry(directory: Path, name: str, info: TensorInfo) -> Entry:
    """Return the entry of a tensor that is copied from a safetensors file."""

    def pieces() -> Iterator[bytes]:
        with (directory / info.file).open("rb") as file:
            file.seek(info.begin)
            left = info.end - info.begin
            while left:
                piece = file.read(min(left, _COPY_BYTES))
                if not piece:
                    raise CorruptCheckpoint(f"{info.file} ends before its tensors do.", param=info.file)
                left -= len(piece)
                yield piece

    return Entry(name, info.dtype, info.shape, info.end - info.begin, pieces)


def write_weights(directory: Path, entries: Sequence[Entry], shard_bytes: int = SHARD_BYTES) -> tuple[list[str], int]:
    """Write tensors in their order to one file, or to several with an index.

    Args:
        directory: Where the files go.
        entries: The tensors; their pieces are asked for one tensor after the other, each once.
        shard_bytes: Most bytes of the tensors in one file, unless one tensor alone has more.

    Returns:
        Names of the files, and the bytes of all weights' files.
    """
    shards = _shards(entries, shard_bytes)
    if len(shards) == 1:
        return [WEIGHTS_FILE], write_tensors(directory / WEIGHTS_FILE, entries)
    stem, suffix = WEIGHTS_FILE.split(".")
    names = [f"{stem}-{number:05}-of-{len(shards):05}.{suffix}" for number in range(1, len(shards) + 1)]
    size = sum(write_tensors(directory / name, shard) for name, shard in zip(names, shards, strict=True))
    index = {
        "metadata": {"total_size": sum(entry.size for entry in entries)},
        "weight_map": {entry.name: name for name, shard in zip(names, shards, strict=True) for entry in shard},
    }
    (directory / INDEX_FILE).write_bytes(json_content(index))
    return [*names, INDEX_FILE], size


def num_shards(sizes: Mapping[str, int], shard_bytes: int = SHARD_BYTES) -> int:
    """Return the number of files that tensors of these names and sizes take."""
    return len(_shards([Entry(name, "", (), size, lambda: iter(())) for name, size in sizes.items()], shard_bytes))


def _shards(entries: Sequence[Entry], shard_bytes: int) -> list[list[Entry]]:
    shards: list[list[Entry]] = [[]]
    size = header_bytes = 0
    for entry in entries:
        own_bytes = len(entry.name) + HEADER_BYTES
        if shards[-1] and (size + entry.size > shard_bytes or header_bytes + own_bytes > MAX_HEADER_BYTES):
            shards.append([])
            size = header_bytes = 0
        shards[-1].append(entry)
        size += entry.size
        header_bytes += own_bytes
    return shards


def write_tensors(path: Path, entries: Sequence[Entry]) -> int:
    """Write one safetensors file; returns its bytes.

    Source of the layout: https://huggingface.co/docs/safetensors/index#format
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for entry in entries:
        offsets = [position, position + entry.size]
        header[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": offsets}
        position += entry.size
    content = json.dumps(header, separators=(",", ":")).encode()
    content += b" " * (-len(content) % _LENGTH_BYTES)
    with path.open("wb") as file:
        file.write(len(content).to_bytes(_LENGTH_BYTES, "little") + content)
        for entry in entries:
            written = sum(file.write(piece) for piece in entry.pieces())
            assert written == entry.size, (entry.name, written, entry.size)
        file.flush()
        os.fsync(file.fileno())
    return path.stat().st_size
