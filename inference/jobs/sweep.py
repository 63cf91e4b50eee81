"""Putting queued generations right whose worker, or whose API key, is gone."""

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
"""Whether there is something to claim, or to put right."""


def jobs_abandon(*, owner: str) -> int:
    """Let the leases of ``owner`` lapse now: a process of that name starts, so its predecessor is dead.

    The sweep does the rest, and counts the attempt: the job may be what killed it.
    """
    return GenerationJob.objects.filter(owner=owner, state=JobState.RUNNING).update(lease_until=seconds_from_now(-1))


@dataclass(frozen=True, slots=True)
class SweepReport:
    """How many jobs a sweep touched."""

    requeued: int
    failed: int
    cancelled: int


def jobs_sweep() -> SweepReport:
    """Put jobs right whose worker is gone: back into the queue, failed after ``MAX_ATTEMPTS``, or cancelled.

    Jobs of keys that were revoked or have expired are cancelled, wherever they are.

    Safe to run anywhere, at any time, several at once. Runs every second or two.
    """
    _give_up_void_keys()
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


def _give_up_void_keys() -> None:
    going_on = open_jobs().filter(cancel_requested=False)
    tenants = void_tenants(going_on.order_by().values_list("tenant", flat=True).distinct())
    if tenants and going_on.filter(tenant__in=tenants).update(cancel_requested=True):
        hints.wake_workers()
