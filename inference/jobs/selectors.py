"""Reads of queued generations."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import orjson
from django.db.models import F, QuerySet, Sum

from inference.errors import BlazrError, Conflict, InvalidRequest, UnknownRequest
from inference.models import Batch, GenerationJob, JobChunk, JobState
from inference.models.jobs import JobQuerySet

if TYPE_CHECKING:
    from inference.values.principal import Principal


def jobs_of(principal: Principal) -> JobQuerySet:
    """The jobs that ``principal`` may see; every read of a caller starts here."""
    rows = GenerationJob.objects.all()
    return rows if principal.sees_everything else rows.filter(tenant=principal.tenant)


def job_get(*, job_id: str | uuid.UUID, principal: Principal) -> GenerationJob:
    """One job.

    Raises:
        UnknownRequest: There is none, or it is somebody else's.
    """
    try:
        key = job_id if isinstance(job_id, uuid.UUID) else uuid.UUID(job_id)
    except ValueError:
        key = None
    row = None if key is None else jobs_of(principal).filter(job_id=key).first()
    if row is None:
        raise UnknownRequest(f"There is no job with the id {str(job_id)[:60]!r}.", param="job_id")
    return row


def job_list(
    *,
    principal: Principal,
    state: str | None = None,
    batch_label: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[GenerationJob]:
    """Jobs, newest first, without their requests and results.

    Args:
        principal: Who asks.
        state: Only those in this state.
        batch_label: Only those of this batch.
        before: Only those older than the job with this primary key (``GenerationJob.pk`` of the last one seen).
        limit: At most so many.

    Raises:
        InvalidRequest: No such state.
    """
    rows = jobs_of(principal).defer("plan", "result")
    if state:
        if state not in JobState.values:
            raise InvalidRequest(f"state is {state[:40]!r}; known are {', '.join(JobState.values)}.", param="state")
        rows = rows.filter(state=state)
    if batch_label:
        if "\0" in batch_label:
            return []
        rows = rows.filter(batch_label=batch_label)
    if before is not None:
        rows = rows.filter(pk__lt=before)
    return list(rows[:limit])


def job_counts(*, principal: Principal, batch_label: str | None = None) -> dict[str, int]:
    """Number of jobs by state, and ``completion_tokens`` of them all."""
    rows = jobs_of(principal).order_by()
    if batch_label:
        rows = rows.filter(batch_label=batch_label.replace("\0", ""))
    counts = rows.count_by_state()
    counts["completion_tokens"] = rows.aggregate(total=Sum("completion_tokens"))["total"] or 0
    return counts


def job_result(row: GenerationJob) -> dict[str, Any]:
    """The answer of a job that succeeded.

    Raises:
        Conflict: It isn't finished, or was cancelled.
        BlazrError: What it failed with.
    """
    if row.state == JobState.SUCCEEDED:
        answer: dict[str, Any] = orjson.loads(row.result)
        return answer
    if row.state == JobState.FAILED:
        raise BlazrError.from_dict(orjson.loads(row.error))
    raise Conflict(f"The job is {row.state}; there is a result once it has succeeded.")


def job_error(row: GenerationJob) -> BlazrError | None:
    """Why a job failed, or why its last attempt did."""
    return BlazrError.from_dict(orjson.loads(row.error)) if row.error else None


def num_open(tenant: str) -> int:
    """A tenant's jobs and lines of batches that wait or run."""
    return num_open_lines(tenant) + num_open_jobs(tenant)


def num_open_jobs(tenant: str) -> int:
    """A tenant's jobs that wait or run."""
    return open_jobs().filter(tenant=tenant).count()


def open_jobs() -> JobQuerySet:
    """Jobs that wait or run."""
    return GenerationJob.objects.filter(state__in=(JobState.QUEUED, JobState.RUNNING))


def unkept_chunks() -> QuerySet[JobChunk]:
    """Events that nobody needs once their job has ended."""
    return JobChunk.objects.filter(job__keep_events=False)


def num_open_lines(tenant: str) -> int:
    """Lines of a tenant's batches that wait or run; those of a file that isn't validated yet included."""
    sums = Batch.objects.filter(tenant=tenant, ended_at=None).aggregate(
        lines=Sum("num_lines"), done=Sum(F("num_completed") + F("num_failed"))
    )
    return max(0, (sums["lines"] or 0) - (sums["done"] or 0))
