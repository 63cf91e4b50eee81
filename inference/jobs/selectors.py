"""Look up queued generations and their results."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import orjson
from django.db.models import F, Sum

from inference.errors import BlazrError, Conflict, InvalidRequest, UnknownRequest
from inference.models import Batch, GenerationJob, JobChunk, JobState
from inference.models.jobs import JobQuerySet
from inference.models.readable_rows import readable_rows

if TYPE_CHECKING:
    from inference.values.principal import Principal


MAX_COUNTED = 10_000


def jobs_of(principal: Principal) -> JobQuerySet:
    """Return the jobs that ``principal`` may see; each read for a caller starts here."""
    rows = GenerationJob.objects.all()
    return rows if principal.sees_everything else rows.filter(tenant=principal.tenant)


def job_get(*, job_id: str | uuid.UUID, principal: Principal, with_plan: bool = False) -> GenerationJob:
    """Return one job.

    Args:
        with_plan: Whether its request is read too, which may be large.

    Raises:
        UnknownRequest: There is none, it belongs to another tenant, or its row is damaged.
    """
    try:
        key = job_id if isinstance(job_id, uuid.UUID) else uuid.UUID(job_id)
    except ValueError:
        key = None
    rows: list[GenerationJob] = []
    if key is not None:
        found = jobs_of(principal).filter(job_id=key)
        rows = readable_rows(found if with_plan else found.defer("plan"), 1)
    if not rows:
        raise UnknownRequest(f"There is no job with the id {str(job_id)[:60]!r}.", param="job_id")
    return rows[0]


def job_list(
    *,
    principal: Principal,
    state: str | None = None,
    batch_label: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[GenerationJob]:
    """Return jobs, newest first, without their requests and results; damaged rows are left out.

    Args:
        batch_label: Only jobs of this batch.
        before: Only jobs older than the one with this primary key (``GenerationJob.pk`` of the last one seen).

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
    return readable_rows(rows, limit)


def job_counts(*, principal: Principal, batch_label: str | None = None) -> dict[str, int]:
    """Return the number of jobs by state, and the sum of their ``completion_tokens``."""
    rows = jobs_of(principal).order_by()
    if batch_label:
        rows = rows.filter(batch_label=batch_label.replace("\0", ""))
    counts = rows.count_by_state()
    counts["completion_tokens"] = rows.aggregate(total=Sum("completion_tokens"))["total"] or 0
    return counts


def open_job_counts() -> dict[str, int]:
    """Return the number of queued and of running jobs, each at most ``MAX_COUNTED``.

    For frequent calls: the indexes of open jobs answer it, however many finished jobs are stored.
    """
    return {
        str(state): GenerationJob.objects.filter(state=state).order_by()[:MAX_COUNTED].count()
        for state in (JobState.QUEUED, JobState.RUNNING)
    }


def job_result(row: GenerationJob) -> dict[str, Any]:
    """Return the result of a job that succeeded.

    Raises:
        Conflict: The job is not finished, or was cancelled.
        BlazrError: The job failed with this error.
    """
    if row.state == JobState.SUCCEEDED:
        result: dict[str, Any] = orjson.loads(row.result)
        return result
    if row.state == JobState.FAILED:
        raise BlazrError.from_dict(orjson.loads(row.error))
    raise Conflict(f"The job is {row.state}; there is a result once it has succeeded.")


def job_error(row: GenerationJob) -> BlazrError | None:
    """Return the error of a failed job, or of the last attempt of an open one."""
    return BlazrError.from_dict(orjson.loads(row.error)) if row.error else None


def num_open(tenant: str) -> int:
    """Return the number of a tenant's jobs and batch lines that wait or run."""
    return num_open_lines(tenant) + num_open_jobs(tenant)


def num_open_jobs(tenant: str) -> int:
    return open_jobs().filter(tenant=tenant).count()


def open_jobs() -> JobQuerySet:
    return GenerationJob.objects.filter(state__in=(JobState.QUEUED, JobState.RUNNING))


def chunks_end(keys: Collection[int]) -> None:
    """Delete the stored events of jobs that end; add the bytes of events that stay to ``size_bytes`` of their jobs.

    Call it once for a job, in the transaction that ends it.
    """
    chunks = JobChunk.objects.filter(job_id__in=keys)
    chunks.filter(job__keep_events=False).delete()
    kept: Counter[int] = Counter()
    for key, events in chunks.order_by().values_list("job_id", "events").iterator():
        kept[key] += len(events.encode())
    for key, size_bytes in kept.items():
        GenerationJob.objects.filter(pk=key).update(size_bytes=F("size_bytes") + size_bytes)


def num_open_lines(tenant: str) -> int:
    """Return the number of a tenant's batch lines that wait or run, lines of unvalidated files included."""
    sums = Batch.objects.filter(tenant=tenant, ended_at=None).aggregate(
        lines=Sum("num_lines"), done=Sum(F("num_completed") + F("num_failed"))
    )
    return max(0, (sums["lines"] or 0) - (sums["done"] or 0))
