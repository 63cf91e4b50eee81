"""Run schedules when they are due, each time once, however many processes look and whichever of them end.

A process claims a time by moving the row's ``next_run_at`` on, if it still is what it has read, and writes a run that
is starting in the same transaction. A run whose process ended before it wrote what came of it is taken again: the batch
is made under an idempotency key of the run, so that a second attempt finds the batch of the first.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.db import DatabaseError, IntegrityError, transaction
from django.db.models.functions import Now
from django.utils import timezone

from inference.access.api_keys import principal_of_tenant
from inference.batches.services import batch_create
from inference.errors import BlazrError, Conflict, Unavailable
from inference.jobs.row_watch import RowWatch
from inference.models import Batch, RunOutcome, Schedule, ScheduleAction, ScheduleRun
from inference.models.readable_rows import DamagedRow, readable_rows
from inference.schedules.cron import next_time
from inference.schedules.definitions import batch_values, check_order_allowed, times_of
from inference.schedules.services import schedule_get
from inference.values.principal import Principal
from inference.values.request_key import RequestKey
from models_registry import live
from models_registry.selectors import checkpoint_get_by_name

logger = logging.getLogger(__name__)

GRACE = timedelta(hours=1)
"""A time that passed while no process looked is made up for so long afterwards; then it counts as missed."""
RETRY_AFTER = timedelta(seconds=30)
"""A run that is starting for so long has lost its process, or waits for a Redis that was away."""
MAX_STORED_RUNS = 50
"""Of one schedule."""
MAX_COUNTED = 1000
"""Missed times that are counted one by one."""
MAX_TURN = 100
_LATE = f"It could not be started within {GRACE.seconds // 60} min; the worker's log has the reason."
_DAMAGED = (
    "The stored action can't be read; save the schedule's form again, or delete the schedule and create it again."
)

_DUE = RowWatch(lambda: Schedule.objects.filter(next_run_at__lte=Now()))
_STARTING = RowWatch(lambda: ScheduleRun.objects.filter(outcome=RunOutcome.STARTING))


def schedules_turn() -> None:
    """Do what is due; called every second by each worker."""
    if _DUE.exists():
        due_schedules_run(_database_now())
    if _STARTING.exists():
        lost_runs_retry(_database_now())


def _database_now() -> datetime:
    """Return the time of the database's clock: a worker's own may be wrong, and would miss what is due."""
    now: datetime | None = Schedule.objects.annotate(now=Now()).values_list("now", flat=True).first()
    return now or timezone.now()  # there is no schedule


def due_schedules_run(now: datetime) -> list[ScheduleRun]:
    """Run the schedules that are due, and return the runs; several processes may do this at once."""
    # A damaged request is read by the run itself, which says so.
    due = Schedule.objects.filter(next_run_at__lte=now).order_by("next_run_at").defer("request")
    found = []
    for row in readable_rows(due, MAX_TURN):
        run = _claim(row, now)
        if run is not None:
            _start(run)
            found.append(run)
    return found


def lost_runs_retry(now: datetime) -> list[ScheduleRun]:
    """Take the runs again whose process ended before it wrote what came of them; return them."""
    found = []
    lost = ScheduleRun.objects.filter(outcome=RunOutcome.STARTING, claimed_at__lte=now - RETRY_AFTER)
    for run in readable_rows(lost.select_related("schedule").defer("schedule__request"), MAX_TURN):
        mine = ScheduleRun.objects.filter(pk=run.pk, outcome=RunOutcome.STARTING, claimed_at=run.claimed_at)
        if not mine.update(claimed_at=now):
            continue
        run.claimed_at = now
        if run.due_at < now - GRACE:
            _finish(run, RunOutcome.MISSED, message=_LATE)
        else:
            _start(run)
        found.append(run)
    return found


def schedule_run_now(*, schedule_id: str, principal: Principal) -> ScheduleRun:
    """Run a schedule now, also a paused one, as its owner; its times stay as they are. Returns the run.

    Raises:
        NotFound: There is no such schedule, or it belongs to another tenant.
        Conflict: A run of it is starting just now.
    """
    row = schedule_get(schedule_id=schedule_id, principal=principal)
    now = timezone.now()
    try:
        with transaction.atomic():
            run = ScheduleRun.objects.create(schedule=row, due_at=now, claimed_at=now, is_manual=True)
    except IntegrityError:
        raise Conflict(
            f"A run of the schedule {row.schedule_id} is starting just now; try again in a minute.", param="schedule_id"
        ) from None
    _start(run)
    return run


def _claim(row: Schedule, now: datetime) -> ScheduleRun | None:
    """Claim what is due of a schedule.

    Returns:
        None: Another process has it, an earlier run is still starting, it is paused, or it is too late for all of it.
    """
    mine = Schedule.objects.filter(pk=row.pk, is_enabled=row.is_enabled, next_run_at=row.next_run_at)
    try:
        following, due, missed = _due_times(row, now)
    except BlazrError as error:
        if mine.update(is_enabled=False, next_run_at=now + GRACE) and row.is_enabled:
            logger.warning("schedule %s is paused: %s", row.schedule_id, error.message)
            message = f"It is paused, because {error.message}"
            _record(row, RunOutcome.REFUSED, due_at=row.next_run_at, now=now, message=message)
        return None
    try:
        with transaction.atomic():
            if not mine.update(next_run_at=following):
                return None
            if not row.is_enabled:  # its times pass
                return None
            if missed:
                _record(row, RunOutcome.MISSED, due_at=missed[-1], now=now, message=_missed_words(missed))
            if due is None:
                return None
            run = ScheduleRun.objects.create(schedule=row, due_at=due, claimed_at=now)
    except IntegrityError:  # an earlier run is still starting; the time stays due until that has ended
        return None
    return run


def _due_times(row: Schedule, now: datetime) -> tuple[datetime, datetime | None, list[datetime]]:
    """Return the next time after now, the one to run now, if any, and those that were missed.

    Of several times that passed, the last one runs, if it isn't older than ``GRACE``.
    """
    cron, zone = times_of(row)
    passed = [row.next_run_at]
    while len(passed) < MAX_COUNTED and (later := next_time(cron, zone, passed[-1])) <= now:
        passed.append(later)
    if len(passed) == MAX_COUNTED:
        recent = max(passed[-1], now - GRACE)
        while (later := next_time(cron, zone, recent)) <= now:
            passed.append(recent := later)
    due = passed.pop() if passed[-1] >= now - GRACE else None
    return next_time(cron, zone, now), due, passed


def _missed_words(missed: list[datetime]) -> str:
    why = "No worker ran at that time."
    if len(missed) == 1:
        return why
    number = f"more than {MAX_COUNTED}" if len(missed) >= MAX_COUNTED else str(len(missed))
    return f"No worker ran from {missed[0]:%Y-%m-%d %H:%M} UTC on: {number} times were missed."


def _start(run: ScheduleRun) -> None:
    """Do what a schedule is for, and write down what came of it."""
    row = run.schedule
    try:
        principal = principal_of_tenant(row.tenant)
        if row.action == ScheduleAction.BATCH:
            _start_batch(run, principal)
        else:
            _order(run, principal)
    except BlazrError as error:
        if type(error) is Unavailable and not run.is_manual:  # Redis is away; a limit is another class
            logger.warning("a run of schedule %s is tried again: %s", row.schedule_id, error.message)
            return
        _finish(run, RunOutcome.REFUSED, message=error.message)
    except DamagedRow:
        _finish(run, RunOutcome.REFUSED, message=_DAMAGED)
    except DatabaseError:  # an outage; the run is taken again
        raise
    except Exception:  # one schedule must not keep the others from being run
        logger.exception("a run of schedule %s failed", row.schedule_id)
        _finish(run, RunOutcome.REFUSED, message="The server failed; its log has details.")


def _start_batch(run: ScheduleRun, principal: Principal) -> None:
    row = run.schedule
    principal.check_scope("POST", "/v1/batches")
    key = RequestKey(f"schedule {row.schedule_id} run {run.pk}", "")
    # An earlier attempt of this run may have made its batch already, which is no reason to skip it.
    if not Batch.objects.filter(tenant=row.tenant, request_key=key.name).exists():
        running = Batch.objects.filter(schedule_id=row.schedule_id, ended_at=None).first()  # of an earlier owner, too
        if running is not None:
            message = "The batch of an earlier run hasn't ended."
            return _finish(run, RunOutcome.SKIPPED, batch_id=running.batch_id, message=message)
    batch = batch_create(values=batch_values(row), principal=principal, schedule_id=row.schedule_id, request_key=key)
    return _finish(run, RunOutcome.STARTED, batch_id=batch.batch_id)


def _order(run: ScheduleRun, principal: Principal) -> None:
    """Order a load or an unload, as the model's page does."""
    row = run.schedule
    check_order_allowed(principal, row.action, row.model)
    checkpoint = checkpoint_get_by_name(row.model)
    (live.load if row.action == ScheduleAction.LOAD else live.unload)(checkpoint)
    _finish(run, RunOutcome.STARTED)


def _finish(run: ScheduleRun, outcome: RunOutcome, *, batch_id: str = "", message: str = "") -> None:
    """Write what came of a run, unless another process has done so."""
    run.outcome, run.batch_id, run.message = outcome, batch_id, message
    rows = ScheduleRun.objects.filter(pk=run.pk, outcome=RunOutcome.STARTING)
    rows.update(outcome=outcome, batch_id=batch_id, message=message)
    _log(run)
    _delete_old_runs(run.schedule)


def _record(row: Schedule, outcome: RunOutcome, *, due_at: datetime, now: datetime, message: str) -> None:
    """Write down a time that starts nothing."""
    values = {"due_at": due_at, "claimed_at": now, "outcome": outcome, "message": message}
    _log(ScheduleRun.objects.create(schedule=row, **values))
    _delete_old_runs(row)


def _log(run: ScheduleRun) -> None:
    """Log what came of a run, if it isn't what its schedule is for."""
    if run.outcome != RunOutcome.STARTED:
        schedule_id = run.schedule.schedule_id
        logger.warning("schedule %s, due at %s, %s: %s", schedule_id, run.due_at, run.outcome, run.message)


def _delete_old_runs(row: Schedule) -> None:
    """Delete all runs of a schedule but the last ``MAX_STORED_RUNS``, and one that is starting."""
    old = row.runs.order_by("-pk").values_list("pk", flat=True)[MAX_STORED_RUNS : MAX_STORED_RUNS + 1000]
    if old:
        row.runs.filter(pk__in=list(old)).exclude(outcome=RunOutcome.STARTING).delete()
