"""Serve schedules: create, list, retrieve, change, run and delete them, and preview their times."""

from __future__ import annotations

import asyncio
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter

from inference.api.base import ApiView, json_body, json_response
from inference.api.openai.batch_schemas import CRON_HELP, TIME_ZONE_HELP
from inference.api.paging import check_parameters
from inference.api.platform.schedule_serializers import (
    ScheduleChangeSerializer,
    ScheduleDeletedSerializer,
    ScheduleListSerializer,
    SchedulePreviewSerializer,
    ScheduleRequestSerializer,
    ScheduleRunSerializer,
    ScheduleSerializer,
)
from inference.api.schemas import documented
from inference.schedules.definitions import drawn_secret
from inference.schedules.objects import preview_object, run_object, schedule_object
from inference.schedules.runs import schedule_run_now
from inference.schedules.services import (
    last_runs,
    schedule_change,
    schedule_create,
    schedule_delete,
    schedule_get,
    schedule_list,
    schedule_runs,
)


class SchedulesView(ApiView):
    """/api/schedules."""

    session_allowed = True

    @documented(
        operation_id="schedules_create",
        summary="Do something at given times",
        description=(
            "`batch` runs a stored file as a new batch each time; `load` and `unload` order what "
            "`/v1/models/{id}/load` and `/unload` order. Runs count against whoever made the schedule."
        ),
        request=ScheduleRequestSerializer,
        responses={200: ScheduleSerializer},
        errors=(400, 401, 403, 404, 413, 415, 429, 503),
        tags=["schedules"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Create a schedule."""
        values = await json_body(request, ScheduleRequestSerializer.shared().parse)

        def store() -> dict[str, Any]:
            row = schedule_create(values=values, principal=self.principal)
            return schedule_object(row, secret=drawn_secret(row, values.get("batch", {})))

        return json_response(await sync_to_async(store)())

    @documented(
        operation_id="schedules_list",
        summary="List schedules",
        responses={200: ScheduleListSerializer},
        errors=(400, 401, 503),
        tags=["schedules"],
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """List all of the caller's schedules, without pages, as there are few."""
        check_parameters(request)

        def read() -> dict[str, Any]:
            rows = schedule_list(principal=self.principal)
            runs = last_runs(rows)
            return {"object": "list", "data": [schedule_object(row, runs[row.pk]) for row in rows]}

        return json_response(await sync_to_async(read)())


class SchedulePreviewView(ApiView):
    """/api/schedules/preview."""

    session_allowed = True

    @documented(
        operation_id="schedules_preview",
        summary="When an expression would run",
        parameters=[
            OpenApiParameter("cron", str, required=True, description=CRON_HELP),
            OpenApiParameter("time_zone", str, description=TIME_ZONE_HELP),
        ],
        responses={200: SchedulePreviewSerializer},
        errors=(400, 401),
        tags=["schedules"],
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """Return the meaning of an expression in words, and its next five times."""
        check_parameters(request, "cron", "time_zone")
        cron, zone_name = request.GET.get("cron", ""), request.GET.get("time_zone", "UTC")
        # Looking for a rare day takes a tenth of a second.
        return json_response(await asyncio.to_thread(preview_object, cron, zone_name))


class ScheduleView(ApiView):
    """/api/schedules/{id}."""

    session_allowed = True

    @documented(
        operation_id="schedules_retrieve",
        summary="One schedule",
        responses={200: ScheduleSerializer},
        errors=(401, 404, 503),
        tags=["schedules"],
    )
    async def get(self, request: HttpRequest, schedule_id: str) -> HttpResponseBase:
        """Return a schedule with its last runs."""

        def read() -> dict[str, Any]:
            row = schedule_get(schedule_id=schedule_id, principal=self.principal)
            return schedule_object(row, schedule_runs(row))

        return json_response(await sync_to_async(read)())

    @documented(
        operation_id="schedules_change",
        summary="Change, pause or resume a schedule",
        description="`batch` is replaced as a whole. What was due while it was paused isn't run.",
        request=ScheduleChangeSerializer,
        responses={200: ScheduleSerializer},
        errors=(400, 401, 403, 404, 413, 415, 503),
        tags=["schedules"],
    )
    async def patch(self, request: HttpRequest, schedule_id: str) -> HttpResponseBase:
        """Change the given members."""
        values = await json_body(request, ScheduleChangeSerializer.shared().parse)

        def store() -> dict[str, Any]:
            row = schedule_change(schedule_id=schedule_id, values=values, principal=self.principal)
            return schedule_object(row, schedule_runs(row), secret=drawn_secret(row, values.get("batch", {})))

        return json_response(await sync_to_async(store)())

    @documented(
        operation_id="schedules_delete",
        summary="Delete a schedule",
        description="What it has made stays.",
        responses={200: ScheduleDeletedSerializer},
        errors=(401, 403, 404, 503),
        tags=["schedules"],
    )
    async def delete(self, request: HttpRequest, schedule_id: str) -> HttpResponseBase:
        """Delete a schedule."""
        found = await sync_to_async(schedule_delete)(schedule_id=schedule_id, principal=self.principal)
        return json_response({"id": found, "object": "schedule", "deleted": True})


class ScheduleRunView(ApiView):
    """/api/schedules/{id}/run."""

    session_allowed = True

    @documented(
        operation_id="schedules_run",
        summary="Run a schedule now",
        description="Also a paused one; its times stay as they are. The outcome says what came of it.",
        responses={200: ScheduleRunSerializer},
        errors=(401, 403, 404, 409, 429, 503),
        tags=["schedules"],
    )
    async def post(self, request: HttpRequest, schedule_id: str) -> HttpResponseBase:
        """Run it once, as its owner."""

        def run() -> dict[str, Any]:
            return run_object(schedule_run_now(schedule_id=schedule_id, principal=self.principal))

        return json_response(await sync_to_async(run)())
