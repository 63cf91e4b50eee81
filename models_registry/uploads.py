"""Receive checkpoints from browsers: declare, send, check and register, or refuse with a reason.

    upload_create   checks names and sizes, then the free space of the disk
    upload_receive  stores pieces in order, one at a time, at the offset that the server names; uploads can be resumed
    upload_finish   hashes, publishes, inspects in a killable child, registers
    uploads_recheck checks again what a killed process was checking, one upload at a time
    uploads_sweep   ends uploads that receive nothing or were checked too often

Received bytes are counted, headers aren't trusted. Rows change by conditional updates, files under kernel locks.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Any

from django.conf import settings
from django.db import close_old_connections, connection, transaction
from django.db.models import F, Sum
from django.utils import timezone

from inference.errors import (
    BlazrError,
    ChecksumMismatch,
    Conflict,
    CorruptCheckpoint,
    NotFound,
    QueueFull,
    StorageFull,
)
from inference.models.readable_rows import readable_rows
from models_registry import storage
from models_registry.chat_templates import check_before_inspection
from models_registry.detection.child import inspect_in_child
from models_registry.detection.facts import check_overrides
from models_registry.models import Checkpoint, Upload, UploadFile
from models_registry.names import check_name
from models_registry.services import Inspector, checkpoint_register, free_name, name_taken
from models_registry.tokenizer_sources import with_source_path
from models_registry.upload_names import upload_name_check, wait_for_name
from models_registry.upload_pieces import read_piece
from models_registry.upload_rules import WEIGHT_SUFFIXES, DeclaredFile, check_declaration, check_head

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

logger = logging.getLogger(__name__)

MAX_OPEN_UPLOADS = 16
IDLE_LIMIT = timedelta(hours=24)
"""An upload that receives nothing for so long is ended; until then it can be resumed."""
KEEP_ROWS = timedelta(days=7)
"""How long the row of an ended upload is kept."""
DISK_RESERVE_BYTES = 256 << 20
MAX_CHECKS = 3
"""Checks of one upload, the first one included; a further one begins after the process of the last one died."""


class UploadCancelled(BlazrError):
    """The uploader cancelled while the files were being checked."""

    code = "upload_cancelled"
    http_status = 409


def upload_create(
    *,
    owner: AbstractBaseUser | None,
    served_model_name: str,
    files: Sequence[DeclaredFile],
    overrides: dict[str, Any] | None = None,
    are_stored: bool = False,
) -> Upload:
    """Create an upload, after all checks that need no bytes.

    Args:
        overrides: Facts by name, which count instead of detected ones.
        are_stored: Whether the files are on the server's disk already, and take no more of it.

    Raises:
        InvalidRequest, UnsupportedFormat, RequestTooLarge: The declaration or an override is refused.
        Conflict: The name is taken.
        QueueFull: Too many uploads are open.
        StorageFull: The disk has no space for this and the other open uploads.
    """
    check_name(served_model_name)
    overrides = with_source_path(check_overrides(overrides or {}))
    check_before_inspection(overrides)
    total = check_declaration(files, max_bytes=int(settings.BLAZR_MAX_UPLOAD_BYTES))
    if free_name(served_model_name) != served_model_name:
        raise name_taken(served_model_name)  # before its bytes are sent
    with transaction.atomic():
        open_uploads = Upload.objects.filter(state__in=Upload.OPEN)
        if open_uploads.count() >= MAX_OPEN_UPLOADS:
            raise QueueFull(
                f"{MAX_OPEN_UPLOADS} uploads are open already; finish or cancel one first.", retry_after_s=60
            )
        if not are_stored:
            _check_free_bytes(total)
        upload = Upload.objects.create(
            owner_id=getattr(owner, "pk", None),
            served_model_name=served_model_name,
            size_bytes=total,
            overrides=overrides,
            active_at=timezone.now(),
        )
        UploadFile.objects.bulk_create(
            UploadFile(upload=upload, number=number, name=file.name, size_bytes=file.size_bytes, sha256=file.sha256)
            for number, file in enumerate(files)
        )
    return upload


def upload_receive(
    *, upload_id: uuid.UUID, number: int, offset: int, body: IO[bytes], digest: bytes | None = None
) -> UploadFile:
    """Store the next piece of a file, up to ``CHUNK_BYTES``, all of it or nothing.

    Args:
        offset: Start of the piece; must equal ``received_bytes``.
        digest: SHA-256 of the piece; None: it isn't compared.

    Raises:
        NotFound: No such upload or file.
        Conflict: Another offset is expected, another piece is being stored, the upload has ended, or the piece changed.
        RequestTooLarge: The piece is over the limit, or goes beyond the declared size.
        StorageFull: The disk is full; the upload is ended and its files are removed.
        CorruptCheckpoint: The first piece is no head of a weight file; the upload is ended likewise.
    """
    file = _expected_file(upload_id, number, offset)
    piece = read_piece(body, file, digest)  # outside of the lock, because a client may be slow
    with storage.part_lock(upload_id, number) as descriptor:
        if descriptor is None:
            raise Conflict(
                f"another piece of {file.name} is being stored; ask for the offset and go on from there.",
                param="offset",
            )
        try:
            file = _expected_file(upload_id, number, offset)  # another piece may have come while this one arrived
            return _store_piece(file, descriptor, piece)
        except (Conflict, NotFound):
            # The upload may have ended while the piece arrived, and the lock has created its directory again.
            if not Upload.objects.filter(pk=upload_id, state__in=Upload.OPEN).exists():
                storage.remove_upload_files(upload_id)
            raise


def upload_finish(
    *, upload_id: uuid.UUID, served_model_name: str = "", wait: bool = False, inspect: Inspector | None = None
) -> Upload:
    """Check and register a completely received upload; one that is being checked, or is done, stays as it is.

    Args:
        served_model_name: Another name for the model; empty: the declared one.
        wait: Run in this call; otherwise in a thread, and the row's ``state`` and ``stage`` show the progress.

    Raises:
        NotFound: No such upload.
        Conflict: The upload isn't complete, or was refused or cancelled; or its name is taken, and it can be finished
            under another one.
    """
    upload = upload_get(upload_id)
    if upload.state == Upload.State.DONE:
        return upload
    if upload.state not in Upload.OPEN:
        raise Conflict(f"the upload is {upload.state} already.")
    for file in upload.files.all():
        if file.received_bytes != file.size_bytes:
            raise Conflict(
                f"{file.name} has {file.received_bytes} of {file.size_bytes} bytes; send the rest first.",
                param=file.name,
            )
    upload_name_check(upload, served_model_name)
    if wait:
        _check_locked(upload_id, inspect, threading.Event())
        return upload_get(upload_id)
    started = threading.Event()
    thread = threading.Thread(
        target=_check_in_thread, args=(upload_id, inspect, started), name=f"upload-{upload_id}", daemon=True
    )
    thread.start()
    started.wait(10)
    return upload_get(upload_id)


def uploads_recheck() -> Upload | None:
    """Check again what a process that died was checking: one upload at a time, since one may have been why it died.

    Returns:
        The upload; None: there is none, or another one is being checked again.
    """
    again = Upload.objects.defer("overrides").filter(num_checks__gt=0)
    if again.filter(state=Upload.State.CHECKING, num_checks__gt=1).exists():
        return None
    row = again.filter(state=Upload.State.RECEIVING).order_by("num_checks", "active_at").first()
    if row is None:
        return None
    try:
        return upload_finish(upload_id=row.pk)
    except NotFound:
        _end(row, Upload.State.REFUSED, "its row is damaged; upload the files again")
    except Conflict as error:  # cancelled meanwhile
        logger.info("upload %s isn't checked again: %s", row.pk, error.message)
    return None


def upload_cancel(*, upload_id: uuid.UUID) -> Upload:
    """Cancel an unfinished upload and remove its files; a second call changes nothing.

    Raises:
        NotFound: No such upload.
        Conflict: The upload is a checkpoint already.
    """
    upload = upload_get(upload_id)
    if upload.state == Upload.State.DONE:
        raise Conflict(f"the upload is done; delete the model {upload.served_model_name} instead.")
    _end(upload, Upload.State.CANCELLED, "cancelled by the uploader")
    return upload_get(upload_id)


def upload_refuse(upload: Upload, reason: str) -> None:
    """End an upload whose model is refused, and remove its files."""
    _end(upload, Upload.State.REFUSED, reason)


def upload_get(upload_id: uuid.UUID) -> Upload:
    """Return an upload.

    Raises:
        NotFound: There is no such upload, or its row is damaged.
    """
    rows = readable_rows(Upload.objects.filter(pk=upload_id), 1)
    if not rows:
        raise NotFound(f"there is no upload {upload_id}.", param="upload")
    return rows[0]


def uploads_sweep() -> int:
    """End dead uploads and delete old rows; returns the number of ended uploads. Safe beside running uploads.

    Uploads whose checking process died are complete and may be checked again (``uploads_recheck``), but not for ever;
    uploads that are being received may be resumed until ``IDLE_LIMIT``.
    """
    now, ended = timezone.now(), 0
    # Without the column that nobody needs here: a damaged upload ends with the others.
    uploads = Upload.objects.defer("overrides")
    for upload in uploads.filter(state=Upload.State.RECEIVING, active_at__lt=now - IDLE_LIMIT):
        ended += _end(upload, Upload.State.REFUSED, f"nothing was received for {IDLE_LIMIT}; upload it again")
    for upload in uploads.filter(state=Upload.State.CHECKING):
        with storage.upload_lock(upload.pk) as held:
            if held:
                ended += _allow_recheck(upload)
    Upload.objects.exclude(state__in=Upload.OPEN).filter(active_at__lt=now - KEEP_ROWS).delete()
    return ended


def _allow_recheck(upload: Upload) -> int:
    """Let an upload whose check died be checked again; returns 1 if it was ended, because that happens too often."""
    if upload.num_checks >= MAX_CHECKS:
        stops = f"the server stopped {upload.num_checks} times while it checked the files"
        reason = f"{stops}; see its log, then upload them again"
        return _end(upload, Upload.State.REFUSED, reason)
    Upload.objects.filter(pk=upload.pk, state=Upload.State.CHECKING).update(
        state=Upload.State.RECEIVING, stage="the server stopped; the check begins again", active_at=timezone.now()
    )
    return 0


def available_bytes() -> int:
    """Return the free bytes of the disk, less the missing bytes of open uploads and a reserve; perhaps negative."""
    sums = UploadFile.objects.filter(upload__state=Upload.State.RECEIVING).aggregate(
        declared=Sum("size_bytes"), received=Sum("received_bytes")
    )
    promised = (sums["declared"] or 0) - (sums["received"] or 0)
    return storage.free_bytes() - promised - DISK_RESERVE_BYTES


# --- receiving ---------------------------------------------------------------------------------


def _check_free_bytes(total: int) -> None:
    available = available_bytes()
    if total > available:
        raise StorageFull(
            f"the upload has {total} bytes, the server's disk has {max(available, 0)} to give; free some space first."
        )


def _expected_file(upload_id: uuid.UUID, number: int, offset: int) -> UploadFile:
    """Return the file whose next piece begins at ``offset``.

    Raises:
        NotFound: No such upload or file.
        Conflict: Another offset is expected, or the upload has ended.
    """
    file = UploadFile.objects.select_related("upload").filter(upload_id=upload_id, number=number).first()
    if file is None:
        raise NotFound(f"there is no file {number} in the upload {upload_id}.", param="file")
    if file.upload.state != Upload.State.RECEIVING:
        raise Conflict(f"the upload is {file.upload.state}: {file.upload.reason or 'it takes no more bytes'}.")
    if offset != file.received_bytes:
        raise Conflict(
            f"{file.name} has {file.received_bytes} bytes here, the piece begins at {offset}; "
            f"go on at {file.received_bytes}.",
            param="offset",
        )
    return file


def _store_piece(file: UploadFile, descriptor: int, piece: bytes) -> UploadFile:
    """Write the next piece and count its bytes; the caller holds ``storage.part_lock``.

    A process that is killed between the two leaves bytes that the row doesn't count; the next piece overwrites them.
    """
    offset = file.received_bytes
    try:
        if offset == 0 and file.name.endswith(WEIGHT_SUFFIXES):
            check_head(file.name, file.size_bytes, piece)
        with storage.full_disk_as_error():
            _write_piece(descriptor, offset, piece)
    except (StorageFull, CorruptCheckpoint) as error:
        # The files are removed first, because on a full disk the database needs their space.
        storage.remove_upload_files(file.upload_id)
        _end(file.upload, Upload.State.REFUSED, error.message)
        raise
    with transaction.atomic():
        if not Upload.objects.filter(pk=file.upload_id, state=Upload.State.RECEIVING).update(active_at=timezone.now()):
            raise Conflict("the upload has ended; begin a new one.")
        UploadFile.objects.filter(pk=file.pk).update(received_bytes=offset + len(piece))
    file.received_bytes = offset + len(piece)
    return file


def _write_piece(descriptor: int, offset: int, piece: bytes) -> None:
    view, position = memoryview(piece), offset
    while view:
        written = os.pwrite(descriptor, view, position)
        view, position = view[written:], position + written
    os.fdatasync(descriptor)  # before the row counts the bytes, which a loss of power must not undo


# --- checking ----------------------------------------------------------------------------------


def _check_in_thread(upload_id: uuid.UUID, inspect: Inspector | None, started: threading.Event) -> None:
    close_old_connections()
    try:
        _check_locked(upload_id, inspect, started)
    finally:
        started.set()
        connection.close()


def _check_locked(upload_id: uuid.UUID, inspect: Inspector | None, started: threading.Event) -> None:
    """Lock the upload, move it to ``checking``, and end it with success or a reason.

    One that is ``checking`` without a lock is that of a process that died.
    """
    with storage.upload_lock(upload_id) as held:
        moved = held and Upload.objects.filter(pk=upload_id, state__in=Upload.OPEN, num_checks__lt=MAX_CHECKS).update(
            state=Upload.State.CHECKING,
            stage="reading back",
            num_checks=F("num_checks") + 1,
            active_at=timezone.now(),
        )
        started.set()
        if not moved:
            return
        upload = upload_get(upload_id)
        try:
            with storage.full_disk_as_error():
                _check_and_register(upload, inspect or inspect_in_child)
        except UploadCancelled:
            _remove_files(upload)
        except BlazrError as error:
            is_name = isinstance(error, Conflict) and error.param == "served_model_name"
            if not (is_name and wait_for_name(upload)):
                _end(upload, Upload.State.REFUSED, error.message)
        except Exception:
            if upload_get(upload_id).state != Upload.State.CHECKING:  # cancelled, so the files were removed meanwhile
                _remove_files(upload)
                return
            logger.exception("upload %s: check failed", upload_id)
            _end(upload, Upload.State.REFUSED, "the server failed while it checked the files; its log has details")


def _check_and_register(upload: Upload, inspect: Inspector) -> None:
    directory = storage.checkpoint_path(upload.pk)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    files = list(upload.files.all())
    digests = _publish(upload, files)
    _set_stage(upload, "inspecting")
    # A single weight file is registered by its own path, so that its name becomes the served name.
    place = directory / files[0].name if len(files) == 1 else directory
    inspection = inspect(place, overrides=upload.overrides)
    with transaction.atomic():
        checkpoint = checkpoint_register(
            path=place,
            served_model_name=upload.served_model_name,
            source=Checkpoint.Source.UPLOAD,
            overrides=upload.overrides,
            author=upload.owner,
            checkpoint_id=upload.pk,
            sha256=digests,
            inspect=lambda *_, **__: inspection,  # inspected outside of the transaction, because it is slow
        )
        done = Upload.objects.filter(pk=upload.pk, state=Upload.State.CHECKING).update(
            state=Upload.State.DONE, stage="", checkpoint=checkpoint, active_at=timezone.now()
        )
        if not done:
            raise UploadCancelled("the upload was cancelled.")
    storage.remove_upload_files(upload.pk)


def _publish(upload: Upload, files: Sequence[UploadFile]) -> dict[str, str]:
    """Hash every file, compare it with its declaration, then publish all; returns digests by name.

    What a check that died has published before is at its place already.
    """
    digests: dict[str, str] = {}
    report = _StageReport(upload, total=upload.size_bytes)
    parts = {file.name: storage.part_path(upload.pk, file.number) for file in files}
    places = {file.name: storage.checkpoint_path(upload.pk) / file.name for file in files}
    for file in files:
        source = parts[file.name] if parts[file.name].exists() else places[file.name]
        size = source.stat().st_size
        if size != file.size_bytes:
            raise CorruptCheckpoint(
                f"{file.name} has {size} bytes on the disk, {file.size_bytes} were declared; upload it again.",
                param=file.name,
            )
        digest = digests[file.name] = storage.sha256_file(source, report)
        if file.sha256 and file.sha256 != digest:
            raise ChecksumMismatch(
                f"{file.name} has SHA-256 {digest}, {file.sha256} was declared; it was damaged on the way.",
                param=file.name,
            )
    for file in files:
        if parts[file.name].exists():
            places[file.name].unlink(missing_ok=True)
            storage.publish_file(parts[file.name], digests[file.name], places[file.name])
        UploadFile.objects.filter(pk=file.pk).update(sha256=digests[file.name])
    return digests


class _StageReport:
    """Counts the bytes read, writes the stage to the row at intervals, and stops after a cancel."""

    STEP_BYTES = 256 << 20

    def __init__(self, upload: Upload, *, total: int) -> None:
        self._upload, self._total = upload, total
        self._done = self._reported = 0

    def __call__(self, num_bytes: int) -> None:
        self._done += num_bytes
        if self._done - self._reported >= self.STEP_BYTES:
            self._reported = self._done
            _set_stage(self._upload, f"reading back, {100 * self._done // max(self._total, 1)} %")


def _set_stage(upload: Upload, stage: str) -> None:
    alive = Upload.objects.filter(pk=upload.pk, state=Upload.State.CHECKING).update(
        stage=stage, active_at=timezone.now()
    )
    if not alive:
        raise UploadCancelled("the upload was cancelled.")


# --- ending ------------------------------------------------------------------------------------


def _end(upload: Upload, state: str, reason: str) -> int:
    """End an open upload and remove its files; returns 0 if the upload had ended before."""
    moved = Upload.objects.filter(pk=upload.pk, state__in=Upload.OPEN).update(
        state=state, reason=reason, stage="", active_at=timezone.now()
    )
    if moved:
        _remove_files(upload)
    return moved


def _remove_files(upload: Upload) -> None:
    storage.remove_upload_files(upload.pk)
    if not Checkpoint.objects.filter(pk=upload.pk).exists():
        storage.remove_checkpoint_files(upload.pk)
