"""Create batches repeatedly by schedules, in cron notation and UTC.

Runs that were missed while no worker was running are replaced by one run.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson
from celery.schedules import ParseException, crontab
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from inference.access.api_keys import principal_of_tenant
from inference.batches import webhooks
from inference.batches.line_requests import check_metadata
from inference.batches.services import batch_create, window_seconds
from inference.errors import BlazrError, InvalidRequest, NotFound, QueueFull
from inference.files.services import expiry_seconds, file_get
from inference.jobs.row_watch import RowWatch
from inference.models import BatchSchedule
from inference.models.readable_rows import DamagedRow, json_value, readable_rows
from inference.values.principal import Principal

if TYPE_CHECKING:
    from inference.models import Batch

logger = logging.getLogger(__name__)

MAX_SCHEDULES = 100
"""Of one tenant."""


def next_run(cron: str, after: datetime) -> datetime:
    """Return the first time after ``after`` that matches the cron expression.

    Raises:
        InvalidRequest: The expression is malformed, or matches no time.
    """
    wrong = InvalidRequest(
        f"cron is {cron[:60]!r}; it must have five fields (minute hour day month weekday), such as '0 3 * * *'.",
        param="cron",
    )
    fields = cron.split()
    if len(fields) != 5:
        raise wrong
    try:
        schedule = crontab(*fields[:2], day_of_week=fields[4], day_of_month=fields[2], month_of_year=fields[3])
        schedule.nowfun = lambda: after
        start, delta, _ = schedule.remaining_delta(after)
        found: datetime = start + delta
    except (ParseException, ValueError, RuntimeError, TypeError, KeyError):
        raise wrong from None
    return found if found > after else found + timedelta(minutes=1)


def schedule_create(*, values: Mapping[str, Any], principal: Principal) -> BatchSchedule:
    """Create a schedule, with the same checks as for a batch.

    Args:
        values: The validated members of a ``ScheduleRequestSerializer``.

    Raises:
        InvalidRequest: A member is wrong.
        NotFound: The file doesn't exist.
        PermissionRefused: The caller may not set this priority.
        QueueFull: The caller has too many schedules.
    """
    request = {name: value for name, value in values.items() if name != "cron"}
    principal.check_options(priority=request.get("priority", 0), keep_alive_s=None)
    now = timezone.now()
    first = next_run(values["cron"], now)
    window_seconds(request["completion_window"])
    check_metadata(request.get("metadata") or {})
    expiry_seconds(request.get("output_expires_after"), param="output_expires_after")
    file = file_get(file_id=request["input_file_id"], principal=principal, param="input_file_id")
    if file.purpose != "batch":
        raise InvalidRequest(f"The file {file.file_id} has the purpose {file.purpose!r}.", param="input_file_id")
    url, secret = webhooks.checked(request.get("webhook"))
    if url:
        request["webhook"] = {"url": url, "secret": secret}
    if BatchSchedule.objects.filter(tenant=principal.tenant).count() >= MAX_SCHEDULES:
        raise QueueFull(f"There are {MAX_SCHEDULES} schedules already; delete one first.", retry_after_s=60)
    return BatchSchedule.objects.create(
        schedule_id=f"sched_{secrets.token_hex(16)}",
        tenant=principal.tenant,
        cron=" ".join(values["cron"].split()),
        request=orjson.dumps(request).decode(),
        next_run_at=first,
        created_at=now,
    )


def schedules_of(principal: Principal) -> QuerySet[BatchSchedule]:
    """Return the schedules that ``principal`` may see; each lookup for a caller starts here."""
    rows = BatchSchedule.objects.all()
    return rows if principal.sees_everything else rows.filter(tenant=principal.tenant)


def schedule_get(*, schedule_id: str, principal: Principal) -> BatchSchedule:
    """Return one schedule.

    Raises:
        NotFound: There is no such schedule, it belongs to another tenant, or its row is damaged.
    """
    found = schedules_of(principal).filter(schedule_id=schedule_id[:40])
    rows = [] if "\0" in schedule_id else readable_rows(found, 1)
    if not rows:
        raise NotFound(f"There is no schedule with the id {schedule_id[:60]!r}.", param="schedule_id")
    return rows[0]


def schedule_delete(*, schedule_id: str, principal: Principal) -> str:
    """Delete a schedule and return its id; its batches are kept.

    Raises:
        NotFound: There is no such schedule, or it belongs to another tenant.
    """
    row = schedule_get(schedule_id=schedule_id, principal=principal)
    row.delete()
    return row.schedule_id


DUE_SCHEDULES = RowWatch(lambda: BatchSchedule.objects.filter(is_enabled=True, next_run_at__lte=Now()))
"""Whether ``schedules_run`` has any work."""


def schedules_run() -> list[Batch]:
    """Create the due batches. Several processes may run this at once: a run is claimed by moving ``next_run_at``."""
    now = timezone.now()
    made: list[Batch] = []
    for row in BatchSchedule.objects.filter(is_enabled=True, next_run_at__lte=now)[:100]:
        following = next_run(row.cron, now)
        mine = BatchSchedule.objects.filter(pk=row.pk, is_enabled=True, next_run_at=row.next_run_at)
        if not mine.update(next_run_at=following, last_run_at=now):
            continue
        batch_id, problem = "", ""
        try:
            batch = batch_create(
                values=json_value(row, "request"),
                principal=principal_of_tenant(row.tenant),
                schedule_id=row.schedule_id,
            )
            batch_id = batch.batch_id
            made.append(batch)
        except BlazrError as error:
            problem = error.message
        except DamagedRow:
            problem = "Its stored request is damaged; delete it and make it again."
        if problem:
            logger.warning("schedule %s made no batch: %s", row.schedule_id, problem)
        same = BatchSchedule.objects.filter(pk=row.pk)
        same.update(last_error=problem, **({"last_batch_id": batch_id} if batch_id else {}))
    return made


def schedule_object(row: BatchSchedule, *, secret: str | None = None) -> dict[str, Any]:
    """Return the API's object of a schedule.

    Args:
        secret: The webhook's secret, shown only at the creation.
    """
    request = orjson.loads(row.request)
    webhook = request.get("webhook")
    if webhook is not None:
        webhook = {"url": webhook["url"], **({"secret": secret} if secret is not None else {})}
    return {
        "id": row.schedule_id,
        "object": "batch.schedule",
        "cron": row.cron,
        "input_file_id": request["input_file_id"],
        "endpoint": request["endpoint"],
        "completion_window": request["completion_window"],
        "metadata": request.get("metadata"),
        "priority": request.get("priority", 0),
        "webhook": webhook,
        "enabled": row.is_enabled,
        "created_at": int(row.created_at.timestamp()),
        "next_run_at": int(row.next_run_at.timestamp()),
        "last_run_at": None if row.last_run_at is None else int(row.last_run_at.timestamp()),
        "last_batch_id": row.last_batch_id or None,
        "last_error": row.last_error or None,
    }
