"""Requeue, fail or cancel the jobs whose worker, API key or account is gone, and delete jobs that ended long ago."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import orjson
from django.conf import settings
from django.db import connection, transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now
from django.utils import timezone

from inference.access.api_keys import void_tenants
from inference.errors import BlazrError, GenerationFailed
from inference.host.fault_points import fault_point
from inference.jobs import hints
from inference.jobs.claims import MAX_ATTEMPTS, TenantPages, leases_shorten, long_leases, seconds_from_now
from inference.jobs.row_order import update_in_order
from inference.jobs.row_watch import RowWatch
from inference.jobs.selectors import chunks_end, open_jobs
from inference.models import TERMINAL_JOB_STATES, GenerationJob, JobState, StoredResponse
from inference.models.jobs import JobQuerySet
from inference.models.readable_rows import readable_rows
from inference.records.job_usage import jobs_charge

END_BATCH = 500
"""Jobs that one transaction ends or deletes."""
OPEN_JOBS = RowWatch(open_jobs)
"""Whether any job is queued or running."""
GIVEN_UP = GenerationFailed(
    f"The job was given up after {MAX_ATTEMPTS} attempts: its worker died each time, or its stored row is damaged. "
    "If it fails again when submitted anew, its prompt or model breaks the engine."
)


def jobs_abandon(*, owner: str) -> int:
    """End the leases of ``owner`` now; called when a process of that name starts, as its predecessor is dead.

    The sweep then requeues the jobs, and counts the attempt: a job may have killed the process.
    """
    return update_in_order(_running().filter(owner=owner), lease_until=seconds_from_now(-1))


@dataclass(frozen=True, slots=True)
class SweepReport:
    """Numbers of jobs that a sweep changed."""

    requeued: int
    failed: int
    cancelled: int


def jobs_sweep() -> SweepReport:
    """Requeue the jobs of lost workers, fail them after ``MAX_ATTEMPTS``, or finish their cancellation.

    Jobs of keys that were revoked or have expired, and of accounts that may not sign in, are cancelled in every state.

    Safe to run anywhere, at any time, several at once. Runs every second or two.
    """
    _cancel_jobs_of_void_tenants()
    # Looked up first: on SQLite each transaction that may write waits for all others.
    if _LONG_LEASES.exists():
        leases_shorten(_running())
    cancelled = failed = requeued = 0
    if _QUEUED_CANCELLED.exists():
        cancelled = _end(_queued_cancelled(), JobState.CANCELLED)
    if _LAPSED.exists():
        cancelled += _end(_lapsed().filter(cancel_requested=True), JobState.CANCELLED)
        failed = _end(_lapsed().filter(attempts__gte=MAX_ATTEMPTS), JobState.FAILED, GIVEN_UP)
        requeued = _requeue()
    return SweepReport(requeued, failed, cancelled)


def _running() -> JobQuerySet:
    return GenerationJob.objects.filter(state=JobState.RUNNING)


def _lapsed() -> JobQuerySet:
    return _running().filter(lease_until__lt=Now())


def _queued_cancelled() -> JobQuerySet:
    return GenerationJob.objects.filter(state=JobState.QUEUED, cancel_requested=True)


_LONG_LEASES = RowWatch(lambda: long_leases(_running()))
_LAPSED = RowWatch(_lapsed)
_QUEUED_CANCELLED = RowWatch(_queued_cancelled)


def _requeue() -> int:
    with transaction.atomic():
        rows = _lapsed().filter(attempts__lt=MAX_ATTEMPTS, cancel_requested=False)
        # What is locked is being written by its worker, or requeued by another sweep.
        requeued = update_in_order(rows, skip_locked=True, state=JobState.QUEUED, lease_until=None, owner="")
        if requeued:
            fault_point("jobs.requeue")
            transaction.on_commit(hints.wake_workers, robust=True)
    return requeued


def _end(ended: JobQuerySet, state: JobState, error: BlazrError | None = None) -> int:
    """End jobs, and charge them for the tokens that they have stored; return their number."""
    reason = {} if error is None else {"error": orjson.dumps(error.to_dict()).decode()}
    # Without an order: that of the primary key would read finished jobs too.
    rows = ended.order_by().values_list("pk", flat=True)
    if connection.features.has_select_for_update_skip_locked:
        rows = rows.select_for_update(skip_locked=True)
    done = 0
    while True:
        with transaction.atomic():
            keys = list(rows[:END_BATCH])
            if not keys:
                return done
            # Damaged rows end with the others, but nobody can be charged for them.
            found = readable_rows(GenerationJob.objects.filter(pk__in=keys).defer("plan", "result", "error"))
            GenerationJob.objects.filter(pk__in=keys).update(
                state=state, lease_until=None, owner="", finished_at=Now(), **reason
            )
            chunks_end(keys)
            jobs_charge(found, outcome="cancelled" if error is None else error.code)
        done += len(keys)
        if len(keys) < END_BATCH:
            return done


def finished_jobs_sweep() -> int:
    """Delete jobs that ended more than ``BLAZR_RETENTION_DAYS`` ago (0: none); return the number of deleted jobs.

    A job of a stored response is deleted with its response, which is built from the job's events.
    """
    if not settings.BLAZR_RETENTION_DAYS:
        return 0
    before = timezone.now() - timedelta(days=settings.BLAZR_RETENTION_DAYS)
    responses = StoredResponse.objects.filter(job=OuterRef("pk"))
    old = GenerationJob.objects.filter(~Exists(responses), state__in=TERMINAL_JOB_STATES, finished_at__lt=before)
    removed = 0
    while True:
        keys = list(old.order_by("finished_at").values_list("pk", flat=True)[:END_BATCH])
        GenerationJob.objects.filter(pk__in=keys).delete()
        removed += len(keys)
        if len(keys) < END_BATCH:
            return removed


_tenant_pages = TenantPages()


def _cancel_jobs_of_void_tenants() -> None:
    """Of those with running jobs, and of a page of those with queued ones; the next sweep takes the next page."""
    running = _running().order_by().values_list("tenant", flat=True)
    void = void_tenants({*_tenant_pages.next_page(), *running})
    open_ones = open_jobs().filter(cancel_requested=False)
    if void and update_in_order(open_ones.filter(tenant__in=void), cancel_requested=True):
        hints.wake_workers()
