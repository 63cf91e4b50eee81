"""Serve OpenAI's batches: create, list, retrieve, reorder, pause, resume, cancel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter

from inference.api.base import ApiView, json_body, json_response
from inference.api.openai.batch_schemas import (
    BatchListSerializer,
    BatchPriorityRequestSerializer,
    BatchRequestSerializer,
    BatchSerializer,
)
from inference.api.openai.file_views import page_of
from inference.api.paging import check_parameters, page_size
from inference.api.schemas import documented
from inference.batches.progress import batch_progress, batches_progress
from inference.batches.services import (
    batch_cancel,
    batch_create,
    batch_get,
    batch_list,
    batch_object,
    batch_pause,
    batch_priority_set,
    batch_resume,
)
from inference.models import Batch
from inference.values.principal import Principal

MAX_PAGE = 100


class BatchesView(ApiView):
    """/v1/batches."""

    rows_keep_key = True

    @documented(
        operation_id="batches_create",
        summary="Run a file of requests",
        description=(
            "Once answered, the batch is stored and isn't lost. Its file is validated first; its requests run when "
            "interactive ones leave room, each to one line of the output or the error file."
        ),
        request=BatchRequestSerializer,
        responses={200: BatchSerializer},
        errors=(400, 401, 403, 404, 413, 415, 429, 503),
        tags=["batches"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Create a batch."""
        values = await json_body(request, BatchRequestSerializer.shared().parse)
        is_drawn = "webhook" in values and "secret" not in values["webhook"]

        def store() -> dict[str, Any]:
            row = batch_create(values=values, principal=self.principal, request_key=self.request_key)
            return batch_object(row, batch_progress(row), secret=row.webhook_secret if is_drawn else None)

        return json_response(await sync_to_async(store)())

    @documented(
        operation_id="batches_list",
        summary="List batches, newest first",
        parameters=[
            OpenApiParameter("after", str, description="Continue after the batch with this id (the last one seen)."),
            OpenApiParameter("limit", int, description=f"1 to {MAX_PAGE}, default 20."),
        ],
        responses={200: BatchListSerializer},
        errors=(400, 401, 404, 503),
        tags=["batches"],
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """Return a page of the caller's batches."""
        check_parameters(request, "after", "limit")
        limit = page_size(request, default=20, largest=MAX_PAGE)

        def read() -> dict[str, Any]:
            rows = batch_list(principal=self.principal, after=request.GET.get("after"), limit=limit + 1)
            progress = batches_progress(rows)
            return page_of([batch_object(row, progress[row.pk]) for row in rows], limit)

        return json_response(await sync_to_async(read)())


async def _batch_response(step: Callable[..., Batch], batch_id: str, principal: Principal) -> HttpResponseBase:
    """Take a step with a batch, such as ``batch_cancel``, and return the batch."""

    def take() -> dict[str, Any]:
        row = step(batch_id=batch_id, principal=principal)
        return batch_object(row, batch_progress(row))

    return json_response(await sync_to_async(take)())


class BatchView(ApiView):
    """/v1/batches/{id}."""

    @documented(
        operation_id="batches_retrieve",
        summary="One batch",
        responses={200: BatchSerializer},
        errors=(401, 404, 503),
        tags=["batches"],
    )
    async def get(self, request: HttpRequest, batch_id: str) -> HttpResponseBase:
        """Return the state, counts and progress of a batch."""
        return await _batch_response(batch_get, batch_id, self.principal)


class BatchCancelView(ApiView):
    """/v1/batches/{id}/cancel."""

    admits_itself = True

    @documented(
        operation_id="batches_cancel",
        summary="Stop a batch",
        description="Nothing more starts, what runs is stopped within seconds; what is done stays in the output file.",
        responses={200: BatchSerializer},
        errors=(401, 403, 404, 409, 503),
        tags=["batches"],
    )
    async def post(self, request: HttpRequest, batch_id: str) -> HttpResponseBase:
        """Cancel a batch."""
        return await _batch_response(batch_cancel, batch_id, self.principal)


class BatchPauseView(ApiView):
    """/v1/batches/{id}/pause."""

    admits_itself = True

    @documented(
        operation_id="batches_pause",
        summary="Pause a batch",
        description="Nothing more starts, what runs ends, and the completion window goes on. The status stays as it "
        "is; `progress.is_paused` says that the batch is paused. A pause survives restarts.",
        responses={200: BatchSerializer},
        errors=(401, 403, 404, 409, 503),
        tags=["batches"],
    )
    async def post(self, request: HttpRequest, batch_id: str) -> HttpResponseBase:
        """Pause a batch."""
        return await _batch_response(batch_pause, batch_id, self.principal)


class BatchResumeView(ApiView):
    """/v1/batches/{id}/resume."""

    admits_itself = True

    @documented(
        operation_id="batches_resume",
        summary="Let a paused batch go on",
        responses={200: BatchSerializer},
        errors=(401, 403, 404, 409, 503),
        tags=["batches"],
    )
    async def post(self, request: HttpRequest, batch_id: str) -> HttpResponseBase:
        """Resume a batch."""
        return await _batch_response(batch_resume, batch_id, self.principal)


class BatchPriorityView(ApiView):
    """/v1/batches/{id}/priority."""

    admits_itself = True

    @documented(
        operation_id="batches_priority",
        summary="Change the priority of a batch",
        description="Lines that haven't started go by it. Below 0 it needs the scope `priority`.",
        request=BatchPriorityRequestSerializer,
        responses={200: BatchSerializer},
        errors=(400, 401, 403, 404, 409, 503),
        tags=["batches"],
    )
    async def post(self, request: HttpRequest, batch_id: str) -> HttpResponseBase:
        """Set the priority."""
        values = await json_body(request, BatchPriorityRequestSerializer.shared().parse)
        step = partial(batch_priority_set, priority=values["priority"])
        return await _batch_response(step, batch_id, self.principal)


class BatchesOfPages(BatchesView):
    """/api/batches: the same for pages of this site, which have a session instead of a key."""

    schema = None
    session_allowed = True


class BatchCancelOfPages(BatchCancelView):
    """/api/batches/{id}/cancel."""

    schema = None
    session_allowed = True


class BatchPauseOfPages(BatchPauseView):
    """/api/batches/{id}/pause."""

    schema = None
    session_allowed = True


class BatchResumeOfPages(BatchResumeView):
    """/api/batches/{id}/resume."""

    schema = None
    session_allowed = True
