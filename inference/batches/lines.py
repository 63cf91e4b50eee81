"""Claim, keep alive, finish, release and sweep lines of batches, for workers.

A claim is a lease plus a fencing number, as for jobs (``inference.jobs``), but one transaction claims, renews or
finishes many lines. The transaction that ends a line also inserts the line's result as a row. The row's primary key and
the fence each prevent a second result.

All functions are synchronous and use the database.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now

from inference.batches.line_requests import line_id, refusal_line
from inference.batches.results import ID_BATCH, result_without_response, results_write, rows_locked
from inference.errors import GenerationFailed
from inference.host.fault_points import fault_point
from inference.jobs.claims import LEASE_S, MAX_ATTEMPTS, MAX_DELAY_S, is_due, leases_shorten, seconds_from_now
from inference.jobs.row_order import update_in_order
from inference.jobs.row_watch import RowWatch
from inference.models import Batch, BatchLine, BatchResult, BatchState, LineState

SUSPECTS_TOGETHER = 8
"""Lines that ran when a worker died run again in groups of this size, and the last time alone."""


@dataclass(frozen=True, slots=True)
class ClaimedLine:
    """A line that a worker holds.

    Attributes:
        key: Primary key of the row.
        fence: The fencing number, part of each write.
        attempt: 1 for the first. ``MAX_ATTEMPTS``: this one runs alone, and counts once it does (``line_mark_alone``).
        number: Line number in the input file.
        body: The request as JSON.
    """

    key: int
    fence: int
    attempt: int
    number: int
    custom_id: str
    checkpoint_id: str
    body: str
    batch: Batch

    @property
    def claim(self) -> tuple[int, int]:
        """(key, fence)."""
        return self.key, self.fence

    @property
    def line_id(self) -> str:
        """The line's id in the output file, the same for each attempt."""
        return line_id(self.batch.batch_id, self.number)

    @property
    def request_id(self) -> str:
        """The engine's id of this attempt; an older attempt that still runs has another id."""
        return f"{self.line_id}-{self.fence}"


@dataclass(frozen=True, slots=True)
class FinishedLine:
    """A result that is to be written.

    Attributes:
        payload: The line of the output or error file.
        queue_s, engine_s: Seconds that the prompts waited for tokenisation, and seconds in the engine.
    """

    line: ClaimedLine
    payload: str
    is_error: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    queue_s: float = 0.0
    engine_s: float = 0.0


def lines_claim(
    *,
    batch: Batch,
    owner: str,
    limit: int,
    checkpoint_ids: Iterable[str] | None = None,
    min_attempts: int = 0,
    max_attempts: int = 0,
) -> list[ClaimedLine]:
    """Claim up to ``limit`` queued lines of a batch, in the order of the file.

    Args:
        checkpoint_ids: Only lines of these models; None: of any.
        min_attempts, max_attempts: Only lines with so many earlier claims.
    """
    if limit <= 0:
        return []
    is_last = min_attempts >= MAX_ATTEMPTS - 1
    with transaction.atomic():
        rows = BatchLine.objects.filter(
            is_due(), batch=batch, state=LineState.QUEUED, attempts__gte=min_attempts, attempts__lte=max_attempts
        )
        if checkpoint_ids is not None:
            rows = rows.filter(checkpoint_id__in=list(checkpoint_ids))
        if connection.features.has_select_for_update_skip_locked:
            rows = rows.select_for_update(skip_locked=True)
        keys = list(rows.order_by("id").values_list("pk", flat=True)[:limit])
        # A batch that another transaction is ending or has paused takes no new claims. The lock makes that exact: a
        # pause waits for this claim, or is seen here. Lines first, then their batch (``inference.batches.results``).
        claimable = Batch.objects.filter(pk=batch.pk, state=BatchState.IN_PROGRESS, ending="", paused_at=None)
        if not keys or not claimable.select_for_update(no_key=True).values_list("pk"):
            return []
        BatchLine.objects.filter(pk__in=keys, state=LineState.QUEUED).update(
            state=LineState.RUNNING,
            owner=owner,
            fence=F("fence") + 1,
            attempts=MAX_ATTEMPTS - 1 if is_last else F("attempts") + 1,
            lease_until=seconds_from_now(LEASE_S),
            not_before=None,
        )
        found = BatchLine.objects.filter(pk__in=keys, state=LineState.RUNNING, owner=owner).order_by("id")
        return [
            ClaimedLine(
                key=row.pk,
                fence=row.fence,
                attempt=MAX_ATTEMPTS if is_last else row.attempts,
                number=row.number,
                custom_id=row.custom_id,
                checkpoint_id=str(row.checkpoint_id),
                body=row.body,
                batch=batch,
            )
            for row in found
        ]


def line_mark_alone(*, key: int, fence: int) -> bool:
    """Count the last attempt of a line: as ``inference.jobs.claims.job_mark_alone``."""
    held = BatchLine.objects.filter(pk=key, fence=fence, state=LineState.RUNNING)
    with transaction.atomic():
        return bool(held.update(attempts=MAX_ATTEMPTS))


def has_suspects(batch: Batch) -> bool:
    """Whether queued lines exist that were claimed before."""
    return BatchLine.objects.filter(is_due(), batch=batch, state=LineState.QUEUED, attempts__gt=0).exists()


@dataclass(frozen=True, slots=True)
class LineHeartbeat:
    """Reply to a heartbeat: the lines that the worker still holds, and the ending of lines that have to stop."""

    held: frozenset[tuple[int, int]]
    endings: dict[tuple[int, int], str]


def lines_heartbeat(*, owner: str) -> LineHeartbeat:
    """Renew the leases of all lines of a worker, in one transaction."""
    with transaction.atomic():
        mine = BatchLine.objects.filter(owner=owner, state=LineState.RUNNING)
        update_in_order(mine, lease_until=seconds_from_now(LEASE_S))
        found = list(mine.values_list("pk", "fence", "batch__ending"))
    return LineHeartbeat(
        frozenset((key, fence) for key, fence, _ in found),
        {(key, fence): ending for key, fence, ending in found if ending},
    )


def lines_finish(*, finished: Sequence[FinishedLine]) -> set[tuple[int, int]]:
    """End running lines, each once, in one transaction.

    Returns:
        (key, fence) of the lines that have ended or that another worker holds; nothing was written for them.
    """
    by_claim = {item.line.claim: item for item in finished}
    with transaction.atomic():
        held = _lock_held(set(by_claim))
        mine = [by_claim[claim] for claim in sorted(held)]
        results_write(
            [
                BatchResult(
                    line_id=item.line.key,
                    batch_id=item.line.batch.pk,
                    is_error=item.is_error,
                    payload=item.payload,
                    prompt_tokens=item.prompt_tokens,
                    completion_tokens=item.completion_tokens,
                    cached_tokens=item.cached_tokens,
                    reasoning_tokens=item.reasoning_tokens,
                    queue_s=item.queue_s,
                    engine_s=item.engine_s,
                )
                for item in mine
            ]
        )
        fault_point("lines.finish")
    return by_claim.keys() - held


def lines_release(
    *,
    claims: Iterable[tuple[int, int]],
    last: Collection[tuple[int, int]] = (),
    counts: bool = False,
    delay_s: float = 0.0,
) -> None:
    """Return lines to the queue: the worker drains, or the model can't take them now.

    Args:
        claims: (key, fence); lapsed claims are skipped.
        last: Those of the claims that are last attempts; a last attempt that has an end isn't released.
        counts: The attempt counts towards ``MAX_ATTEMPTS``.
        delay_s: The lines can't be claimed for so many seconds, at most ``MAX_DELAY_S``.
    """
    with transaction.atomic():
        held = _lock_held(set(claims))
        for released, attempts in (
            (held.difference(last), F("attempts") - int(not counts)),
            (held.intersection(last), MAX_ATTEMPTS - 1),
        ):
            BatchLine.objects.filter(pk__in=[key for key, _ in released]).update(
                state=LineState.QUEUED,
                lease_until=None,
                owner="",
                attempts=attempts,
                not_before=seconds_from_now(min(delay_s, MAX_DELAY_S)) if delay_s > 0 else None,
            )


def lines_abandon(*, owner: str) -> int:
    """Expire the leases of ``owner``; called when a process of that name starts, as its predecessor is dead."""
    held = BatchLine.objects.filter(owner=owner, state=LineState.RUNNING)
    return update_in_order(held, lease_until=seconds_from_now(-1))


RUNNING_LINES = RowWatch(lambda: BatchLine.objects.filter(state=LineState.RUNNING))
"""Whether ``lines_sweep`` has any work."""


def lines_sweep() -> int:
    """Requeue the lines of dead workers, or fail them after ``MAX_ATTEMPTS``.

    Returns:
        The number of changed lines.
    """
    running = BatchLine.objects.filter(state=LineState.RUNNING)
    leases_shorten(running)
    lapsed = running.filter(lease_until__lt=Now())
    crash = GenerationFailed(
        f"The worker died {MAX_ATTEMPTS} times while it ran this request, the last time alone; it was given up."
    )
    with transaction.atomic():
        # Before ``results_write`` locks batches. A locked line is being ended by its worker or by another sweep.
        requeued = update_in_order(
            lapsed.filter(attempts__lt=MAX_ATTEMPTS),
            skip_locked=True,
            state=LineState.QUEUED,
            lease_until=None,
            owner="",
        )
        if requeued:
            fault_point("lines.requeue")
        poison = rows_locked(lapsed.filter(attempts__gte=MAX_ATTEMPTS)).select_related("batch")
        rows = [
            result_without_response(
                row,
                refusal_line(
                    line_id=line_id(row.batch.batch_id, row.number),
                    custom_id=row.custom_id,
                    request_id=f"{line_id(row.batch.batch_id, row.number)}-{row.fence}",
                    error=crash,
                ),
            )
            for row in poison[:ID_BATCH]
        ]
        results_write(rows)
    return len(rows) + requeued


def _lock_held(claims: set[tuple[int, int]]) -> set[tuple[int, int]]:
    keys = sorted(key for key, _ in claims)
    held: set[tuple[int, int]] = set()
    for start in range(0, len(keys), ID_BATCH):
        rows = BatchLine.objects.filter(pk__in=keys[start : start + ID_BATCH], state=LineState.RUNNING).order_by("id")
        if connection.features.has_select_for_update:
            rows = rows.select_for_update()
        held |= claims & set(rows.values_list("pk", "fence"))
    return held
