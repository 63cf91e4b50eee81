"""Look into an upload before its weights have arrived, and compare what has arrived before it is resumed.

Files of the declared size are made of what has arrived, with a hole behind it, and inspected like a checkpoint. Values
of tensors read as 0 there, so what depends on values isn't judged.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from django.utils import timezone

from inference.errors import BlazrError, Conflict, NotFound, RequestTooLarge
from models_registry import storage, uploads
from models_registry.detection.child import inspect_in_child
from models_registry.detection.describe import describe
from models_registry.detection.inspection import Inspection
from models_registry.models import Upload, UploadFile
from models_registry.services import Inspector
from models_registry.upload_rules import CHUNK_BYTES, WEIGHT_SUFFIXES

MAX_HEAD_BYTES = 64 << 20
"""Of a weight file, looked at here; as long as the longest header of a GGUF file."""
_BY_VALUE = ("a_override",)
"""Facts that follow from values of tensors."""


def upload_preview(*, upload_id: uuid.UUID, inspect: Inspector | None = None) -> dict[str, Any]:
    """Inspect what has arrived of an upload; a model that would be refused later is refused now, and its upload ended.

    Returns:
        ``is_conclusive`` and, if so, the model's description in short. Without it more of the heads is needed, or the
        files can only be judged as a whole; the upload goes on.

    Raises:
        NotFound: No such upload.
        Conflict: It isn't being received, another request works on it, or a file that isn't weights is incomplete.
        BlazrError: The model is refused; says why.
    """
    upload = uploads.upload_get(upload_id)
    if upload.state != Upload.State.RECEIVING:
        raise Conflict(f"the upload is {upload.state}: {upload.reason or 'it takes no more bytes'}.")
    files = list(upload.files.all())
    for file in files:
        if not file.name.endswith(WEIGHT_SUFFIXES) and file.received_bytes != file.size_bytes:
            raise Conflict(f"{file.name} is incomplete; send the small files first.", param=file.name)
    with storage.upload_lock(upload_id) as held:
        if not held:
            raise Conflict("the upload is being checked already.")
        with _heads(upload_id, files) as place:
            try:
                inspection = (inspect or inspect_in_child)(place, overrides=upload.overrides)
            except BlazrError as error:
                if not _is_conclusive(files, place):
                    return {"is_conclusive": False}
                uploads.upload_refuse(upload, error.message)
                raise
    return {"is_conclusive": True, **_short(inspection)}


def upload_compare(*, upload_id: uuid.UUID, number: int, offset: int, body: IO[bytes]) -> UploadFile:
    """Check that bytes that were received before are the same in the sender's file, before an upload is resumed.

    Raises:
        NotFound: No such upload or file.
        Conflict: The upload has ended, so many bytes weren't received, or the bytes differ.
        RequestTooLarge: More than ``CHUNK_BYTES``.
    """
    file = UploadFile.objects.select_related("upload").filter(upload_id=upload_id, number=number).first()
    if file is None:
        raise NotFound(f"there is no file {number} in the upload {upload_id}.", param="file")
    if file.upload.state != Upload.State.RECEIVING:
        raise Conflict(f"the upload is {file.upload.state}: {file.upload.reason or 'it takes no more bytes'}.")
    piece = body.read(CHUNK_BYTES + 1)
    if len(piece) > CHUNK_BYTES:
        raise RequestTooLarge(f"the piece of {file.name} goes beyond {CHUNK_BYTES} bytes.", param=file.name)
    if offset + len(piece) > file.received_bytes:
        raise Conflict(f"{file.name} has {file.received_bytes} bytes here; compare what is before.", param="offset")
    try:
        part = storage.part_path(upload_id, number).open("rb")
    except FileNotFoundError:  # a check that died has published it
        raise Conflict(f"{file.name} was received whole; finish the upload.", param="offset") from None
    with part:
        part.seek(offset)
        if part.read(len(piece)) != piece:
            raise Conflict(
                f"{file.name} isn't the file whose upload began: its bytes before {offset + len(piece)} differ. Choose "
                "that file, or discard the upload and begin anew.",
                param=file.name,
            )
    Upload.objects.filter(pk=upload_id, state=Upload.State.RECEIVING).update(active_at=timezone.now())
    return file


@contextmanager
def _heads(upload_id: uuid.UUID, files: Sequence[UploadFile]) -> Iterator[Path]:
    """Make files of the declared sizes; yields the directory, or the file if there is one alone."""
    directory = storage.upload_path(upload_id) / "preview"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    try:
        with storage.full_disk_as_error():
            for file in files:
                head = (
                    min(file.received_bytes, MAX_HEAD_BYTES) if file.name.endswith(WEIGHT_SUFFIXES) else file.size_bytes
                )
                _copy_head(storage.part_path(upload_id, file.number), directory / file.name, head, file.size_bytes)
        yield directory / files[0].name if len(files) == 1 else directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _copy_head(part: Path, target: Path, head: int, size: int) -> None:
    with target.open("xb") as written:
        if head:
            with part.open("rb") as read:
                while head and (piece := read.read(min(head, 1 << 20))):
                    written.write(piece)
                    head -= len(piece)
        written.truncate(size)  # the rest is a hole, which takes no space


def _is_conclusive(files: Sequence[UploadFile], place: Path) -> bool:
    """Whether a refusal would be one with all bytes too."""
    for file in files:
        is_whole = file.received_bytes == file.size_bytes
        # Where such a header ends is known only at its end; what is behind the head reads as 0.
        if file.name.endswith((".gguf", ".ggml")) and not is_whole and file.received_bytes < MAX_HEAD_BYTES:
            return False
    config = place / "config.json"
    # Orders of channels and the like are stored as tensors, and a wrong one is refused.
    return not (config.is_file() and b"quantization_config" in config.read_bytes())


def _short(inspection: Inspection) -> dict[str, Any]:
    found = describe(inspection)
    names = ("model_type", "format", "dtype", "num_layers", "num_parameters", "max_position_embeddings", "vocab_size")
    return {
        **{name: found[name] for name in names},
        "layers": [
            {name: layer[name] for name in ("token_mixer", "channel_mixer", "kind")} for layer in found["layers"]
        ],
        "tokenizer": found["tokenizer"]["kind"],
        "warnings": [text for text in found["warnings"] if not any(name in text for name in _BY_VALUE)],
    }
