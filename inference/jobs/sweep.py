"""Requeue, fail or cancel the jobs whose worker or API key is gone."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from inference.access.api_keys import void_tenants
from inference.errors import GenerationFailed
from inference.jobs import hints
from inference.jobs.claims import MAX_ATTEMPTS, seconds_from_now
from inference.jobs.row_watch import RowWatch
from inference.jobs.selectors import open_jobs, unkept_chunks
from inference.models import TERMINAL_JOB_STATES, GenerationJob, JobState

OPEN_JOBS = RowWatch(open_jobs)
"""Whether any job is queued or running."""


def jobs_abandon(*, owner: str) -> int:
    """End the leases of ``owner`` now; called when a process of that name starts, as its predecessor is dead.

    The sweep then requeues the jobs, and counts the attempt: a job may have killed the process.
    """
    return GenerationJob.objects.filter(owner=owner, state=JobState.RUNNING).update(lease_until=seconds_from_now(-1))


@dataclass(frozen=True, slots=True)
class SweepReport:
    """Numbers of jobs that a sweep changed."""

    requeued: int
    failed: int
    cancelled: int


def jobs_sweep() -> SweepReport:
    """Requeue the jobs of lost workers, fail them after ``MAX_ATTEMPTS``, or finish their cancellation.

    Jobs of keys that were revoked or have expired are cancelled in every state.

    Safe to run anywhere, at any time, several at once. Runs every second or two.
    """
    _cancel_jobs_of_void_keys()
    lapsed = Q(state=JobState.RUNNING, lease_until__lt=Now())
    crash = GenerationFailed(
        f"The worker died {MAX_ATTEMPTS} times while it ran this job; the job was given up. "
        "If it fails again when submitted anew, its prompt or model breaks the engine."
    )
    ended = {"lease_until": None, "owner": "", "finished_at": Now()}
    with transaction.atomic():
        cancelled = GenerationJob.objects.filter(lapsed | Q(state=JobState.QUEUED), cancel_requested=True).update(
            state=JobState.CANCELLED, **ended
        )
        failed = GenerationJob.objects.filter(lapsed, attempts__gte=MAX_ATTEMPTS).update(
            state=JobState.FAILED, error=orjson.dumps(crash.to_dict()).decode(), **ended
        )
        requeued = GenerationJob.objects.filter(lapsed).update(state=JobState.QUEUED, lease_until=None, owner="")
        if cancelled or failed:
            unkept_chunks().filter(job__state__in=TERMINAL_JOB_STATES).delete()
        if requeued:
            transaction.on_commit(hints.wake_workers, robust=True)
    return SweepReport(requeued, failed, cancelled)


def _cancel_jobs_of_void_keys() -> None:
    not_cancelled = open_jobs().filter(cancel_requested=False)
    tenants = void_tenants(not_cancelled.order_by().values_list("tenant", flat=True).distinct())
    if tenants and not_cancelled.filter(tenant__in=tenants).update(cancel_requested=True):
        hints.wake_workers()
