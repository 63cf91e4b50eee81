"""Show schedules and their runs as objects of the API."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import orjson
from django.utils import timezone

from inference.errors import InvalidRequest
from inference.models import RunOutcome, Schedule, ScheduleAction, ScheduleRun
from inference.schedules.cron import Cron, cron_parse, next_times, zone_of
from inference.schedules.definitions import times_of
from inference.schedules.words import cron_words

NUM_PREVIEWED = 5


def schedule_object(row: Schedule, runs: Sequence[ScheduleRun] = (), *, secret: str | None = None) -> dict[str, Any]:
    """Return the object of a schedule.

    Args:
        runs: Its last runs, newest first.
        secret: The webhook's secret, shown only when it was drawn.
    """
    is_batch = row.action == ScheduleAction.BATCH
    return {
        "id": row.schedule_id,
        "object": "schedule",
        "name": row.name,
        "action": row.action,
        "cron": row.cron,
        "time_zone": row.time_zone,
        "words": words_of(row),
        "batch": _batch_members(row, secret) if is_batch else None,
        "model": None if is_batch else row.model,
        "paused": not row.is_enabled,
        "owner": row.tenant,
        "created_at": _time(row.created_at),
        "next_run_at": _time(row.next_run_at) if row.is_enabled else None,
        "runs": [run_object(run) for run in runs],
    }


def run_object(run: ScheduleRun) -> dict[str, Any]:
    """Return the object of a run."""
    return {
        "object": "schedule.run",
        "due_at": _time(run.due_at),
        "outcome": run.outcome,
        "manual": run.is_manual,
        "batch_id": run.batch_id or None,
        "message": run.message or None,
    }


def preview_times(cron: str, zone_name: str) -> tuple[Cron, list[datetime]]:
    """Return a parsed expression, and its next ``NUM_PREVIEWED`` times by the clock of a time zone.

    Raises:
        InvalidRequest: The expression or the time zone is wrong.
    """
    parsed, zone = cron_parse(cron), zone_of(zone_name)
    times = next_times(parsed, zone, timezone.now(), NUM_PREVIEWED)
    return parsed, [moment.astimezone(zone) for moment in times]


def preview_object(cron: str, zone_name: str) -> dict[str, Any]:
    """Return what an expression means, and its next times.

    Raises:
        InvalidRequest: The expression or the time zone is wrong.
    """
    parsed, times = preview_times(cron, zone_name)
    return {
        "object": "schedule.preview",
        "cron": parsed.text,
        "time_zone": zone_name,
        "words": cron_words(parsed, zone_name),
        "next_run_times": [moment.isoformat() for moment in times],
    }


def words_of(row: Schedule) -> str:
    """Return when a schedule runs, in words; empty if what is stored isn't understood."""
    try:
        cron, zone = times_of(row)
    except InvalidRequest:
        return ""
    return cron_words(cron, zone.key)


def batch_schedule_object(row: Schedule, runs: Sequence[ScheduleRun], *, secret: str | None = None) -> dict[str, Any]:
    """Return the object of a schedule of batches as ``/v1/batches/schedules`` has it.

    Args:
        runs, secret: As for ``schedule_object``.
    """
    batch = _batch_members(row, secret)
    last = next((run for run in runs if run.outcome != RunOutcome.STARTING), None)
    made = next((run.batch_id for run in runs if run.outcome == RunOutcome.STARTED), "")
    return {
        "id": row.schedule_id,
        "object": "batch.schedule",
        "cron": row.cron,
        "time_zone": row.time_zone,
        **{name: batch[name] for name in ("input_file_id", "endpoint", "completion_window", "metadata", "priority")},
        "webhook": batch["webhook"],
        "enabled": row.is_enabled,
        "created_at": _time(row.created_at),
        "next_run_at": _time(row.next_run_at),
        "last_run_at": None if last is None else _time(last.due_at),
        "last_batch_id": made or None,
        "last_error": None if last is None else last.message or None,
    }


def _batch_members(row: Schedule, secret: str | None) -> dict[str, Any]:
    request = orjson.loads(row.request) if row.request else {}
    webhook = request.get("webhook")
    if webhook is not None:
        webhook = {"url": webhook["url"], **({"secret": secret} if secret is not None else {})}
    return {
        "input_file_id": row.input_file_id,
        "endpoint": request.get("endpoint", ""),
        "completion_window": request.get("completion_window", ""),
        "metadata": request.get("metadata"),
        "priority": request.get("priority", 0),
        "output_expires_after": request.get("output_expires_after"),
        "webhook": webhook,
    }


def _time(moment: datetime) -> int:
    return int(moment.timestamp())
