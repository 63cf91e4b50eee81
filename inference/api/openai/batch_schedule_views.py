"""Serve schedules of batches beside OpenAI's batches; ``/api/schedules`` has all schedules, and more of them."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from inference.api.base import ApiView, json_body, json_response
from inference.api.openai.batch_schemas import (
    BatchScheduleDeletedSerializer,
    BatchScheduleListSerializer,
    BatchScheduleRequestSerializer,
    BatchScheduleSerializer,
)
from inference.api.openai.file_views import page_of
from inference.api.paging import check_parameters
from inference.api.schemas import documented
from inference.errors import NotFound
from inference.models import Schedule, ScheduleAction
from inference.schedules.definitions import drawn_secret
from inference.schedules.objects import batch_schedule_object
from inference.schedules.services import (
    MAX_LISTED,
    last_runs,
    schedule_create,
    schedule_delete,
    schedule_get,
    schedule_list,
    schedule_runs,
)
from inference.values.principal import Principal


def _batch_schedule_get(schedule_id: str, principal: Principal) -> Schedule:
    """Return one schedule that makes batches.

    Raises:
        NotFound: There is no such schedule, it belongs to another tenant, or it makes no batches.
    """
    row = schedule_get(schedule_id=schedule_id, principal=principal)
    if row.action != ScheduleAction.BATCH:
        raise NotFound(
            f"The schedule {row.schedule_id} makes no batches; /api/schedules/{row.schedule_id} has it.",
            param="schedule_id",
        )
    return row


class BatchSchedulesView(ApiView):
    """/v1/batches/schedules."""

    @documented(
        operation_id="batch_schedules_create",
        summary="Make a batch again and again",
        request=BatchScheduleRequestSerializer,
        responses={200: BatchScheduleSerializer},
        errors=(400, 401, 403, 404, 413, 415, 429, 503),
        tags=["batches"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Create a schedule."""
        values = await json_body(request, BatchScheduleRequestSerializer.shared().parse)

        def store() -> dict[str, Any]:
            times: dict[str, Any] = {name: values.pop(name) for name in ("cron", "time_zone") if name in values}
            row = schedule_create(values={**times, "action": "batch", "batch": values}, principal=self.principal)
            return batch_schedule_object(row, (), secret=drawn_secret(row, values))

        return json_response(await sync_to_async(store)())

    @documented(
        operation_id="batch_schedules_list",
        summary="List the schedules that make batches",
        responses={200: BatchScheduleListSerializer},
        errors=(400, 401, 503),
        tags=["batches"],
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """List all of the caller's schedules that make batches, without pages, as there are few."""
        check_parameters(request)

        def read() -> dict[str, Any]:
            rows = schedule_list(principal=self.principal, actions=(ScheduleAction.BATCH,))
            runs = last_runs(rows)
            return page_of([batch_schedule_object(row, runs[row.pk]) for row in rows], MAX_LISTED)

        return json_response(await sync_to_async(read)())


class BatchScheduleView(ApiView):
    """/v1/batches/schedules/{id}."""

    @documented(
        operation_id="batch_schedules_retrieve",
        summary="One schedule",
        responses={200: BatchScheduleSerializer},
        errors=(401, 404, 503),
        tags=["batches"],
    )
    async def get(self, request: HttpRequest, schedule_id: str) -> HttpResponseBase:
        """Return a schedule with its last and next run."""

        def read() -> dict[str, Any]:
            row = _batch_schedule_get(schedule_id, self.principal)
            return batch_schedule_object(row, schedule_runs(row))

        return json_response(await sync_to_async(read)())

    @documented(
        operation_id="batch_schedules_delete",
        summary="Delete a schedule",
        description="Its batches stay.",
        responses={200: BatchScheduleDeletedSerializer},
        errors=(401, 403, 404, 503),
        tags=["batches"],
    )
    async def delete(self, request: HttpRequest, schedule_id: str) -> HttpResponseBase:
        """Delete a schedule."""

        def remove() -> str:
            row = _batch_schedule_get(schedule_id, self.principal)
            return schedule_delete(schedule_id=row.schedule_id, principal=self.principal)

        return json_response({"id": await sync_to_async(remove)(), "object": "batch.schedule", "deleted": True})
