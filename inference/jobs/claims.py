"""Claim, keep alive, append to, finish and release queued generations, for workers.

The row is the job; a message about it is only a hint to look. A claim is a lease plus a fencing number. Each later
write of the worker carries ``WHERE fence = … AND state = 'running'``; a write that changes no row means that another
worker has the job. Leases are counted in the database's time.

    queued ──claim──► running ──finish──► succeeded | failed | cancelled
      ▲                  │
      └──release, sweep──┘            queued ──cancel──► cancelled

All functions are synchronous and use the database: call them off the event loop.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import orjson
from django.db import connection, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from inference.errors import BlazrError, GenerationFailed
from inference.host.fault_points import fault_point
from inference.jobs.row_order import update_in_order
from inference.jobs.selectors import chunks_end
from inference.jobs.sharing import share_places
from inference.models import TERMINAL_JOB_STATES, GenerationJob, JobChunk, JobState
from inference.models.readable_rows import readable_rows
from inference.records.job_usage import jobs_charge
from inference.values.messages import GenerationEvent
from inference.values.plan import GenerationPlan

logger = logging.getLogger(__name__)

LEASE_S = 10.0
"""A worker without a heartbeat for so long has lost its jobs; heartbeats come four times as often."""
MAX_ATTEMPTS = 3
MAX_DELAY_S = 600.0
"""Longest wait before a retry."""
MAX_TENANTS = 32
"""Tenants that share the places of one claim; a later claim begins with the next ones."""
MAX_SUSPECTS = 1000
"""Jobs of which one look for those that have to run alone reads the tenant."""


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job that a worker holds.

    Attributes:
        key: Primary key of the row.
        fence: The fencing number, part of each write.
        attempt: 1 for the first. ``MAX_ATTEMPTS``: this one runs alone, and counts once it does (``job_mark_alone``).
        plan: The request, with its seed.
        model: The served name of the model when the job was submitted.
        created: Unix time of the submission.
        chunks: Events that earlier attempts stored, in order.
        keep_events: The last events have to be stored too.
    """

    key: int
    job_id: uuid.UUID
    fence: int
    attempt: int
    plan: GenerationPlan
    checkpoint_id: str
    model: str
    tenant: str
    created: int
    chunks: tuple[tuple[GenerationEvent, ...], ...] = ()
    keep_events: bool = False

    @property
    def reach(self) -> int:
        """Most tokens that an earlier attempt has stored."""
        made: Counter[int] = Counter()
        for event in (event for chunk in self.chunks for event in chunk):
            made[event["attempt"]] += len(event.get("token_ids", ()))
        return max(made.values(), default=0)

    @property
    def request_id(self) -> str:
        """The engine's id of this attempt; an older attempt that still runs has another id."""
        return f"job-{self.job_id.hex}-{self.fence}"


def seconds_from_now(seconds: float) -> Any:
    """Return a time on the database's clock, by which all leases are counted."""
    return Now() + timedelta(seconds=seconds)


def is_due() -> Q:
    """Return the condition that a row may be claimed now.

    A time that is further away than any delay was set before the database's clock was set back.
    """
    never, passed = Q(not_before__isnull=True), Q(not_before__lte=Now())
    return never | passed | Q(not_before__gt=seconds_from_now(MAX_DELAY_S))


def leases_shorten(running: QuerySet[Any], lease_s: float = LEASE_S) -> None:
    """Shorten leases that are longer than ``lease_s``: they were made before the database's clock was set back.

    A living worker renews its leases in time; those of a dead one lapse as usual.
    """
    update_in_order(long_leases(running, lease_s), lease_until=seconds_from_now(lease_s))


def long_leases(running: QuerySet[Any], lease_s: float = LEASE_S) -> QuerySet[Any]:
    """Return the rows whose leases ``leases_shorten`` shortens."""
    return running.filter(lease_until__gt=seconds_from_now(lease_s + 1))


def jobs_claim(
    *,
    owner: str,
    limit: int,
    checkpoint_ids: Iterable[str] | None = None,
    min_age_s: float = 0.0,
    suspects: bool = False,
    capacity: Callable[[str], int | None] = lambda tenant: None,
) -> list[ClaimedJob]:
    """Claim up to ``limit`` queued jobs: best priority first, then tenants in turns, then in order of arrival.

    Args:
        owner: The worker's id.
        limit: Free places in the worker's window.
        checkpoint_ids: Only jobs of these models; None: of any.
        min_age_s: Only jobs that have waited so long, which leaves workers that hold the model time to claim them.
        suspects: Only jobs on their last attempt, which have to run alone; otherwise only other jobs.
        capacity: Returns how many jobs of a tenant may start now; None: no limit. Called outside of the transaction.
    """
    if limit <= 0:
        return []
    pages = _tenant_pages if checkpoint_ids is None else _resident_pages
    tenants = suspect_tenants() if suspects else pages.next_page()
    capacities = {tenant: limit if (found := capacity(tenant)) is None else found for tenant in tenants}
    with transaction.atomic():
        candidates = _due().filter(_SUSPECT if suspects else ~_SUSPECT)
        if checkpoint_ids is not None:
            candidates = candidates.filter(checkpoint_id__in=list(checkpoint_ids))
        if min_age_s > 0:
            # A web process whose clock is ahead of the database's has stored a time that is still to come.
            is_old, is_ahead = Q(created_at__lte=seconds_from_now(-min_age_s)), Q(created_at__gt=Now())
            candidates = candidates.filter(is_old | is_ahead)
        keys = _shared_keys(candidates, limit, capacities)
        if not keys:
            return []
        # The state is checked again: without row locks (SQLite) this makes the claim exclusive.
        GenerationJob.objects.filter(pk__in=keys, state=JobState.QUEUED).update(
            state=JobState.RUNNING,
            owner=owner,
            fence=F("fence") + 1,
            attempts=MAX_ATTEMPTS - 1 if suspects else F("attempts") + 1,
            lease_until=seconds_from_now(LEASE_S),
            not_before=None,
            started_at=Now(),
        )
        rows = GenerationJob.objects.filter(pk__in=keys, state=JobState.RUNNING, owner=owner).order_by("priority", "id")
        jobs = _claimed(readable_rows(rows.defer("result", "error").prefetch_related("chunks")), is_last=suspects)
        if len(jobs) < len(keys):
            _give_up_damaged(rows.exclude(pk__in=[job.key for job in jobs]))
        return jobs


def _give_up_damaged(claimed: QuerySet[GenerationJob]) -> None:
    """Use up the attempts of claimed rows that can't be read, so that the next sweep fails them."""
    claimed.update(attempts=MAX_ATTEMPTS, lease_until=seconds_from_now(-1))


def _shared_keys(candidates: QuerySet[GenerationJob], limit: int, capacities: Mapping[str, int]) -> list[int]:
    """Choose and lock up to ``limit`` jobs, divided between tenants; of each tenant at most its capacity."""
    if connection.features.has_select_for_update_skip_locked:
        candidates = candidates.select_for_update(skip_locked=True)
    candidates = candidates.order_by("priority", "id")
    waiting = {
        tenant: list(candidates.filter(tenant=tenant).values_list("priority", "pk")[: min(limit, capacity)])
        for tenant, capacity in capacities.items()
        if capacity > 0
    }
    if not any(waiting.values()):
        return []
    # Counted here: a database that groups by tenant reads all jobs in the order of an index of tenants.
    running = GenerationJob.objects.filter(state=JobState.RUNNING, lease_until__isnull=False).order_by()
    return share_places(waiting, Counter(running.values_list("tenant", flat=True)), limit)


class TenantPages:
    """Tenants with queued jobs, a page after the other; one index entry is read for each tenant.

    ``DISTINCT`` would read the entries of all queued jobs.
    """

    def __init__(self) -> None:
        self._after = ""

    def next_page(self) -> list[str]:
        """Return the next up to ``MAX_TENANTS`` tenants; behind the last one comes the first one again."""
        queued = GenerationJob.objects.filter(state=JobState.QUEUED).order_by("tenant").values_list("tenant", flat=True)
        after = self._after
        tenants: list[str] = []
        while len(tenants) < MAX_TENANTS:
            tenant = queued.filter(tenant__gt=after).first()
            if tenant is None:
                break
            tenants.append(tenant)
            after = tenant
        is_last = len(tenants) < MAX_TENANTS
        is_first, self._after = not self._after, "" if is_last else after
        return tenants if tenants or is_first else self.next_page()


# A turn claims jobs of loaded models, then of any. With one cursor for both, each would see every second page only.
_resident_pages = TenantPages()
_tenant_pages = TenantPages()


# A job that ran at two crashes, and did not get further in the second attempt, may be their cause. Its last attempt is
# alone in the engine, so that a third crash hits no other job.
_SUSPECT = Q(attempts__gte=MAX_ATTEMPTS - 1)


def _due() -> QuerySet[GenerationJob]:
    """Return the jobs that may be claimed now."""
    return GenerationJob.objects.filter(is_due(), state=JobState.QUEUED, cancel_requested=False)


def suspect_tenants() -> set[str]:
    """Return the tenants of the jobs that wait and have to run alone; of up to ``MAX_SUSPECTS`` jobs."""
    # Not DISTINCT, for which SQLite reads the entries of all queued jobs in the order of the tenants.
    return set(_due().filter(_SUSPECT).order_by().values_list("tenant", flat=True)[:MAX_SUSPECTS])


def _claimed(rows: Iterable[GenerationJob], *, is_last: bool) -> list[ClaimedJob]:
    """Return the claimed jobs, without those of which the stored plan or an event can't be used."""
    jobs: list[ClaimedJob] = []
    for row in rows:
        try:
            jobs.append(_claimed_job(row, is_last=is_last))
        except Exception as error:  # any error: the claim of the other jobs must not fail
            logger.warning("job %s is given up, its row is damaged: %s: %s", row.job_id, type(error).__name__, error)
    return jobs


def _claimed_job(row: GenerationJob, *, is_last: bool) -> ClaimedJob:
    chunks = sorted(row.chunks.all(), key=lambda chunk: chunk.number)
    return ClaimedJob(
        key=row.pk,
        job_id=row.job_id,
        fence=row.fence,
        attempt=MAX_ATTEMPTS if is_last else row.attempts,
        plan=GenerationPlan.from_dict(orjson.loads(row.plan)),
        checkpoint_id=str(row.checkpoint_id),
        model=row.model,
        tenant=row.tenant,
        created=int(row.created_at.timestamp()),
        chunks=tuple(tuple(orjson.loads(chunk.events)) for chunk in chunks),
        keep_events=row.keep_events,
    )


def _held(key: int, fence: int) -> QuerySet[GenerationJob]:
    return GenerationJob.objects.filter(pk=key, fence=fence, state=JobState.RUNNING)


def job_mark_alone(*, key: int, fence: int) -> bool:
    """Count the last attempt of a job: it runs alone from now on, and a crash is its own.

    Call it before the start: a crash of the worker while the job waits for its turn doesn't count.

    Returns:
        False: another worker holds the job, it must not start.
    """
    with transaction.atomic():
        return bool(_held(key, fence).update(attempts=MAX_ATTEMPTS))


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Reply to a heartbeat: the jobs that the worker still holds, and those of them that have to be cancelled."""

    held: frozenset[tuple[int, int]]
    cancelled: frozenset[tuple[int, int]]


def jobs_heartbeat(*, owner: str, held: Iterable[tuple[int, int]]) -> Heartbeat:
    """Renew the leases of a worker's jobs, in one transaction.

    Args:
        owner: The worker's id.
        held: (key, fence) of each job that the worker assumes to hold.
    """
    assumed = set(held)
    if not assumed:
        return Heartbeat(frozenset(), frozenset())
    keys = [key for key, _ in assumed]
    still: set[tuple[int, int]] = set()
    cancelled: set[tuple[int, int]] = set()
    with transaction.atomic():
        mine = GenerationJob.objects.filter(pk__in=keys, owner=owner, state=JobState.RUNNING)
        update_in_order(mine, lease_until=seconds_from_now(LEASE_S))
        for key, fence, cancel in mine.values_list("pk", "fence", "cancel_requested"):
            if (key, fence) in assumed:
                still.add((key, fence))
                if cancel:
                    cancelled.add((key, fence))
    return Heartbeat(frozenset(still), frozenset(cancelled))


@dataclass(frozen=True, slots=True)
class NewChunk:
    """The next events of a running job.

    Attributes:
        number: One more than the last stored chunk's, from 0, over all attempts.
        events: The engine's events since the last chunk.
        prompt_tokens, completion_tokens: Totals so far, all attempts.
        clears_crashes: Earlier crashes count no longer (``inference.transport.crash_record``).
    """

    key: int
    fence: int
    number: int
    events: Sequence[GenerationEvent]
    prompt_tokens: int = 0
    completion_tokens: int = 0
    clears_crashes: bool = False


def jobs_append(*, chunks: Sequence[NewChunk]) -> set[tuple[int, int]]:
    """Store events of running jobs, in one transaction, and renew their leases.

    Returns:
        (key, fence) of the jobs that have ended or that another worker holds; nothing was stored for them.
    """
    lost: set[tuple[int, int]] = set()
    rows: list[JobChunk] = []
    with transaction.atomic():
        # In the order of the keys, so that two workers that write the same rows can't deadlock.
        for chunk in sorted(chunks, key=lambda item: item.key):
            changed = (
                _held(chunk.key, chunk.fence)
                .filter(num_chunks=chunk.number)
                .update(
                    num_chunks=chunk.number + 1,
                    completion_tokens=chunk.completion_tokens,
                    prompt_tokens=chunk.prompt_tokens,
                    lease_until=seconds_from_now(LEASE_S),
                    **({"attempts": 1} if chunk.clears_crashes else {}),
                )
            )
            if changed:
                rows.append(
                    JobChunk(job_id=chunk.key, number=chunk.number, events=orjson.dumps(list(chunk.events)).decode())
                )
            else:
                lost.add((chunk.key, chunk.fence))
        JobChunk.objects.bulk_create(rows)
        fault_point("job.flush")
    return lost


def job_finish(
    *,
    key: int,
    fence: int,
    state: JobState,
    result: Mapping[str, Any] | None = None,
    error: BlazrError | None = None,
    completion_tokens: int = 0,
    prompt_tokens: int = 0,
    last: NewChunk | None = None,
) -> bool:
    """End a running job, once.

    Args:
        result: The response body.
        error: The reason of a failure.
        completion_tokens, prompt_tokens: Totals of all attempts.
        last: The last events of a job whose events are kept.

    Returns:
        False: the job has ended, another worker holds it, or ``last`` isn't the chunk behind the stored ones; nothing
            was written.
    """
    if state not in TERMINAL_JOB_STATES:
        raise ValueError(f"{state} is not a final state")
    body = b"" if result is None else orjson.dumps(result)
    held = _held(key, fence)
    if last is not None:
        # A connection lost at the commit of a chunk leaves a stored chunk that the worker doesn't know.
        held = held.filter(num_chunks=last.number)
    with transaction.atomic():
        changed = held.update(
            state=state,
            lease_until=None,
            owner="",
            result=body.decode(),
            size_bytes=F("size_bytes") + len(body),
            error="" if error is None else orjson.dumps(error.to_dict()).decode(),
            completion_tokens=completion_tokens,
            prompt_tokens=prompt_tokens,
            finished_at=Now(),
        )
        if not changed:
            return False
        if last is not None and last.events:
            JobChunk.objects.create(job_id=key, number=last.number, events=orjson.dumps(list(last.events)).decode())
        chunks_end([key])
    return True


def job_release(
    *,
    key: int,
    fence: int,
    error: BlazrError | None = None,
    counts: bool = False,
    is_counted: bool = True,
    delay_s: float = 0.0,
) -> bool:
    """Hand a job back: the worker drains, or the model can't take it now.

    Args:
        error: The reason, for people; kept until the next attempt ends.
        counts: The attempt counts towards ``MAX_ATTEMPTS``; the last one makes the job fail with ``error``.
        is_counted: Whether the row counts the attempt already: all but a last one that hasn't run.
        delay_s: The job can't be claimed for so long, at most ``MAX_DELAY_S``.

    Returns:
        False: another worker holds the job.
    """
    reason = "" if error is None else orjson.dumps(error.to_dict()).decode()
    with transaction.atomic():
        if counts:
            failed = _held(key, fence).filter(attempts__gte=MAX_ATTEMPTS if is_counted else 0)
            if failed.update(state=JobState.FAILED, lease_until=None, owner="", error=reason, finished_at=Now()):
                chunks_end([key])
                outcome = GenerationFailed.code if error is None else error.code
                jobs_charge(GenerationJob.objects.filter(pk=key), outcome=outcome)
                return True
        return bool(
            _held(key, fence).update(
                state=JobState.QUEUED,
                lease_until=None,
                owner="",
                error=reason,
                attempts=F("attempts") - int(is_counted and not counts),
                not_before=seconds_from_now(min(delay_s, MAX_DELAY_S)) if delay_s > 0 else None,
            )
        )
