"""Work on whole batches: validate the input, end what is over, write the files.

Such work is claimed like a line: a lease and a fence, so that a process that dies is followed by another one, and one
that only slept can't write any more. Safe to call anywhere, at any time, several at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson
from django.conf import settings
from django.db import connection, transaction
from django.db.models import Count, F, Q, QuerySet, Sum
from django.db.models.functions import Now
from django.utils import timezone

from inference.auth import principal_of_tenant
from inference.batches import webhooks
from inference.batches.lines import NO_CHECKPOINT, NOT_ALLOWED, fail_queued, fail_unservable
from inference.batches.models import (
    TERMINAL_BATCH_STATES,
    Batch,
    BatchLine,
    BatchResult,
    BatchState,
    LineState,
)
from inference.batches.requests import InputLine, LineError, read_lines
from inference.errors import NotAuthenticated, UnknownModel
from inference.file_store import FileWriter, open_file, store_lock
from inference.files import file_store_row
from inference.jobs import hints
from inference.selectors import served_model_read
from inference.usage import Usage, usage_store

LEASE_S = 30.0
MAX_ERRORS = 100
INSERT_BATCH = 500
READ_BATCH = 500
LINES_KEPT = timedelta(days=1)
"""After the end of a batch its lines stay so long, to look at; the files hold all of them."""


class FenceLost(Exception):
    """The batch is somebody else's now, or was cancelled."""


class _Claim:
    """The right to work on a batch."""

    def __init__(self, row: Batch) -> None:
        self.row = row
        self._renewed_at = time.monotonic()

    def write(self, **values: Any) -> None:
        """Change the batch.

        Raises:
            FenceLost: It isn't ours any more.
        """
        held = Batch.objects.filter(pk=self.row.pk, fence=self.row.fence, state=self.row.state)
        if not held.update(**values):
            raise FenceLost
        self._renewed_at = time.monotonic()

    def renew(self) -> None:
        """Keep the lease; cheap when it is young."""
        if time.monotonic() - self._renewed_at > LEASE_S / 4:
            self.write(lease_until=Now() + timedelta(seconds=LEASE_S))


def _claim(rows: QuerySet[Batch], owner: str, **values: Any) -> _Claim | None:
    """Take one batch of ``rows`` that nobody works on."""
    free = rows.filter(Q(lease_until=None) | Q(lease_until__lt=Now())).order_by("priority", "id")
    with transaction.atomic():
        if connection.features.has_select_for_update_skip_locked:
            free = free.select_for_update(skip_locked=True)
        row = free.first()
        if row is None:
            return None
        Batch.objects.filter(pk=row.pk).update(
            fence=F("fence") + 1, owner=owner, lease_until=Now() + timedelta(seconds=LEASE_S), **values
        )
        row.refresh_from_db()
    return _Claim(row)


def batches_turn(*, owner: str, stopping: Callable[[], bool] = lambda: False) -> int:
    """Do all that is to be done for batches now; returns how many were touched.

    Args:
        owner: The worker's id.
        stopping: True: leave the rest to others.
    """
    done = _expire()
    for rows, work, values in (
        (_validating(), _validate, {}),
        (_without_open_lines(), _finalise, {"state": BatchState.FINALIZING}),
        (_cancelled(), _finalise, {}),
    ):
        while not stopping():
            claim = _claim(rows, owner, **values)
            if claim is None:
                break
            done += 1
            try:
                work(claim, stopping)
            except FenceLost:
                continue
    return done


def _validating() -> QuerySet[Batch]:
    return Batch.objects.filter(state=BatchState.VALIDATING)


def _without_open_lines() -> QuerySet[Batch]:
    over = Q(num_total=F("num_completed") + F("num_failed"))
    return Batch.objects.filter(over, state__in=(BatchState.IN_PROGRESS, BatchState.FINALIZING))


def _cancelled() -> QuerySet[Batch]:
    """Without those of which a line still runs: its worker stops it."""
    running = BatchLine.objects.filter(state=LineState.RUNNING).values("batch_id")
    return Batch.objects.filter(state=BatchState.CANCELLING).exclude(pk__in=running)


# --- validation --------------------------------------------------------------------------------


def _validate(claim: _Claim, stopping: Callable[[], bool]) -> None:
    """Check the whole file, then store its lines; a second try goes on behind the lines that are there."""
    batch = claim.row
    try:
        allowed = principal_of_tenant(batch.tenant).models
        file = open_file(batch.input_sha256)
    except NotAuthenticated as error:
        _fail(claim, [LineError(error.code, error.message, None)])
        return
    except FileNotFoundError:
        _fail(claim, [LineError("file_deleted", f"The input file {batch.input_file_id} was deleted.", None)])
        return
    with file:
        errors = list(_errors(claim, read_lines(file, batch.endpoint), stopping))
        if errors:
            _fail(claim, errors)
            return
        file.seek(0)
        lines = (item for item in read_lines(file, batch.endpoint) if isinstance(item, InputLine))
        _store_lines(claim, lines, stopping, allowed=allowed)
    checkpoints = BatchLine.objects.filter(batch=batch).order_by().values_list("checkpoint_id", flat=True).distinct()
    names = _checkpoint_names([key for key in checkpoints if key not in (NO_CHECKPOINT, NOT_ALLOWED)])
    claim.write(
        state=BatchState.IN_PROGRESS,
        in_progress_at=Now(),
        num_total=BatchLine.objects.filter(batch=batch).count(),
        checkpoints=orjson.dumps(names).decode(),
        owner="",
        lease_until=None,
    )
    fail_unservable(batch)
    hints.give_hint()


def _errors(claim: _Claim, lines: Iterator[InputLine | LineError], stopping: Callable[[], bool]) -> Iterator[LineError]:
    """Up to ``MAX_ERRORS`` reasons why the file can't run."""
    first_seen: dict[str, int] = {}
    found = num_inputs = 0
    for count, item in enumerate(lines, start=1):
        error: LineError | None = None
        if count > settings.BLAZR_BATCH_MAX_LINES:
            limit = settings.BLAZR_BATCH_MAX_LINES
            yield LineError("too_many_requests", f"The file has more than {limit:,} requests; split it.", None)
            return
        num_inputs += item.num_inputs if isinstance(item, InputLine) else 0
        if num_inputs > settings.BLAZR_BATCH_MAX_INPUTS:
            limit = settings.BLAZR_BATCH_MAX_INPUTS
            yield LineError("too_many_inputs", f"The file has more than {limit:,} inputs to embed; split it.", None)
            return
        if isinstance(item, LineError):
            error = item
        elif item.custom_id in first_seen:
            before = first_seen[item.custom_id]
            message = f"custom_id {item.custom_id[:60]!r} was used in line {before} already."
            error = LineError("duplicate_custom_id", message, item.number, "custom_id")
        else:
            first_seen[item.custom_id] = item.number
        if error is not None:
            yield error
            found += 1
            if found == MAX_ERRORS:
                return
        if count % INSERT_BATCH == 0:
            _pause(claim, stopping)
    if not found and not first_seen:
        yield LineError("empty_file", "The file has no requests.", None)


def _store_lines(
    claim: _Claim, lines: Iterator[InputLine], stopping: Callable[[], bool], *, allowed: frozenset[str] | None
) -> None:
    batch = claim.row
    last = BatchLine.objects.filter(batch=batch).order_by("-id").values_list("number", flat=True).first() or 0
    checkpoint_ids: dict[str, UUID] = {}
    rows: list[BatchLine] = []

    def store() -> None:
        with transaction.atomic():
            claim.write(lease_until=Now() + timedelta(seconds=LEASE_S))
            BatchLine.objects.bulk_create(rows)
        rows.clear()

    for line in lines:
        if line.number <= last:
            continue
        if line.model not in checkpoint_ids:
            checkpoint_ids[line.model] = _checkpoint_id(line.model, allowed)
        rows.append(
            BatchLine(
                batch=batch,
                number=line.number,
                custom_id=line.custom_id,
                checkpoint_id=checkpoint_ids[line.model],
                body=orjson.dumps(line.body).decode(),
            )
        )
        if len(rows) == INSERT_BATCH:
            store()
            _pause(claim, stopping)
    if rows:
        store()


def _pause(claim: _Claim, stopping: Callable[[], bool]) -> None:
    """Between two pieces of work: the engine's thread gets the interpreter, a stop is noticed."""
    if stopping():
        # The next worker goes on at once.
        claim.write(owner="", lease_until=None)
        raise FenceLost
    claim.renew()
    time.sleep(0.001)


def _checkpoint_id(model: str, allowed: frozenset[str] | None) -> UUID:
    if allowed is not None and model not in allowed:
        return NOT_ALLOWED
    try:
        return UUID(served_model_read(model).checkpoint_id) if model and "\0" not in model else NO_CHECKPOINT
    except UnknownModel:
        return NO_CHECKPOINT


def _checkpoint_names(keys: Sequence[UUID]) -> dict[str, str]:
    from models_registry.models import Checkpoint

    return {str(row.pk): row.served_model_name for row in Checkpoint.objects.filter(pk__in=keys)}


def _fail(claim: _Claim, errors: Sequence[LineError]) -> None:
    _end(claim, BatchState.FAILED, errors=orjson.dumps([error.to_dict() for error in errors]).decode())


# --- the end -----------------------------------------------------------------------------------


def _expire() -> int:
    """Batches whose window is over: what waits is ended, what runs is stopped by its worker's next heartbeat."""
    late = Q(expires_at__lte=Now(), ending="")
    done = Batch.objects.filter(late, state=BatchState.IN_PROGRESS).update(ending=BatchState.EXPIRED)
    done += Batch.objects.filter(late, state=BatchState.VALIDATING).update(
        state=BatchState.FINALIZING, ending=BatchState.EXPIRED, fence=F("fence") + 1, owner="", lease_until=None
    )
    for batch in Batch.objects.filter(state=BatchState.IN_PROGRESS).exclude(ending=""):
        fail_queued(batch)
    return done


def _finalise(claim: _Claim, stopping: Callable[[], bool]) -> None:
    """Write the files from the rows, then end the batch in one transaction."""
    batch = claim.row
    if batch.in_progress_at is None:
        # It ended while it was being validated: none of its lines has ever been due.
        BatchLine.objects.filter(batch=batch).delete()
    elif batch.state == BatchState.CANCELLING:
        fail_queued(batch)
        batch.refresh_from_db(fields=["num_completed", "num_failed"])
        if batch.num_open:
            claim.write(owner="", lease_until=None)
            return
    if batch.state == BatchState.FINALIZING and batch.finalizing_at is None:
        claim.write(finalizing_at=Now())
    files = {"output": _render(claim, stopping, is_error=False), "error": _render(claim, stopping, is_error=True)}
    try:
        # The lock of the store comes before the database's, as everywhere.
        with store_lock(), transaction.atomic():
            ids = {
                f"{kind}_file_id": file_store_row(
                    writer=writer,
                    filename=f"{batch.batch_id}_{kind}.jsonl",
                    purpose="batch_output",
                    tenant=batch.tenant,
                    expires_s=batch.output_expires_s,
                ).file_id
                for kind, writer in files.items()
                if writer is not None
            }
            _end(claim, BatchState(batch.ending or BatchState.COMPLETED), **ids)
    finally:
        for writer in files.values():
            if writer is not None:
                writer.discard()


def _render(claim: _Claim, stopping: Callable[[], bool], *, is_error: bool) -> FileWriter | None:
    """The results of one kind, in the order of the input; None: there are none."""
    rows = BatchResult.objects.filter(batch=claim.row, is_error=is_error).order_by("line_id")
    writer: FileWriter | None = None
    last = 0
    try:
        while found := list(rows.filter(line_id__gt=last).values_list("line_id", "payload")[:READ_BATCH]):
            last = found[-1][0]
            writer = writer or FileWriter()
            writer.write("".join(f"{payload}\n" for _, payload in found).encode())
            _pause(claim, stopping)
    except BaseException:
        if writer is not None:
            writer.discard()
        raise
    return writer


def _end(claim: _Claim, state: BatchState, **values: Any) -> None:
    batch = claim.row
    with transaction.atomic():
        claim.write(state=state, ended_at=Now(), owner="", lease_until=None, **values)
        batch.refresh_from_db()
        _charge(batch)
        webhooks.owe(batch)


def _charge(batch: Batch) -> None:
    """One usage record per model; its name is the batch's, so that nothing is charged twice."""
    names = orjson.loads(batch.checkpoints) if batch.checkpoints else {}
    sums = (
        BatchResult.objects.filter(batch=batch)
        .order_by()
        .values("line__checkpoint_id")
        .annotate(
            prompt=Sum("prompt_tokens"),
            completion=Sum("completion_tokens"),
            cached=Sum("cached_tokens"),
            queue_s=Sum("queue_s"),
            engine_s=Sum("engine_s"),
            num=Count("pk"),
        )
    )
    now = timezone.now()
    started = batch.in_progress_at or now
    usage_store(
        records=[
            Usage(
                request_id=f"{batch.batch_id}-{item['line__checkpoint_id'].hex[:12]}",
                tenant=batch.tenant,
                endpoint="batch",
                model=names.get(str(item["line__checkpoint_id"]), "")[:128],
                outcome="completed",
                prompt_tokens=item["prompt"],
                completion_tokens=item["completion"],
                cached_tokens=item["cached"],
                ttft_s=None,
                duration_s=max(0.0, (now - started).total_seconds()),
                created_at=now,
                queue_s=item["queue_s"],
                engine_s=item["engine_s"],
                requests=item["num"],
            )
            for item in sums
            if item["prompt"] or item["completion"]
        ]
    )


def batches_sweep() -> int:
    """Remove the lines of batches that ended long ago; returns how many."""
    ended = Batch.objects.filter(state__in=TERMINAL_BATCH_STATES, ended_at__lt=timezone.now() - LINES_KEPT)
    keys = list(BatchLine.objects.filter(batch__in=ended).values_list("pk", flat=True)[:5000])
    removed, _ = BatchLine.objects.filter(pk__in=keys).delete()
    return removed
