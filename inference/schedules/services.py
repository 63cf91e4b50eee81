"""Create, look up, change, pause, resume and delete schedules for callers.

All functions are synchronous and use the database. Runs are in ``inference.schedules.runs``.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import Max, Q, QuerySet
from django.utils import timezone

from inference.access.api_keys import principal_of_tenant
from inference.errors import Conflict, NotAuthenticated, NotFound, QueueFull
from inference.files.services import file_release
from inference.models import RunOutcome, Schedule, ScheduleRun
from inference.models.readable_rows import readable_rows
from inference.schedules.cron import next_time
from inference.schedules.definitions import action_set, name_set, times_of, times_set, webhook_clear

if TYPE_CHECKING:
    from inference.values.principal import Principal

logger = logging.getLogger(__name__)

MAX_SCHEDULES = 100
"""Of one owner."""
MAX_LISTED = 1000
"""For callers who see those of all owners."""
NUM_RUNS = 20
"""Last runs that a schedule is shown with."""
_ACTION_MEMBERS = ("action", "batch", "model")
_COLUMNS: tuple[str, ...] = ("name", "cron", "time_zone", "is_enabled", "action", "input_file_id", "request", "model")


def schedule_create(*, values: Mapping[str, Any], principal: Principal) -> Schedule:
    """Create a schedule; what it is to do is checked as if it were done now.

    Args:
        values: ``cron``, ``action`` with ``batch`` (the members of a batch) or ``model``; and, if wanted, ``name``,
            ``time_zone`` and ``paused``.

    Raises:
        InvalidRequest: A member is wrong.
        NotFound: The file or the model doesn't exist.
        PermissionRefused: The caller may not do this.
        QueueFull: The caller has too many schedules.
    """
    now = timezone.now()
    row = Schedule(schedule_id=f"sched_{secrets.token_hex(16)}", tenant=principal.tenant, created_at=now)
    row.is_enabled = not values.get("paused", False)
    name_set(row, values)
    times_set(row, values)
    _check_number(principal)
    row.next_run_at = next_time(*times_of(row), now)
    with transaction.atomic():
        action_set(row, values, principal)
        row.save()
    return row


def _check_number(principal: Principal) -> None:
    number = Schedule.objects.filter(tenant=principal.tenant).count()
    if number >= MAX_SCHEDULES:
        raise QueueFull(
            f"You have {number} schedules, at most {MAX_SCHEDULES} are allowed; delete one first.", retry_after_s=60
        )


def schedules_of(principal: Principal) -> QuerySet[Schedule]:
    """Return the schedules that ``principal`` may see; each lookup for a caller starts here."""
    rows = Schedule.objects.all()
    return rows if principal.sees_everything else rows.filter(tenant=principal.tenant)


def schedule_list(*, principal: Principal, actions: tuple[str, ...] = ()) -> list[Schedule]:
    """Return the caller's schedules, newest first.

    Args:
        actions: Those with these actions only; empty: all.
    """
    rows = schedules_of(principal)
    return readable_rows(rows.filter(action__in=actions) if actions else rows, MAX_LISTED)


def schedule_get(*, schedule_id: str, principal: Principal, for_update: bool = False) -> Schedule:
    """Return one schedule.

    Args:
        for_update: Lock its row until the transaction ends.

    Raises:
        NotFound: There is no such schedule, it belongs to another tenant, or its row is damaged.
    """
    found = schedules_of(principal).filter(schedule_id=schedule_id[:40])
    if for_update:
        found = found.select_for_update()
    rows = [] if "\0" in schedule_id else readable_rows(found, 1)
    if not rows:
        raise _unknown(schedule_id)
    return rows[0]


def _unknown(schedule_id: str) -> NotFound:
    return NotFound(f"There is no schedule with the id {schedule_id[:60]!r}.", param="schedule_id")


def last_runs(rows: Sequence[Schedule]) -> dict[int, list[ScheduleRun]]:
    """Return the last run, and the last one that started something, of each schedule, by primary key."""
    runs = ScheduleRun.objects.filter(schedule__in=[row.pk for row in rows]).order_by()
    newest = [
        found.values("schedule").annotate(newest=Max("pk")).values("newest")
        for found in (runs, runs.filter(outcome=RunOutcome.STARTED))
    ]
    found: dict[int, list[ScheduleRun]] = {row.pk: [] for row in rows}
    for run in readable_rows(ScheduleRun.objects.filter(Q(pk__in=newest[0]) | Q(pk__in=newest[1])).order_by("-pk")):
        found[run.schedule_id].append(run)
    return found


def schedule_runs(row: Schedule) -> list[ScheduleRun]:
    """Return the last runs of a schedule, newest first."""
    return readable_rows(row.runs.order_by("-id"), NUM_RUNS)


def schedule_change(*, schedule_id: str, values: Mapping[str, Any], principal: Principal) -> Schedule:
    """Change the given members of a schedule. What was due before the change isn't run by it.

    Args:
        values: As for ``schedule_create``; with ``action`` goes what it needs. ``batch`` is replaced as a whole.

    Raises:
        NotFound: There is no such schedule, or the file or the model doesn't exist.
        InvalidRequest: A member is wrong.
        PermissionRefused: Its owner may not do this.
        NotAuthenticated: Its owner isn't one any more, so that what it does can't be changed.
    """
    with transaction.atomic():
        # One change at a time: each writes columns back that it has read.
        row = schedule_get(schedule_id=schedule_id, principal=principal, for_update=True)
        held = row.input_file_id
        was_enabled = row.is_enabled
        name_set(row, values)
        times_set(row, values)
        row.is_enabled = not values.get("paused", not row.is_enabled)
        if any(name in values for name in _ACTION_MEMBERS):
            # It runs as its owner, whoever changes it.
            owner = principal if principal.tenant == row.tenant else principal_of_tenant(row.tenant)
            action_set(row, values, owner)
        columns = _COLUMNS
        if "cron" in values or "time_zone" in values or (row.is_enabled and not was_enabled):
            row.next_run_at = next_time(*times_of(row), timezone.now())
            columns += ("next_run_at",)  # otherwise a run that is claimed meanwhile moves it
        if not Schedule.objects.filter(pk=row.pk).update(**{name: getattr(row, name) for name in columns}):
            raise _unknown(schedule_id)
        if held != row.input_file_id:
            file_release(file_id=held)
    return row


def schedule_take_over(*, schedule_id: str, principal: Principal) -> Schedule:
    """Let a schedule run as the caller, whose owner is none any more; its next run is checked against the caller.

    Raises:
        NotFound: There is no such schedule, or the caller may not see those of others.
        Conflict: Its owner can still call.
        QueueFull: The caller has too many schedules.
    """
    with transaction.atomic():
        row = schedule_get(schedule_id=schedule_id, principal=principal, for_update=True)
        try:
            principal_of_tenant(row.tenant)
        except NotAuthenticated:
            _check_number(principal)
        else:
            raise Conflict(
                "The schedule's owner can still run it; only one whose key was revoked or has expired, or whose "
                "account is inactive, can be taken over.",
                param="schedule_id",
            )
        before, row.tenant = row.tenant, principal.tenant
        webhook_clear(row)  # messages about what the caller runs aren't for the old owner's address
        if not Schedule.objects.filter(pk=row.pk).update(tenant=row.tenant, request=row.request):
            raise _unknown(schedule_id)
    logger.info("schedule %s of %s is taken over by %s", row.schedule_id, before, row.tenant)
    return row


def schedule_delete(*, schedule_id: str, principal: Principal) -> str:
    """Delete a schedule and return its id; what it made is kept.

    Raises:
        NotFound: There is no such schedule, or it belongs to another tenant.
    """
    row = schedule_get(schedule_id=schedule_id, principal=principal)
    with transaction.atomic():
        row.delete()
        file_release(file_id=row.input_file_id)
    return row.schedule_id
