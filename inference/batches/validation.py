"""Validate a batch's file and store its lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from uuid import UUID

import orjson
from django.db import transaction
from django.db.models.functions import Now

from inference.access.api_keys import principal_of_tenant
from inference.batches.batch_claims import BatchClaim
from inference.batches.ending import batch_end
from inference.batches.line_requests import InputLine, LineError, errors_text, read_lines
from inference.batches.unrun_lines import NO_CHECKPOINT, NOT_ALLOWED, fail_unservable
from inference.errors import NotAuthenticated, UnknownModel
from inference.files.store import open_file
from inference.host.fault_points import fault_point
from inference.jobs import hints
from inference.models import BatchLine, BatchState
from inference.serving.served_models import served_model_read
from models_registry.models import Checkpoint

MAX_ERRORS = 100
"""Errors of a file that its batch keeps."""
MAX_LINES = 50_000
"""Lines in the input file of a batch; OpenAI's limit."""
MAX_INPUTS = 50_000
"""Inputs to embed in all lines of a batch together; OpenAI's limit."""
INSERT_BATCH = 500


def batch_validate(claim: BatchClaim) -> None:
    """Validate the whole file, then store its lines; a second attempt continues after the stored lines."""
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
        errors = list(islice(file_errors(read_lines(file, batch.endpoint), claim.pause), MAX_ERRORS))
        if errors:
            _fail(claim, errors)
            return
        file.seek(0)
        lines = (item for item in read_lines(file, batch.endpoint) if isinstance(item, InputLine))
        _store_lines(claim, lines, allowed=allowed)
    checkpoints = BatchLine.objects.filter(batch=batch).order_by().values_list("checkpoint_id", flat=True).distinct()
    names = _checkpoint_names([key for key in checkpoints if key not in (NO_CHECKPOINT, NOT_ALLOWED)])
    claim.give_back(
        state=BatchState.IN_PROGRESS,
        in_progress_at=Now(),
        num_total=BatchLine.objects.filter(batch=batch).count(),
        checkpoints=orjson.dumps(names).decode(),
    )
    fault_point("batch.validated")
    fail_unservable(batch)
    hints.wake_workers()


def file_errors(lines: Iterator[InputLine | LineError], pause: Callable[[], None]) -> Iterator[LineError]:
    """Yield the errors of a file that refuse it as a whole.

    Args:
        lines: As ``read_lines`` yields them.
        pause: Called now and then between two lines.
    """
    first_seen: dict[str, int] = {}
    has_errors = False
    num_inputs = 0
    for count, item in enumerate(lines, start=1):
        error: LineError | None = None
        if count > MAX_LINES:
            limit = MAX_LINES
            yield LineError("too_many_requests", f"The file has more than {limit:,} requests; split it.", None)
            return
        num_inputs += item.num_inputs if isinstance(item, InputLine) else 0
        if num_inputs > MAX_INPUTS:
            limit = MAX_INPUTS
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
            has_errors = True
        if count % INSERT_BATCH == 0:
            pause()
    if not has_errors and not first_seen:
        yield LineError("empty_file", "The file has no requests.", None)


def _store_lines(claim: BatchClaim, lines: Iterator[InputLine], *, allowed: frozenset[str] | None) -> None:
    batch = claim.row
    last = BatchLine.objects.filter(batch=batch).order_by("-id").values_list("number", flat=True).first() or 0
    checkpoint_ids: dict[str, UUID] = {}
    rows: list[BatchLine] = []

    def store() -> None:
        with transaction.atomic():
            claim.keep()
            BatchLine.objects.bulk_create(rows)
        fault_point("batch.stored_lines")
        rows.clear()

    for line in lines:
        if line.number <= last:
            continue
        if line.model not in checkpoint_ids:
            checkpoint_ids[line.model] = checkpoint_id_of(line.model, allowed)
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
            claim.pause()
    if rows:
        store()


def checkpoint_id_of(model: str, allowed: frozenset[str] | None) -> UUID:
    """Return the checkpoint that serves a model; ``NO_CHECKPOINT`` or ``NOT_ALLOWED``: none does.

    Args:
        allowed: Models that the caller may use; None: any.
    """
    if allowed is not None and model not in allowed:
        return NOT_ALLOWED
    try:
        return UUID(served_model_read(model).checkpoint_id) if model and "\0" not in model else NO_CHECKPOINT
    except UnknownModel:
        return NO_CHECKPOINT


def _checkpoint_names(keys: Sequence[UUID]) -> dict[str, str]:
    rows = Checkpoint.objects.filter(pk__in=keys)
    return {str(key): name for key, name in rows.values_list("pk", "served_model_name")}


def _fail(claim: BatchClaim, errors: Sequence[LineError]) -> None:
    batch_end(claim, BatchState.FAILED, errors=errors_text(errors))
