"""Write a checkpoint's directory: complete or not there, its tensors in one safetensors file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from inference.errors import CorruptCheckpoint, InvalidRequest
from inference.host.units import format_bytes
from inference.modelling.families.config import TensorInfo

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
HEADER_BYTES = 200
"""Most bytes of a tensor's entry in the header, beside its name."""

_COPY_BYTES = 16 << 20
LENGTH_BYTES = 8
_DTYPES = {
    torch.int8: "I8", torch.uint8: "U8", torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32",
    torch.float64: "F64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The checkpoint that is written anew.

    Attributes:
        directory: Its directory.
        tensors: Header entries of all its files.
        others: Names of config, tokenizer and template files, which are copied.
    """

    directory: Path
    tensors: Mapping[str, TensorInfo]
    others: Sequence[str]


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the written file; ``pieces`` gives its bytes."""

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
        shutil.rmtree(partial, ignore_errors=True)
        for directory in created:
            with suppress(OSError):
                directory.rmdir()


def _remove_stale_partial_directories(target: Path) -> None:
    """Remove directories of killed processes: the target would count as not empty. Pids are those of this machine."""
    for left in target.glob(".partial-*"):
        try:
            os.kill(int(left.name.removeprefix(".partial-")), 0)
        except ProcessLookupError:
            shutil.rmtree(left, ignore_errors=True)
        except (ValueError, OverflowError, PermissionError):
            continue  # not ours, or another account's process writes here


def tensor_entry(name: str, tensor: torch.Tensor) -> Entry:
    content = cast("Any", tensor.contiguous().view(torch.uint8).flatten().numpy())
    return Entry(name, _DTYPES[tensor.dtype], tensor.shape, tensor.nbytes, lambda: iter([memoryview(content)]))


def stored_entry(directory: Path, name: str, info: TensorInfo) -> Entry:
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


def write_tensors(path: Path, entries: Iterator[Entry], header_bytes: int) -> int:
    """Write a safetensors file in one pass over the entries; the header is written last, into its reserved bytes.

    Source of the layout: https://huggingface.co/docs/safetensors/index#format
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    with path.open("wb") as file:
        file.seek(LENGTH_BYTES + header_bytes)
        for entry in entries:
            header[entry.name] = {
                "dtype": entry.dtype,
                "shape": list(entry.shape),
                "data_offsets": [position, position + entry.size],
            }
            for piece in entry.pieces():
                file.write(piece)
            position += entry.size
        content = json.dumps(header, separators=(",", ":")).encode()
        assert len(content) <= header_bytes, (len(content), header_bytes)
        file.seek(0)
        file.write(header_bytes.to_bytes(LENGTH_BYTES, "little") + content.ljust(header_bytes))
        file.flush()
        os.fsync(file.fileno())
    return path.stat().st_size
