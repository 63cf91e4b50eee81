"""Run the failed lines of an ended batch again, as a new batch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import orjson

from inference.batches.inspection import failed_payloads, has_all_failed
from inference.batches.line_requests import MAX_METADATA, InputLine, read_lines
from inference.batches.services import batch_get, batch_of_lines_create, batches_of
from inference.errors import Conflict, InvalidRequest
from inference.files.store import open_file
from inference.models import Batch, BatchLine, LineState
from inference.models.readable_rows import readable_rows
from inference.values.request_key import RequestKey

if TYPE_CHECKING:
    from inference.values.principal import Principal

RETRY_OF = "retry_of"
"""Member of a batch's metadata: the id of the batch whose failed lines it runs again."""
BODY_ROWS = 20
"""Bodies in memory at a time; each has up to 4 MiB."""
MAX_RETRIES_SHOWN = 20
_TOKEN = re.compile("[0-9a-f]{16}")


def failed_lines_retry(*, batch_id: str, principal: Principal, token: str) -> Batch:
    """Make a batch of the failed lines of an ended one, with the same ``custom_id``s, endpoint, window and metadata.

    Lines without a response because their batch was cancelled or expired count as failed. The new batch belongs to
    ``principal``. It has no webhook, as the secret was another caller's perhaps.

    Args:
        token: 16 hexadecimal digits, drawn where the retry is offered; calls with the same ones make one batch.

    Raises:
        NotFound: There is no such batch, or it belongs to another tenant.
        InvalidRequest: ``token`` is something else.
        Conflict: It runs, no line failed, or the input is gone.
        BlazrError: As ``batch_of_lines_create`` raises.
    """
    batch = batch_get(batch_id=batch_id, principal=principal)
    if not _TOKEN.fullmatch(token):
        raise InvalidRequest(
            f"token is {token[:20]!r}, it must be 16 hexadecimal digits; open the batch's page again.", param="token"
        )
    if not batch.is_finished:
        raise Conflict(
            f"The batch is {batch.get_state_display()}; its failed lines can run again when it has ended.",
            param="batch_id",
        )
    if not batch.num_failed:
        raise Conflict("No line of this batch failed.", param="batch_id")
    return batch_of_lines_create(
        lines=_failed_lines(batch),
        filename=f"retry_of_{batch.batch_id}.jsonl",
        expires_s=None,
        values=_values(batch, principal),
        principal=principal,
        request_key=RequestKey(f"retry-{batch.batch_id}-{token}", ""),
    )


def retries_of(batch: Batch, *, principal: Principal) -> list[Batch]:
    """Return the newest batches whose metadata says that they run the failed lines of ``batch`` again."""
    named = orjson.dumps({RETRY_OF: batch.batch_id}).decode()[1:-1]
    return readable_rows(batches_of(principal).filter(pk__gt=batch.pk, metadata__contains=named), MAX_RETRIES_SHOWN)


def _values(batch: Batch, principal: Principal) -> dict[str, Any]:
    """Return the members of the new batch's request, without the file."""
    metadata: dict[str, Any] = orjson.loads(batch.metadata) if batch.metadata else {}
    if len(metadata) < MAX_METADATA or RETRY_OF in metadata:
        metadata[RETRY_OF] = batch.batch_id
    values: dict[str, Any] = {
        "endpoint": batch.endpoint,
        "completion_window": batch.completion_window,
        "metadata": metadata,
        "priority": batch.priority if principal.has_scope("priority") else max(0, batch.priority),
    }
    if batch.output_expires_s is not None:
        values["output_expires_after"] = {"anchor": "created_at", "seconds": batch.output_expires_s}
    return values


def _failed_lines(batch: Batch) -> Iterator[dict[str, Any]]:
    """Yield the failed requests: from the rows while all are stored, else from the input file.

    Raises:
        Conflict: Rows were removed while they were read, or the input is gone.
    """
    rows = BatchLine.objects.filter(batch=batch, state=LineState.FAILED).order_by("id")
    if has_all_failed(rows, batch):
        last = 0
        while found := readable_rows(rows.filter(pk__gt=last), BODY_ROWS):
            last = found[-1].pk
            for row in found:
                yield _line(batch, row.custom_id, orjson.loads(row.body))
        if not has_all_failed(rows, batch):
            raise Conflict("The lines of this batch were removed while they were read; try again.", param="batch_id")
        if last:
            return
    gone = Conflict("The input of this batch is no longer stored; upload it again.", param="batch_id")
    failed = {payload.get("custom_id") for payload in failed_payloads(batch)}
    if not failed:
        raise gone
    try:
        file = open_file(batch.input_sha256)
    except FileNotFoundError:
        raise gone from None
    with file:
        for item in read_lines(file, batch.endpoint):
            if isinstance(item, InputLine) and item.custom_id in failed:
                yield _line(batch, item.custom_id, item.body)


def _line(batch: Batch, custom_id: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": batch.endpoint, "body": body}
