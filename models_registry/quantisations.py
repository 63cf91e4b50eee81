"""Quantise checkpoints as durable jobs: start, follow, cancel, and register the result.

    quantisation_create  checks limits, name and disk, stores the row, and starts a thread
    the thread           holds the lock of the row's directory and follows the child (``quantise_process``)
    quantisation_cancel  ends the row; the thread sees that within a second, ends the child and removes its files
    quantisations_sweep  ends the rows of processes that died

The child writes below the directory of uploads, and the result is published and registered as an upload is. Rows
change by conditional updates.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import DatabaseError, IntegrityError, close_old_connections, connection, transaction
from django.utils import timezone

from inference.errors import (
    BlazrError,
    Conflict,
    EngineError,
    InvalidRequest,
    NotFound,
    QueueFull,
    StorageFull,
    UnsupportedFormat,
)
from inference.host.units import format_bytes
from inference.modelling.gguf.ggjt import has_ggml_suffix
from models_registry import storage
from models_registry.detection.child import inspect_in_child
from models_registry.detection.inspection import Inspection
from models_registry.models import MAX_NAME_CHARS, Checkpoint, Quantisation
from models_registry.names import check_name
from models_registry.quantise_process import QuantiseProcess
from models_registry.selectors import checkpoint_inspection, overrides_in_force
from models_registry.services import checkpoint_register, free_name
from models_registry.uploads import available_bytes

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser
    from django.db.models import QuerySet

logger = logging.getLogger(__name__)

State = Quantisation.State

MAX_KL = 100.0
"""Upper bound of ``max_kl`` in nats, as of ``blazr quantise``."""
SUFFIX = "-quantised"
KEEP_ROWS = timedelta(days=7)
"""How long the row of an ended quantisation is kept."""
START_LIMIT = timedelta(seconds=5)
"""A row without a process is dead after so long."""
TICK_S = 1.0
"""Seconds between updates of the row, each of which notices a cancellation."""
_QUANTISED, _HASHED = 0.9, 0.98
"""Shares of the work that are done after the child, and after its files were read back."""
_MAX_STAGE_CHARS = 200


class _Cancelled(Exception):
    """The row was ended while the quantisation ran."""


def quantisation_create(
    *,
    checkpoint: Checkpoint,
    owner: AbstractBaseUser | None = None,
    served_model_name: str = "",
    max_bytes: int | None = None,
    max_kl: float | None = None,
    wait: bool = False,
) -> Quantisation:
    """Start the quantisation of a checkpoint, after all checks that need no computing.

    Args:
        served_model_name: Of the result; empty: the source's with a suffix.
        max_bytes: Limit of the weights' file.
        max_kl: Limit of the mean KL divergence in nats.
        wait: Run in this call; otherwise in a thread, and the row's ``progress`` and ``stage`` show where it is.

    Raises:
        InvalidRequest: There is no limit or a wrong one, or the name is not legal.
        UnsupportedFormat: The checkpoint holds codes already.
        Conflict: The name is taken, or the checkpoint's files can't be served.
        QueueFull: Another quantisation is running.
        StorageFull: The disk has too little space for the result.
    """
    _check_limits(checkpoint, max_bytes, max_kl)
    name = check_name(served_model_name) if served_model_name else default_name(checkpoint)
    if free_name(name) != name:
        raise Conflict(
            f"The name {name!r} is taken by another checkpoint or an alias; choose a different served_model_name.",
            param="served_model_name",
        )
    if checkpoint.state != Checkpoint.State.AVAILABLE:
        raise Conflict(f"{checkpoint.served_model_name} is {checkpoint.state}: {checkpoint.state_reason}")
    if not is_quantisable(checkpoint_inspection(checkpoint)):
        raise UnsupportedFormat(
            f"{checkpoint.served_model_name} holds codes or is a GGUF or ggjt file; quantise a safetensors checkpoint "
            "with the weights as they were before they were quantised.",
            param="checkpoint",
        )
    quantisations_sweep()
    _check_disk(checkpoint, max_bytes)
    try:
        with transaction.atomic():
            row = Quantisation.objects.create(
                owner_id=getattr(owner, "pk", None),
                source=checkpoint,
                source_name=checkpoint.served_model_name,
                served_model_name=name,
                max_bytes=max_bytes,
                max_kl=max_kl,
                stage="starting",
                active_at=timezone.now(),
            )
    except IntegrityError:  # the constraint of one running quantisation
        raise _another_runs() from None
    if wait:
        _run(row.pk)
    else:
        threading.Thread(target=_run_in_thread, args=(row.pk,), name=f"quantise-{row.pk}", daemon=True).start()
    return quantisation_get(row.pk)


def quantisation_cancel(*, quantisation_id: uuid.UUID, username: str = "") -> Quantisation:
    """Cancel a running quantisation; one that failed or was cancelled stays as it is.

    Raises:
        NotFound: No such quantisation.
        Conflict: It is done.
    """
    _end(quantisation_get(quantisation_id), State.CANCELLED, f"cancelled by {username}" if username else "cancelled")
    row = quantisation_get(quantisation_id)
    if row.state == State.DONE:
        raise Conflict(f"the quantisation is done; delete the model {row.served_model_name} instead.")
    return row


def quantisation_get(quantisation_id: uuid.UUID) -> Quantisation:
    """Return a quantisation.

    Raises:
        NotFound: There is no such quantisation.
    """
    row = Quantisation.objects.filter(pk=quantisation_id).first()
    if row is None:
        raise NotFound(f"there is no quantisation {quantisation_id}.", param="quantisation")
    return row


def quantisations_of(checkpoint: Checkpoint) -> QuerySet[Quantisation]:
    """Return the quantisations of a checkpoint, newest first."""
    return Quantisation.objects.filter(source=checkpoint)


def quantisations_sweep() -> int:
    """End the rows of dead processes and delete old rows; returns the number of ended rows."""
    now, ended = timezone.now(), 0
    for row in Quantisation.objects.filter(state=State.RUNNING, active_at__lt=now - START_LIMIT):
        with storage.upload_lock(row.pk) as held:
            if held:
                ended += _end(row, State.FAILED, "the server stopped while it quantised; start it again")
                storage.remove_upload_files(row.pk)
    Quantisation.objects.exclude(state=State.RUNNING).filter(active_at__lt=now - KEEP_ROWS).delete()
    return ended


def is_quantisable(inspection: Inspection) -> bool:
    """Whether the weights are stored as numbers in safetensors files."""
    return not (inspection.spec.encoded or any(map(has_ggml_suffix, inspection.weight_files)))


def default_name(checkpoint: Checkpoint) -> str:
    """Return a free name for the result."""
    return free_name(checkpoint.served_model_name[: MAX_NAME_CHARS - len(SUFFIX)] + SUFFIX)


# --- checks ------------------------------------------------------------------------------------


def _check_limits(checkpoint: Checkpoint, max_bytes: int | None, max_kl: float | None) -> None:
    if max_bytes is None and max_kl is None:
        raise InvalidRequest("say how small or how close: max_bytes, max_kl, or both.", param="max_bytes")
    if max_bytes is not None and not 0 < max_bytes < checkpoint.size_bytes:
        raise InvalidRequest(
            f"max_bytes is {max_bytes}; it must be above 0 and below the {checkpoint.size_bytes} bytes "
            f"({format_bytes(checkpoint.size_bytes)}) that {checkpoint.served_model_name} has now.",
            param="max_bytes",
        )
    if max_kl is not None and not 0 < max_kl < MAX_KL:
        raise InvalidRequest(f"max_kl is {max_kl:g}; it must be above 0 and below {MAX_KL:g} nats.", param="max_kl")


def _check_disk(checkpoint: Checkpoint, max_bytes: int | None) -> None:
    needed, available = max_bytes or checkpoint.size_bytes, available_bytes()
    if needed > available:
        raise StorageFull(
            f"the result may have {needed} bytes, the server's disk has {max(available, 0)} to give; free some space, "
            "or give a lower max_bytes.",
            param="max_bytes",
        )


def _another_runs() -> QueueFull:
    running = Quantisation.objects.filter(state=State.RUNNING).first()
    which = f" ({running.source_name}, {running.progress:.0%} done)" if running else ""
    return QueueFull(f"another quantisation is running{which}; wait for its end or cancel it.", retry_after_s=60)


# --- running -----------------------------------------------------------------------------------


def _run_in_thread(quantisation_id: uuid.UUID) -> None:
    close_old_connections()
    try:
        _run(quantisation_id)
    finally:
        connection.close()


def _run(quantisation_id: uuid.UUID) -> None:
    """Run a quantisation under its lock, and end its row with a result or a reason."""
    with storage.upload_lock(quantisation_id) as held:
        if not held:
            return
        row = quantisation_get(quantisation_id)
        try:
            with storage.full_disk_as_error():
                _quantise_and_register(row)
        except _Cancelled:
            storage.remove_checkpoint_files(row.pk)
        except BlazrError as error:
            _fail(row, error.message)
        except Exception:
            logger.exception("quantisation %s failed", row.pk)
            _fail(row, "the server failed while it quantised; its log has details")
        finally:
            storage.remove_upload_files(row.pk)


def _quantise_and_register(row: Quantisation) -> None:
    source = row.source
    if source is None:
        raise NotFound(f"{row.source_name} was deleted.")
    overrides = overrides_in_force(source)
    target = storage.upload_path(row.pk) / "checkpoint"
    request = {
        "path": source.path,
        "overrides": overrides,
        "target": str(target),
        "max_bytes": row.max_bytes,
        "max_kl": row.max_kl,
        "device": settings.BLAZR_DEVICE,
    }
    report = _Report(row)
    with QuantiseProcess(request) as child:
        _follow(child, report)
    digests = _publish(row, target, report)
    report(_HASHED, "inspecting")
    place = storage.checkpoint_path(row.pk)
    inspection = inspect_in_child(place, overrides=overrides)
    with transaction.atomic():
        checkpoint = checkpoint_register(
            path=place,
            served_model_name=free_name(row.served_model_name),  # taken meanwhile: hours of work get a number
            source=Checkpoint.Source.UPLOAD,
            origin=f"quantised from {row.source_name}",
            overrides=overrides,
            author=row.owner,
            checkpoint_id=row.pk,
            sha256=digests,
            inspect=lambda *_, **__: inspection,  # inspected outside of the transaction, because it is slow
        )
        done = Quantisation.objects.filter(pk=row.pk, state=State.RUNNING).update(
            state=State.DONE,
            progress=1.0,
            stage="",
            checkpoint=checkpoint,
            served_model_name=checkpoint.served_model_name,
            active_at=timezone.now(),
        )
        if not done:
            raise _Cancelled


class _Report:
    """Writes progress to the row at intervals, and stops the work after a cancellation."""

    def __init__(self, row: Quantisation) -> None:
        self._row = row
        self._share, self._stage = 0.0, row.stage
        self._written_at = 0.0

    def __call__(self, share: float | None = None, stage: str | None = None) -> None:
        """Take a share of the work and a stage; None: as before.

        Raises:
            _Cancelled: The row has ended.
        """
        self._share = self._share if share is None else share
        self._stage = self._stage if stage is None else stage[:_MAX_STAGE_CHARS]
        if time.monotonic() - self._written_at < TICK_S:
            return
        self._written_at = time.monotonic()
        try:
            alive = Quantisation.objects.filter(pk=self._row.pk, state=State.RUNNING).update(
                progress=self._share, stage=self._stage, active_at=timezone.now()
            )
        except DatabaseError as error:  # an outage must not cost hours of work
            logger.warning("the progress of quantisation %s can't be stored: %s", self._row.pk, error)
            close_old_connections()
            return
        if not alive:
            raise _Cancelled


def _follow(child: QuantiseProcess, report: _Report) -> None:
    """Report the child's progress until it has written the checkpoint.

    Raises:
        BlazrError: As ``blazr_site.quantise_child`` writes it.
        EngineError: The child broke.
    """
    is_written = False
    for message in child.messages(TICK_S):
        if "error" in message:
            raise BlazrError.from_dict(message["error"])
        is_written = is_written or "result" in message
        share = message.get("progress")
        report(None if share is None else _QUANTISED * share, message.get("stage"))
    if not is_written:
        raise EngineError("the process that quantised ended without a result; the server's log says why.")


def _publish(row: Quantisation, target: Path, report: _Report) -> dict[str, str]:
    """Hash the written files, and link them into the checkpoint's directory; returns digests by name."""
    place = storage.checkpoint_path(row.pk)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    digests: dict[str, str] = {}
    report(_QUANTISED, "reading back")
    for file in sorted(target.iterdir()):
        digests[file.name] = storage.sha256_file(file, lambda _: report())
        storage.publish_file(file, digests[file.name], place / file.name)
    return digests


# --- ending ------------------------------------------------------------------------------------


def _fail(row: Quantisation, reason: str) -> None:
    _end(row, State.FAILED, reason)
    if not Checkpoint.objects.filter(pk=row.pk).exists():
        storage.remove_checkpoint_files(row.pk)


def _end(row: Quantisation, state: str, reason: str) -> int:
    """End a running quantisation; returns 0 if it had ended before."""
    return Quantisation.objects.filter(pk=row.pk, state=State.RUNNING).update(
        state=state, reason=reason, stage="", active_at=timezone.now()
    )
