"""Create, look up, list, pause, resume and cancel batches for callers.

    validating ─► in_progress ─► finalizing ─► completed | expired
        │              │
        ├─► failed     └─► cancelling ─► cancelled
        └─► cancelled, expired

The rows are the truth; a message about a batch is only a hint. All functions are synchronous and use the database.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import orjson
from django.db import IntegrityError, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from inference.access.line_limits import lines_reserved
from inference.batches import webhooks
from inference.batches.line_requests import MAX_BLANK_LINES, MAX_LINE_BYTES, check_metadata
from inference.batches.validation import MAX_LINES
from inference.errors import Conflict, InvalidRequest, NotFound, QueueFull
from inference.files.services import expiry_seconds, file_create, file_get, files_remove
from inference.files.store import FileWriter, open_file
from inference.jobs import hints
from inference.jobs.row_watch import RowWatch
from inference.jobs.selectors import num_open
from inference.models import TERMINAL_BATCH_STATES, Batch, BatchState, StoredFile
from inference.models.readable_rows import readable_rows
from inference.values.principal import LOCAL

if TYPE_CHECKING:
    from inference.values.principal import Principal
    from inference.values.request_key import RequestKey

MAX_OPEN = 100
"""Most unfinished batches per caller: each has a file on disk and costs time in each turn of the runner."""

MIN_WINDOW_S, MAX_WINDOW_S = 60, 14 * 86_400
_WINDOW = re.compile(r"([1-9][0-9]{0,4})([mhd])")
_UNIT_S = {"m": 60, "h": 3600, "d": 86_400}


def batch_create(
    *,
    values: Mapping[str, Any],
    principal: Principal,
    schedule_id: str = "",
    request_key: RequestKey | None = None,
) -> Batch:
    """Store a batch; a worker validates its file and runs it. A request with a known key returns the first one's batch.

    Args:
        values: The validated members of a ``BatchRequestSerializer``.
        schedule_id: The schedule that creates the batch.

    Raises:
        IdempotencyKeyReused: The key came with another request before.
        InvalidRequest: A member is wrong.
        NotFound: The file doesn't exist.
        PermissionRefused: The caller may not set this priority.
        QueueFull: The caller has too many unfinished batches.
    """
    if request_key is not None and (earlier := _batch_of_key(request_key, principal.tenant)):
        return earlier
    row = _new_batch(values, principal, schedule_id, request_key)
    try:
        with (
            lines_reserved(principal=principal, lines=row.num_lines, count=lambda: num_open(principal.tenant)),
            transaction.atomic(),
        ):
            row.save()
            transaction.on_commit(hints.wake_workers, robust=True)
    except IntegrityError:
        # Another process stored a batch of the same key between our look and our insert.
        if request_key is None or not (earlier := _batch_of_key(request_key, principal.tenant)):
            raise
        return earlier
    return row


def batch_of_lines_create(
    *,
    lines: Iterable[Mapping[str, Any]],
    filename: str,
    expires_s: int | None,
    values: Mapping[str, Any],
    principal: Principal,
    request_key: RequestKey | None = None,
) -> Batch:
    """Store lines as a file of the caller, and a batch of it; the file goes again unless the batch is made of it.

    Args:
        lines: As in a batch's file.
        filename, expires_s: As for ``file_create``.
        values: As for ``batch_create``, without the file.

    Raises:
        BlazrError: As ``file_create`` and ``batch_create`` raise.
    """
    writer = FileWriter()
    try:
        for line in lines:
            writer.write(orjson.dumps(line) + b"\n")
        file = file_create(
            writer=writer, filename=filename, purpose="batch", tenant=principal.tenant, expires_s=expires_s
        )
    finally:
        writer.discard()
    new: Batch | None = None
    try:
        members = {**values, "input_file_id": file.file_id}
        new = batch_create(values=members, principal=principal, request_key=request_key)
        return new
    finally:
        if new is None or new.input_file_id != file.file_id:
            files_remove(StoredFile.objects.filter(pk=file.pk))


def _batch_of_key(request_key: RequestKey, tenant: str) -> Batch | None:
    row = Batch.objects.filter(tenant=tenant, request_key=request_key.name).first()
    if row is not None:
        request_key.check_digest(row.request_digest)
    return row


@dataclass(frozen=True, slots=True)
class CheckedMembers:
    """What the members of a batch mean.

    Attributes:
        file: The input.
        window_s: The completion window, in seconds.
        output_expires_s: When the files of answers expire, in seconds after they are made; None: the server's default.
        webhook_url, webhook_secret: Empty without a webhook; the secret is drawn where none was given.
    """

    file: StoredFile
    window_s: int
    output_expires_s: int | None
    webhook_url: str
    webhook_secret: str


def batch_members_check(values: Mapping[str, Any], principal: Principal) -> CheckedMembers:
    """Check the members of ``POST /v1/batches``, as far as that doesn't depend on the moment.

    Args:
        values: As for ``batch_create``.

    Raises:
        InvalidRequest: A member is wrong.
        NotFound: The file doesn't exist.
        PermissionRefused: The caller may not set this priority.
    """
    principal.check_options(priority=values.get("priority", 0), keep_alive_s=None)
    window_s = window_seconds(values["completion_window"])
    if values.get("metadata") is not None:
        check_metadata(values["metadata"])
    output_expires_s = expiry_seconds(values.get("output_expires_after"), param="output_expires_after")
    url, secret = webhooks.checked(values.get("webhook"))
    file = file_get(file_id=values["input_file_id"], principal=principal, param="input_file_id")
    if file.purpose != "batch":
        raise InvalidRequest(
            f"The file {file.file_id} has the purpose {file.purpose!r}; upload it with the purpose 'batch'.",
            param="input_file_id",
        )
    return CheckedMembers(file, window_s, output_expires_s, url, secret)


def _new_batch(
    values: Mapping[str, Any], principal: Principal, schedule_id: str, request_key: RequestKey | None
) -> Batch:
    """Return the row of a batch that has passed all checks, not stored yet."""
    checked = batch_members_check(values, principal)
    file, metadata = checked.file, values.get("metadata")
    open_batches = Batch.objects.filter(tenant=principal.tenant, ended_at=None).count()
    if open_batches >= MAX_OPEN:
        raise QueueFull(
            f"{open_batches} batches are unfinished, at most {MAX_OPEN} are allowed; "
            "wait for one to end or cancel one.",
            retry_after_s=60,
        )
    now = timezone.now()
    return Batch(
        batch_id=f"batch_{secrets.token_hex(16)}",
        tenant=principal.tenant,
        is_from_here=principal == LOCAL,
        endpoint=values["endpoint"],
        input_file_id=file.file_id,
        input_sha256=file.sha256,
        num_lines=_count_lines(file.sha256),
        completion_window=values["completion_window"],
        metadata="" if metadata is None else orjson.dumps(metadata).decode(),
        priority=values.get("priority", 0),
        output_expires_s=checked.output_expires_s,
        webhook_url=checked.webhook_url,
        webhook_secret=checked.webhook_secret,
        schedule_id=schedule_id,
        request_key=None if request_key is None else request_key.name,
        request_digest="" if request_key is None else request_key.digest,
        created_at=now,
        expires_at=now + timedelta(seconds=checked.window_s),
    )


def _count_lines(sha256: str) -> int:
    """Count the lines of a file, quickly; exact for each file that passes validation."""
    try:
        with open_file(sha256) as file:
            lines = itertools.islice(iter(lambda: file.readline(MAX_LINE_BYTES), b""), MAX_LINES + MAX_BLANK_LINES)
            return sum(1 for line in lines if line.strip())
    except FileNotFoundError:
        return 0


def window_seconds(text: str) -> int:
    """Return the seconds of a completion window such as ``24h``.

    Raises:
        InvalidRequest: The text is no number of minutes, hours or days, or is out of range.
    """
    match = _WINDOW.fullmatch(text)
    seconds = int(match[1]) * _UNIT_S[match[2]] if match else 0
    if not MIN_WINDOW_S <= seconds <= MAX_WINDOW_S:
        raise InvalidRequest(
            f"completion_window is {text[:40]!r}; it must be a time from 1m to 14d, such as 90m, 24h or 3d.",
            param="completion_window",
        )
    return seconds


def batches_of(principal: Principal) -> QuerySet[Batch]:
    """Return the batches that ``principal`` may see; each lookup for a caller starts here."""
    rows = Batch.objects.all()
    return rows if principal.sees_everything else rows.filter(tenant=principal.tenant)


def batch_get(*, batch_id: str, principal: Principal, param: str = "batch_id") -> Batch:
    """Return one batch.

    Raises:
        NotFound: There is no such batch, it belongs to another tenant, or its row is damaged.
    """
    rows = [] if "\0" in batch_id else readable_rows(batches_of(principal).filter(batch_id=batch_id[:40]), 1)
    if not rows:
        raise NotFound(f"There is no batch with the id {batch_id[:60]!r}.", param=param)
    return rows[0]


def batch_list(*, principal: Principal, after: str | None, limit: int, search: str = "") -> list[Batch]:
    """Return batches, newest first, starting after the batch ``after``.

    Args:
        search: Only batches that have this text, whatever its case, in their id, the name of their input file, their
            metadata or the names of their models.

    Raises:
        NotFound: There is no batch ``after``.
    """
    rows = batches_of(principal)
    if after is not None:
        rows = rows.filter(pk__lt=batch_get(batch_id=after, principal=principal, param="after").pk)
    if "\0" in search:
        return []
    if search:
        files = StoredFile.objects.filter(filename__icontains=search, purpose="batch").values("file_id")
        named = Q(batch_id__icontains=search) | Q(metadata__icontains=search) | Q(checkpoints__icontains=search)
        rows = rows.filter(named | Q(input_file_id__in=files))
    return readable_rows(rows, limit)


def input_file_names(batches: Iterable[Batch]) -> dict[str, str]:
    """Return the names of batches' input files by the files' ids; of files that are still there."""
    ids = [row.input_file_id for row in batches]
    return dict(StoredFile.objects.filter(file_id__in=ids).values_list("file_id", "filename"))


def batch_cancel(*, batch_id: str, principal: Principal) -> Batch:
    """Cancel a batch: no line starts, running lines stop, results are kept. A second call changes nothing.

    Raises:
        NotFound: There is no such batch, or it belongs to another tenant.
        Conflict: The batch has ended, or its files are being written.
    """
    row = batch_get(batch_id=batch_id, principal=principal)
    with transaction.atomic():
        # A new fence stops the writes of a worker that is validating the file.
        changed = Batch.objects.filter(
            pk=row.pk, state__in=(BatchState.VALIDATING, BatchState.IN_PROGRESS), ending=""
        ).update(
            state=BatchState.CANCELLING,
            ending=BatchState.CANCELLED,
            cancelling_at=Now(),
            fence=F("fence") + 1,
            owner="",
            lease_until=None,
        )
        if changed:
            transaction.on_commit(hints.wake_workers, robust=True)
    row.refresh_from_db()
    if not changed and row.state not in (BatchState.CANCELLING, BatchState.CANCELLED):
        raise Conflict(f"The batch is {row.ending or row.state}; it can't be cancelled any more.", param="batch_id")
    return row


def batch_pause(*, batch_id: str, principal: Principal) -> Batch:
    """Pause a batch: no line starts, running lines end, its window goes on. A second call changes nothing.

    Raises:
        NotFound: There is no such batch, or it belongs to another tenant.
        Conflict: The batch is ending or has ended.
    """
    row = batch_get(batch_id=batch_id, principal=principal)
    _unended(row).filter(paused_at=None).update(paused_at=Now())
    return _still_open(row, "paused")


def batch_resume(*, batch_id: str, principal: Principal) -> Batch:
    """Let the lines of a paused batch start again. A second call changes nothing.

    Raises:
        NotFound: There is no such batch, or it belongs to another tenant.
        Conflict: The batch is ending or has ended.
    """
    row = batch_get(batch_id=batch_id, principal=principal)
    with transaction.atomic():
        if _unended(row).filter(paused_at__isnull=False).update(paused_at=None):
            transaction.on_commit(hints.wake_workers, robust=True)
    return _still_open(row, "resumed")


def batch_priority_set(*, batch_id: str, principal: Principal, priority: int) -> Batch:
    """Change the order of a batch among others: lines that haven't started go by the new priority.

    Raises:
        PermissionRefused: The caller may not set this priority.
        NotFound: There is no such batch, or it belongs to another tenant.
        Conflict: The batch is ending or has ended.
    """
    principal.check_options(priority=priority, keep_alive_s=None)
    row = batch_get(batch_id=batch_id, principal=principal)
    with transaction.atomic():
        if _unended(row).exclude(priority=priority).update(priority=priority):
            transaction.on_commit(hints.wake_workers, robust=True)
    return _still_open(row, "reordered")


def _unended(row: Batch) -> QuerySet[Batch]:
    return Batch.objects.filter(pk=row.pk, state__in=(BatchState.VALIDATING, BatchState.IN_PROGRESS), ending="")


def _still_open(row: Batch, verb: str) -> Batch:
    row.refresh_from_db()
    if row.state not in (BatchState.VALIDATING, BatchState.IN_PROGRESS) or row.ending:
        raise Conflict(f"The batch is {row.ending or row.state}; it can't be {verb} any more.", param="batch_id")
    return row


def open_batches() -> QuerySet[Batch]:
    """Return the unfinished batches, in the order in which they run."""
    return Batch.objects.filter(ended_at=None).exclude(state__in=TERMINAL_BATCH_STATES).order_by("priority", "id")


OPEN_BATCHES = RowWatch(open_batches)
"""Whether any batch is unfinished."""


def batch_object(row: Batch, progress: Mapping[str, Any], *, secret: str | None = None) -> dict[str, Any]:
    """Return OpenAI's batch object with additions: https://platform.openai.com/docs/api-reference/batch/object.

    Args:
        progress: See ``inference.batches.progress``.
        secret: The webhook's secret, shown only at the creation.
    """
    ended = {
        state: int(row.ended_at.timestamp()) if row.ended_at is not None and row.state == state else None
        for state in TERMINAL_BATCH_STATES
    }
    errors = orjson.loads(row.errors) if row.errors else None
    webhook: dict[str, Any] | None = {"url": row.webhook_url} if row.webhook_url else None
    if webhook is not None and secret is not None:
        webhook["secret"] = secret
    return {
        "id": row.batch_id,
        "object": "batch",
        "endpoint": row.endpoint,
        "errors": None if errors is None else {"object": "list", "data": errors},
        "input_file_id": row.input_file_id,
        "completion_window": row.completion_window,
        "status": row.state,
        "output_file_id": row.output_file_id or None,
        "error_file_id": row.error_file_id or None,
        "created_at": int(row.created_at.timestamp()),
        "in_progress_at": _time(row.in_progress_at),
        "expires_at": _time(row.expires_at),
        "finalizing_at": _time(row.finalizing_at),
        "completed_at": ended[BatchState.COMPLETED],
        "failed_at": ended[BatchState.FAILED],
        "expired_at": ended[BatchState.EXPIRED],
        "cancelling_at": _time(row.cancelling_at),
        "cancelled_at": ended[BatchState.CANCELLED],
        "request_counts": {"total": row.num_total, "completed": row.num_completed, "failed": row.num_failed},
        "metadata": orjson.loads(row.metadata) if row.metadata else None,
        "usage": {
            "input_tokens": row.prompt_tokens,
            "input_tokens_details": {"cached_tokens": row.cached_tokens},
            "output_tokens": row.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": row.reasoning_tokens},
            "total_tokens": row.prompt_tokens + row.completion_tokens,
        },
        "priority": row.priority,
        "schedule_id": row.schedule_id or None,
        "webhook": webhook,
        "progress": dict(progress),
    }


def _time(value: Any) -> int | None:
    return None if value is None else int(value.timestamp())
