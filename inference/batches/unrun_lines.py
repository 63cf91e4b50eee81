"""End lines that never run, because their batch ends or their model isn't available."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from inference.batches.line_requests import line_id, refusal_line, unrun_line
from inference.batches.results import ID_BATCH, result_without_response, results_write, rows_locked
from inference.errors import BlazrError, InvalidRequest, PermissionRefused, UnknownModel
from inference.models import Batch, BatchLine, BatchState, LineState
from inference.models.readable_rows import DamagedRow, json_value

NO_CHECKPOINT, NOT_ALLOWED = UUID(int=0), UUID(int=1)
"""Ids of models that don't exist, or that the key may not use; such lines end after the validation."""


def fail_queued(batch: Batch) -> int:
    """End the waiting lines of a batch that is ending; returns their number."""
    code, message = unrun_error(batch.ending)
    waiting = BatchLine.objects.filter(batch=batch, state=LineState.QUEUED).defer("body")

    def payload(row: BatchLine) -> str:
        name = line_id(batch.batch_id, row.number)
        return unrun_line(line_id=name, custom_id=row.custom_id, code=code, message=message)

    return _fail(waiting, payload)


def fail_unservable(batch: Batch) -> int:
    """End waiting lines with a model that doesn't exist or is not allowed; returns their number."""
    waiting = BatchLine.objects.filter(
        batch=batch, state=LineState.QUEUED, checkpoint_id__in=(NO_CHECKPOINT, NOT_ALLOWED)
    )

    def payload(row: BatchLine) -> str:
        try:
            model = json_value(row, "body").get("model")
        except DamagedRow:
            model = None
        name = line_id(batch.batch_id, row.number)
        error = unservable_error(row.checkpoint_id, model)
        return refusal_line(line_id=name, custom_id=row.custom_id, request_id=name, error=error)

    return _fail(waiting, payload)


def unservable_error(checkpoint_id: UUID, model: Any) -> BlazrError:
    """Return why a line can't be served.

    Args:
        checkpoint_id: ``NO_CHECKPOINT`` or ``NOT_ALLOWED``.
        model: What its body names; None: nothing.
    """
    if checkpoint_id == NOT_ALLOWED:
        return PermissionRefused(f"This API key may not use the model {str(model)[:120]!r}.", param="model")
    if model is None:
        return InvalidRequest("model is required.", param="model")
    return UnknownModel(
        f"The model {str(model)[:120]!r} does not exist; GET /v1/models lists the models that do.", param="model"
    )


def unrun_error(ending: str) -> tuple[str, str]:
    """Return (code, message) of requests that never ran because their batch ended."""
    if ending == BatchState.EXPIRED:
        return "batch_expired", "This request could not be executed before the completion window expired."
    if ending == BatchState.FAILED:
        return "invalid_api_key", (
            "The API key of the batch was revoked or has expired, or its account may no longer sign in; "
            "this request was not executed."
        )
    return "batch_cancelled", "This request was not executed: the batch was cancelled."


def _fail(waiting: QuerySet[BatchLine], payload: Callable[[BatchLine], str]) -> int:
    done = 0
    while True:
        with transaction.atomic():
            found = list(rows_locked(waiting.order_by("id"))[:ID_BATCH])
            results_write([result_without_response(row, payload(row)) for row in found])
        done += len(found)
        if len(found) < ID_BATCH:
            return done
