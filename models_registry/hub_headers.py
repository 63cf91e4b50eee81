"""Inspect a GGUF model of the hub before its weights are fetched: by the headers of its files alone.

Files of the stated sizes are made of their beginnings, with a hole behind, and inspected like a checkpoint. Values of
tensors read as 0 there, but for those that belong to the config.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from inference.errors import CorruptCheckpoint
from inference.host.cache_folder import cache_folder
from inference.host.disk import full_disk_as_error, staging_folder
from inference.host.units import format_bytes
from inference.modelling.gguf.architectures import CONFIG_TENSORS
from inference.modelling.gguf.container import MAX_HEADER_BYTES, GgufFile, read_gguf_beginning
from inference.modelling.gguf.metadata import MAX_FACTORS
from models_registry.detection.child import inspect_in_child
from models_registry.detection.inspection import Inspection
from models_registry.hub_files import RemoteFile, read_range

FIRST_BYTES = 1 << 20
"""Of a file, asked for at first; four times as much each time until the header is there."""


def inspect_headers(
    repo_id: str, commit: str, files: Sequence[RemoteFile], *, endpoint: str | None, cache_dir: Path | None
) -> Inspection:
    """Return what an inspection will find once all bytes are here.

    Args:
        files: All parts of one GGUF model, in order.

    Raises:
        CheckpointError: The model would be refused; says why.
        Unavailable: The headers can't be fetched.
        StorageFull: The disk has no room for them.
    """
    folder = cache_folder("headers")
    full = full_disk_as_error(f"the disk of {folder} has no room for a model's header; free some space.")
    with full, staging_folder(folder) as place:
        for file in files:
            read = partial(read_range, repo_id, file, commit=commit, endpoint=endpoint, cache_dir=cache_dir)
            _write_head(file, read, place / PurePosixPath(file.name).name)
        return inspect_in_child(place / PurePosixPath(files[0].name).name)


def _write_head(file: RemoteFile, read: Callable[[int, int], bytes], path: Path) -> None:
    """Write the header of a file, the small tensors that belong to the config, and a hole for the rest.

    Args:
        read: Returns the file's bytes from a first one until before a last one.
    """
    size, here, requested = file.size_bytes, 0, FIRST_BYTES
    found: GgufFile | None = None
    with path.open("wb") as written:
        while found is None:
            if here >= min(size, MAX_HEADER_BYTES):
                raise CorruptCheckpoint(
                    f"{file.name} has no complete header within {format_bytes(min(size, MAX_HEADER_BYTES))}.",
                    param=file.name,
                )
            end = min(requested, size, MAX_HEADER_BYTES)
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
