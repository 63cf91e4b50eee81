"""Inspect a GGUF model of the hub before its weights are fetched: by the headers of its files alone.

Files of the stated sizes are made of their beginnings, with a hole behind, and inspected like a checkpoint. Values of
tensors read as 0 there, but for those that belong to the config.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from inference.errors import CorruptCheckpoint, UnsupportedFormat
from inference.host.cache_folder import cache_folder
from inference.host.disk import full_disk_as_error, staging_folder
from inference.host.units import format_bytes
from inference.modelling.gguf.architectures import CONFIG_TENSORS
from inference.modelling.gguf.container import MAX_HEADER_BYTES, GgufFile, read_gguf_beginning
from inference.modelling.gguf.metadata import MAX_FACTORS
from models_registry.detection.child import inspect_in_child
from models_registry.detection.inspection import Inspection
from models_registry.gguf_choice import JOIN_HINT
from models_registry.hub_files import RemoteFile, read_range

FIRST_BYTES, LATER_BYTES = 1 << 20, 64 << 10
"""Of the first file and of each later part, asked for at first; four times as much each time until the header is there.
The vocabulary is in the first one."""
MAX_JOINT_BYTES = 256 << 20
"""Of the headers of all parts; the largest vocabularies take some 10 MiB."""


def inspect_headers(
    repo_id: str, commit: str, files: Sequence[RemoteFile], *, endpoint: str | None, cache_dir: Path | None
) -> Inspection:
    """Return what an inspection will find once all bytes are here.

    Args:
        files: All parts of one GGUF model, in order.

    Raises:
        CheckpointError: The model would be refused, or the headers of its parts are too long together; says why.
        Unavailable: The headers can't be fetched.
        StorageFull: The disk has no room for them.
    """
    folder = cache_folder("headers")
    full = full_disk_as_error(f"the disk of {folder} has no room for a model's header; free some space.")
    with full, staging_folder(folder) as place:
        used = 0
        for number, file in enumerate(files):
            read = partial(read_range, repo_id, file, commit=commit, endpoint=endpoint, cache_dir=cache_dir)
            used += _write_head(files, number, used, read, place / PurePosixPath(file.name).name)
        return inspect_in_child(place / PurePosixPath(files[0].name).name)


def _write_head(
    files: Sequence[RemoteFile], number: int, before: int, read: Callable[[int, int], bytes], path: Path
) -> int:
    """Write the header of a part, the small tensors that belong to the config, and a hole for the rest.

    Args:
        before: Bytes that were read of the headers of earlier parts.
        read: Returns the part's bytes from a first one until before a last one.

    Returns:
        The bytes of its beginning that were read.
    """
    file = files[number]
    size, here, requested = file.size_bytes, 0, LATER_BYTES if number else FIRST_BYTES
    found: GgufFile | None = None
    with path.open("wb") as written:
        while found is None:
            if here >= min(size, MAX_HEADER_BYTES):
                raise CorruptCheckpoint(
                    f"{file.name} has no complete header within {format_bytes(min(size, MAX_HEADER_BYTES))}.",
                    param=file.name,
                )
            end = min(requested, size, MAX_HEADER_BYTES)
            if before + end > MAX_JOINT_BYTES:
                raise _too_long(files, number, before + end)
            written.write(read(here, end))
            written.flush()
            here, requested = end, 4 * requested
            found = read_gguf_beginning(path, size)
        for name in CONFIG_TENSORS:
            place = found.tensors.get(name)
            if place is not None and place.end > here and place.end - place.begin <= 4 * MAX_FACTORS:
                written.seek(place.begin)
                written.write(read(place.begin, min(place.end, size)))
        written.truncate(size)  # the rest is a hole, which takes no space
    return here


def _too_long(files: Sequence[RemoteFile], number: int, size_bytes: int) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"the headers of {files[0].name} take {format_bytes(size_bytes)} up to part {number + 1} of {len(files)}, the "
        f"limit of all together is {format_bytes(MAX_JOINT_BYTES)}; {JOIN_HINT}.",
        param=files[number].name,
    )
