"""Pulls that are rows: started by a request, followed by others, and gone on with after a restart.

    pull_create    stores the row and starts a thread, which holds the lock of the row and follows a child (hub_child)
    pull_cancel    ends the row; the thread sees that within a second, and ends the child
    pulls_resume   starts the threads of rows whose process died; called when the web process or another pull starts

What was downloaded stays in the hub's cache, so that a child goes on where an earlier one was ended. Up to
``BLAZR_MAX_PULLS`` run at a time.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import DatabaseError, close_old_connections, connection, transaction
from django.utils import timezone

from inference.errors import BlazrError, EngineError, NotFound, PermissionRefused, QueueFull
from models_registry import storage
from models_registry.checkpoint_jobs import TICK_S, Cancelled
from models_registry.detection.child import inspect_in_child
from models_registry.detection.inspection import Inspection
from models_registry.hub import PullProgress
from models_registry.job_process import JobProcess
from models_registry.model_paths import pull_origin
from models_registry.models import Checkpoint, PullJob
from models_registry.names import check_name, suggest_name
from models_registry.services import checkpoint_register, free_name, name_taken

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

logger = logging.getLogger(__name__)

CHILD = "models_registry.hub_child"
KEEP_ROWS = timedelta(days=7)
"""How long the row of an ended pull is kept."""
RATE_S = 5.0
"""Seconds over which the rate of a download is a mean."""
RETRY_S = 30.0
"""Seconds until a pull goes on whose end couldn't be stored."""
State, Stage = PullJob.State, PullJob.Stage
NOT_ALLOWED = (
    "This server doesn't fetch models on request; run blazr pull on its machine, or set BLAZR_MAX_PULLS and restart it."
)
"""Why nothing is asked of another host."""


def pull_create(
    *, origin: str, served_model_name: str = "", owner: AbstractBaseUser | None = None, wait: bool = False
) -> PullJob:
    """Store a pull and start it; one of the same origin that runs is returned instead.

    Args:
        origin: As ``model_paths.pull_origin`` takes it.
        served_model_name: Name of the model; empty: made from the origin.
        wait: Pull in this call.

    Raises:
        PermissionRefused: The server doesn't pull on request.
        InvalidRequest: The origin or the name is none.
        Conflict: The name is taken.
        QueueFull: Too many pulls run.
    """
    allowed = check_pulls_allowed()
    origin = pull_origin(origin)
    if served_model_name:
        check_name(served_model_name)
        own = Checkpoint.objects.filter(served_model_name=served_model_name, origin=origin)
        if free_name(served_model_name) != served_model_name and not own.exists():
            raise name_taken(served_model_name)  # before gigabytes have been fetched
    pulls_resume()  # what no process goes on with would count for ever
    with transaction.atomic():
        running = PullJob.objects.filter(state=State.RUNNING)
        known = running.filter(origin=origin).first()
        if known is not None:
            return known
        if running.count() >= allowed:
            raise QueueFull(f"{allowed} models are being pulled already; try again later.", retry_after_s=30)
        row = PullJob.objects.create(
            owner_id=getattr(owner, "pk", None),
            origin=origin,
            served_model_name=served_model_name,
            active_at=timezone.now(),
        )
    if wait:
        _run(row.pk)
    else:
        _start(row.pk)
    return pull_get(row.pk)


def check_pulls_allowed() -> int:
    """Return how many pulls may run at once.

    Raises:
        PermissionRefused: None.
    """
    allowed = int(settings.BLAZR_MAX_PULLS)
    if not allowed:
        raise PermissionRefused(NOT_ALLOWED)
    return allowed


def pull_get(pull_id: uuid.UUID) -> PullJob:
    """Return a pull.

    Raises:
        NotFound: There is no such pull.
    """
    row = PullJob.objects.filter(pk=pull_id).first()
    if row is None:
        raise NotFound(f"there is no pull {pull_id}.", param="pull")
    return row


def name_of(row: PullJob) -> str:
    """Return the name of a pull's model; one that wasn't given may get a number behind it at the end."""
    if row.checkpoint is not None:
        return row.checkpoint.served_model_name
    return row.served_model_name or suggest_name(row.origin)


def pull_cancel(pull_id: uuid.UUID) -> PullJob:
    """End a running pull; what was downloaded stays in the cache.

    Raises:
        NotFound: There is no such pull.
    """
    _end(pull_get(pull_id).pk, State.CANCELLED, "cancelled")
    return pull_get(pull_id)


def pulls_resume() -> int:
    """Go on with the pulls whose process died, and delete old rows; returns the number of threads that start.

    A pull that another process runs keeps its lock, so that its thread here ends at once. Where the operator allows no
    pulls any more, none goes on.
    """
    PullJob.objects.exclude(state=State.RUNNING).filter(active_at__lt=timezone.now() - KEEP_ROWS).delete()
    keys = list(PullJob.objects.filter(state=State.RUNNING).values_list("pk", flat=True))
    if not settings.BLAZR_MAX_PULLS:
        for key in keys:
            _end(key, State.FAILED, NOT_ALLOWED)
        return 0
    for key in keys:
        _start(key)
    return len(keys)


def _start(pull_id: uuid.UUID) -> None:
    threading.Thread(target=_run_in_thread, args=(pull_id,), name=f"pull-{pull_id}", daemon=True).start()


def _run_in_thread(pull_id: uuid.UUID) -> None:
    """Pull until the row has ended: without a thread it would run for ever, and count against the limit."""
    while True:
        close_old_connections()
        try:
            _run(pull_id)
            return
        except Exception:
            logger.exception("the pull %s broke off; it goes on in %.0f s", pull_id, RETRY_S)
        finally:
            connection.close()
        time.sleep(RETRY_S)


def _run(pull_id: uuid.UUID) -> None:
    """Pull under the row's lock, and end the row with a model or a reason."""
    with storage.upload_lock(pull_id) as held:
        row = PullJob.objects.filter(pk=pull_id, state=State.RUNNING).first() if held else None
        if row is None:
            return
        try:
            _register(row, _fetch(row))
        except Cancelled:
            return
        except BlazrError as error:
            _end(row.pk, State.FAILED, error.message)
        except Exception:
            logger.exception("pull %s of %s failed", row.pk, row.origin)
            _end(row.pk, State.FAILED, "the server failed while it pulled the model; its log has details")
        finally:
            storage.remove_upload_files(pull_id)


def _register(row: PullJob, path: str) -> None:
    """Inspect the files and register them, unless the row was ended before.

    Raises:
        Cancelled: It was.
        BlazrError: As ``checkpoint_register``.
    """

    def inspect(place: Path, **options: Any) -> Inspection:
        _set_stage(row.pk, Stage.INSPECTING)
        found = inspect_in_child(place, **options)
        _set_stage(row.pk, Stage.REGISTERING)
        return found

    def confirm(checkpoint: Checkpoint) -> None:
        if not _end(row.pk, State.DONE, "", checkpoint=checkpoint):
            raise Cancelled

    checkpoint_register(
        path=path,
        served_model_name=row.served_model_name or None,
        source=Checkpoint.Source.HUB,
        origin=row.origin,
        inspect=inspect,
        confirm=confirm,
    )


def _fetch(row: PullJob) -> str:
    """Follow a child to the path of the files.

    Raises:
        Cancelled: The row was ended meanwhile.
        BlazrError: As the child writes it.
    """
    request = {"model": row.origin, "max_bytes": int(settings.BLAZR_MAX_UPLOAD_BYTES)}
    rate = _Rate()
    seen = PullProgress("")
    stage, written_at = "", 0.0
    with JobProcess(CHILD, request, can_fetch=True) as child:
        for message in child.messages(TICK_S):
            if "error" in message:
                raise BlazrError.from_dict(message["error"])
            if "path" in message:
                return str(message["path"])
            if message.get("progress", {}).get("file"):
                seen = PullProgress(**message["progress"])
            if seen.stage == stage and time.monotonic() - written_at < TICK_S:
                continue
            stage, written_at = seen.stage, time.monotonic()
            if seen.file:
                _record(row.pk, seen, rate.add(seen.received_bytes, written_at))
            else:  # what an earlier process has counted stays
                _update(row.pk)
    raise EngineError(f"the pull of {row.origin} ended without files; the server's log says why.")


class _Rate:
    """Bytes per second over the network, as a mean in which older seconds count less."""

    def __init__(self) -> None:
        self._bytes, self._at = 0, time.monotonic()
        self._mean: float | None = None

    def add(self, received_bytes: int, now: float) -> int:
        """Take what has come until now; returns the mean."""
        seconds = now - self._at
        if seconds > 0:
            rate = (received_bytes - self._bytes) / seconds
            weight = 1.0 if self._mean is None else -math.expm1(-seconds / RATE_S)
            self._mean = (self._mean or 0.0) * (1 - weight) + rate * weight
            self._bytes, self._at = received_bytes, now
        return int(self._mean or 0)


def _record(pull_id: uuid.UUID, progress: PullProgress, bytes_per_s: int) -> None:
    """Write the progress of a download.

    Raises:
        Cancelled: The row has ended.
    """
    _update(
        pull_id,
        stage=progress.stage,
        file=progress.file[:200],
        done_bytes=progress.done_bytes,
        total_bytes=progress.total_bytes,
        fetched_bytes=progress.fetched_bytes,
        size_bytes=progress.size_bytes,
        bytes_per_s=bytes_per_s if progress.stage == Stage.FETCHING else 0,
    )


def _set_stage(pull_id: uuid.UUID, stage: str) -> None:
    """Write what comes after the download.

    Raises:
        Cancelled: The row has ended.
    """
    _update(pull_id, stage=stage, file="", bytes_per_s=0)


def _update(pull_id: uuid.UUID, **fields: Any) -> None:
    """Write a sign of life of a running pull, and other columns; an outage of the database ends no download.

    Raises:
        Cancelled: It has ended.
    """
    try:
        is_running = PullJob.objects.filter(pk=pull_id, state=State.RUNNING).update(active_at=timezone.now(), **fields)
    except DatabaseError as error:
        logger.warning("the progress of the pull %s can't be stored: %s", pull_id, error)
        close_old_connections()
        return
    if not is_running:
        raise Cancelled


def _end(pull_id: uuid.UUID, state: str, reason: str, **fields: Any) -> int:
    """End a running pull; returns 0 if it had ended before."""
    return PullJob.objects.filter(pk=pull_id, state=State.RUNNING).update(
        state=state, reason=reason, bytes_per_s=0, active_at=timezone.now(), **fields
    )
