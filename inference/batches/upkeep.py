"""Validate, end and finalise whole batches, and sweep the lines of old ones.

Several processes may call these functions at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from inference.access.api_keys import void_tenants
from inference.batches.batch_claims import FenceLost, batch_claim
from inference.batches.ending import batch_finalise
from inference.batches.line_requests import LineError, errors_text
from inference.batches.results import rows_locked
from inference.batches.unrun_lines import fail_queued, unrun_error
from inference.batches.validation import batch_validate
from inference.errors import StorageFull
from inference.jobs import hints
from inference.jobs.row_order import update_in_order
from inference.models import TERMINAL_BATCH_STATES, Batch, BatchLine, BatchState, LineState

logger = logging.getLogger(__name__)

LINES_KEPT = timedelta(days=1)
"""Lines are kept so long after the end of their batch, for inspection; the files hold all of them."""


def batches_turn(*, owner: str, stopping: Callable[[], bool] = lambda: False) -> int:
    """Do the due work on batches; returns the number of changed batches.

    Args:
        owner: The worker's id.
        stopping: Returns True when the process ends; other workers continue then.
    """
    done = _end_due()
    for rows, work, values in (
        (_validating(), batch_validate, {}),
        (_without_open_lines(), batch_finalise, {"state": BatchState.FINALIZING}),
        (_cancelled(), batch_finalise, {}),
    ):
        while not stopping():
            claim = batch_claim(rows, owner=owner, stopping=stopping, **values)
            if claim is None:
                break
            done += 1
            try:
                work(claim)
            except FenceLost:
                continue
            except StorageFull as error:
                # Other batches go on, and so does the sweep, which may free space. The lease delays the next attempt.
                logger.warning("batch %s can't be ended yet: %s", claim.row.batch_id, error.message)
    return done


def _validating() -> QuerySet[Batch]:
    return Batch.objects.filter(state=BatchState.VALIDATING)


def _without_open_lines() -> QuerySet[Batch]:
    over = Q(num_total=F("num_completed") + F("num_failed"))
    return Batch.objects.filter(over, state__in=(BatchState.IN_PROGRESS, BatchState.FINALIZING))


def _cancelled() -> QuerySet[Batch]:
    """Return the cancelled batches without running lines; the workers stop running lines first."""
    running = BatchLine.objects.filter(state=LineState.RUNNING).values("batch_id")
    return Batch.objects.filter(state=BatchState.CANCELLING).exclude(pk__in=running)


def _end_due() -> int:
    """End the waiting lines of batches that must stop; each worker's next heartbeat stops the running ones."""
    open_ones = Batch.objects.filter(ended_at=None, ending="")
    done = _begin_end(open_ones.filter(expires_at__lte=Now()), BatchState.EXPIRED)
    tenants = void_tenants(open_ones.order_by().values_list("tenant", flat=True).distinct())
    if tenants:
        code, message = unrun_error(BatchState.FAILED)
        reason = errors_text([LineError(code, message, None)])
        done += _begin_end(open_ones.filter(tenant__in=tenants), BatchState.FAILED, errors=reason)
    if done:
        hints.wake_workers()
    for batch in Batch.objects.filter(state=BatchState.IN_PROGRESS).exclude(ending=""):
        fail_queued(batch)
    return done


def _begin_end(rows: QuerySet[Batch], ending: BatchState, **values: Any) -> int:
    done = update_in_order(rows.filter(state=BatchState.IN_PROGRESS), ending=ending, **values)
    # A new fence stops the writes of a worker that is validating the file.
    return done + update_in_order(
        rows.filter(state=BatchState.VALIDATING),
        state=BatchState.FINALIZING,
        ending=ending,
        fence=F("fence") + 1,
        owner="",
        lease_until=None,
        **values,
    )


def batches_sweep() -> int:
    """Delete the lines of batches that ended long ago; returns their number."""
    ended = Batch.objects.filter(state__in=TERMINAL_BATCH_STATES, ended_at__lt=timezone.now() - LINES_KEPT)
    with transaction.atomic():
        rows = rows_locked(BatchLine.objects.filter(batch__in=ended).only("pk"))
        removed, _ = BatchLine.objects.filter(pk__in=[row.pk for row in rows[:5000]]).delete()
    return removed
