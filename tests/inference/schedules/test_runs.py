"""Runs of schedules: once each, made up for or missed, skipped, refused; processes that end in between."""

from __future__ import annotations

import multiprocessing
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connections
from django.utils import timezone

from inference.access.accounts import principal_of_staff
from inference.access.api_keys import api_key_create, api_key_revoke, principal_of_tenant
from inference.errors import Conflict, Unavailable
from inference.models import Batch, BatchState, Schedule, ScheduleRun, StoredFile
from inference.schedules import runs
from inference.schedules.runs import (
    GRACE,
    RETRY_AFTER,
    due_schedules_run,
    lost_runs_retry,
    schedule_run_now,
    schedules_turn,
)
from inference.schedules.services import schedule_change, schedule_create, schedule_runs
from inference.values.principal import LOCAL
from tests.accounts import account
from tests.inference.rows import damage
from tests.inference.schedules.fakes import make_due, make_schedule

NOON = datetime(2031, 3, 1, 12, 0, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
pytestmark = pytest.mark.usefixtures("model")


class Crash(BaseException):
    """What no handler catches, as the end of a process."""


def crash(*args, **kwargs):
    raise Crash


@pytest.fixture
def orders(monkeypatch) -> list[tuple[str, str]]:
    """The orders for models that would go to Redis."""
    found: list[tuple[str, str]] = []
    for name in ("load", "unload"):
        monkeypatch.setattr(runs.live, name, lambda model, name=name: found.append((name, model.served_model_name)))
    return found


def last_run(row: Schedule) -> ScheduleRun:
    return schedule_runs(row)[0]


def test_a_due_schedule_makes_one_batch_and_moves_on():
    row = make_due(make_schedule(cron="0 * * * *", priority=3, metadata={"a": "b"}), NOON)
    assert due_schedules_run(NOON - MINUTE) == []
    (run,) = due_schedules_run(NOON + MINUTE)
    assert due_schedules_run(NOON + MINUTE) == [] and lost_runs_retry(NOON + HOUR) == []
    batch = Batch.objects.get()
    assert (batch.schedule_id, batch.priority, batch.metadata) == (row.schedule_id, 3, '{"a":"b"}')
    row.refresh_from_db()
    assert row.next_run_at == NOON + HOUR
    run.refresh_from_db()
    assert (run.outcome, run.batch_id, run.due_at, run.message) == ("started", batch.batch_id, NOON, "")


def test_the_turn_looks_by_the_clock_of_the_database(monkeypatch):
    make_due(make_schedule(), timezone.now() - MINUTE)
    now = timezone.now()
    monkeypatch.setattr(runs.timezone, "now", lambda: now + 2 * HOUR)  # too late for it, by this worker's clock
    schedules_turn()
    schedules_turn()
    assert ScheduleRun.objects.get().outcome == "started"


def test_a_time_within_the_grace_is_made_up_for_once():
    row = make_due(make_schedule(cron="*/15 * * * *"), NOON)
    (run,) = due_schedules_run(NOON + timedelta(minutes=50))
    assert (run.due_at, run.outcome) == (NOON + timedelta(minutes=45), "started")
    missed = schedule_runs(row)[1]
    assert (missed.outcome, missed.due_at) == ("missed", NOON + timedelta(minutes=30))
    assert "3 times were missed" in missed.message
    assert Batch.objects.count() == 1


def test_a_time_before_the_grace_is_missed_and_said():
    row = make_due(make_schedule(), NOON.replace(hour=3))
    assert due_schedules_run(NOON.replace(hour=3) + GRACE + MINUTE) == []
    assert (last_run(row).outcome, Batch.objects.count()) == ("missed", 0)
    row.refresh_from_db()
    assert row.next_run_at == NOON.replace(day=2, hour=3)


def test_a_long_absence_is_counted_so_far_and_no_further(monkeypatch):
    monkeypatch.setattr(runs, "MAX_COUNTED", 10)
    row = make_due(make_schedule(cron="*/15 * * * *"), NOON)
    (run,) = due_schedules_run(NOON + timedelta(days=30, minutes=1))
    assert run.due_at == NOON + timedelta(days=30)
    assert "more than 10 times" in schedule_runs(row)[1].message


def test_a_run_is_skipped_while_the_batch_of_an_earlier_one_runs():
    row = make_due(make_schedule(cron="0 * * * *"), NOON)
    due_schedules_run(NOON)
    (run,) = due_schedules_run(NOON + HOUR)
    batch = Batch.objects.get()
    assert (run.outcome, run.batch_id) == ("skipped", batch.batch_id) and "hasn't ended" in run.message
    Batch.objects.update(state=BatchState.COMPLETED, ended_at=timezone.now())
    (run,) = due_schedules_run(NOON + 2 * HOUR)
    assert run.outcome == "started" and Batch.objects.count() == 2
    assert [item.outcome for item in schedule_runs(row)] == ["started", "skipped", "started"]


def test_times_pass_while_a_schedule_is_paused():
    row = make_due(make_schedule(cron="0 * * * *"), NOON)
    schedule_change(schedule_id=row.schedule_id, values={"paused": True}, principal=LOCAL)
    assert due_schedules_run(NOON + MINUTE) == []
    Schedule.objects.update(is_enabled=True)  # as on the admin's page
    assert due_schedules_run(NOON + 2 * MINUTE) == [] and not ScheduleRun.objects.exists()
    assert [run.due_at for run in due_schedules_run(NOON + HOUR)] == [NOON + HOUR]


def test_models_are_loaded_and_unloaded(orders):
    for action in ("load", "unload"):
        make_due(
            schedule_create(values={"cron": "0 8 * * *", "action": action, "model": "tiny"}, principal=LOCAL), NOON
        )
    assert [run.outcome for run in due_schedules_run(NOON)] == ["started", "started"]
    assert sorted(orders) == [("load", "tiny"), ("unload", "tiny")]


def test_the_owner_counts_when_it_runs(orders):
    user = account("oda", "operator")
    values = {"cron": "0 8 * * *", "action": "load", "model": "tiny"}
    row = make_due(schedule_create(values=values, principal=principal_of_staff(user)), NOON)
    user.groups.clear()
    (run,) = due_schedules_run(NOON)
    assert run.outcome == "refused" and "needs an account with the scope 'lifecycle'" in run.message
    user.is_active = False
    user.save()
    (run,) = due_schedules_run(NOON.replace(day=2, hour=8))
    assert run.outcome == "refused" and "inactive" in run.message
    assert orders == [] and len(schedule_runs(row)) == 2


def test_what_is_gone_and_what_is_over_a_limit_is_refused_and_said(orders):
    key, _ = api_key_create(name="small")
    owner = principal_of_tenant(f"key:{key.pk}")
    row = make_due(make_schedule(owner), NOON)
    key.max_queued_lines = 0
    key.save()
    (run,) = due_schedules_run(NOON)
    assert run.outcome == "refused" and "lines" in run.message
    key.max_queued_lines = None
    key.save()
    StoredFile.objects.all().delete()
    assert "no file" in schedule_run_now(schedule_id=row.schedule_id, principal=owner).message
    api_key_revoke(prefix=key.prefix)
    assert "revoked" in schedule_run_now(schedule_id=row.schedule_id, principal=owner).message
    loads = schedule_create(values={"cron": "0 8 * * *", "action": "load", "model": "tiny"}, principal=LOCAL)
    Schedule.objects.filter(pk=loads.pk).update(model="gone")
    assert "does not exist" in schedule_run_now(schedule_id=loads.schedule_id, principal=LOCAL).message
    assert orders == [] and not Batch.objects.exists()


def test_a_run_by_hand_leaves_the_times_as_they_are():
    row = make_schedule()
    schedule_change(schedule_id=row.schedule_id, values={"paused": True}, principal=LOCAL)
    run = schedule_run_now(schedule_id=row.schedule_id, principal=LOCAL)
    assert (run.outcome, run.is_manual) == ("started", True)
    assert schedule_run_now(schedule_id=row.schedule_id, principal=LOCAL).outcome == "skipped"
    ScheduleRun.objects.create(schedule=row, due_at=NOON, claimed_at=NOON)
    with pytest.raises(Conflict):
        schedule_run_now(schedule_id=row.schedule_id, principal=LOCAL)
    before = row.next_run_at
    row.refresh_from_db()
    assert row.next_run_at == before and Batch.objects.count() == 1


@pytest.mark.parametrize("is_made", [False, True])
def test_a_process_that_ends_in_between_costs_no_run_and_makes_no_second(monkeypatch, is_made):
    row = make_due(make_schedule(cron="0 * * * *"), NOON)
    with monkeypatch.context() as patched:
        patched.setattr(runs, "_finish" if is_made else "batch_create", crash)
        with pytest.raises(Crash):
            due_schedules_run(NOON)
    assert Batch.objects.count() == is_made
    assert due_schedules_run(NOON) == [] and lost_runs_retry(NOON + RETRY_AFTER - timedelta(seconds=1)) == []
    assert due_schedules_run(NOON + HOUR) == []  # the next time waits for the end of this one
    (run,) = lost_runs_retry(NOON + RETRY_AFTER)
    assert lost_runs_retry(NOON + RETRY_AFTER) == []
    batch = Batch.objects.get()
    run.refresh_from_db()
    assert (run.outcome, run.batch_id) == ("started", batch.batch_id)
    (later,) = due_schedules_run(NOON + HOUR)
    assert later.outcome == "skipped" and len(schedule_runs(row)) == 2


def test_a_run_that_never_comes_to_its_end_is_missed(monkeypatch):
    row = make_due(make_schedule(), NOON)
    monkeypatch.setattr(runs, "batch_create", crash)
    with pytest.raises(Crash):
        due_schedules_run(NOON)
    (run,) = lost_runs_retry(NOON + GRACE + MINUTE)
    assert (run.outcome, last_run(row).outcome) == ("missed", "missed")


def test_an_order_is_tried_again_while_redis_is_away(monkeypatch, orders):
    def away(model):
        raise Unavailable("Redis is away.")

    values = {"cron": "0 8 * * *", "action": "load", "model": "tiny"}
    row = make_due(schedule_create(values=values, principal=LOCAL), NOON)
    with monkeypatch.context() as patched:
        patched.setattr(runs.live, "load", away)
        assert [run.outcome for run in due_schedules_run(NOON)] == ["starting"]
        assert schedule_runs(row)[0].outcome == "starting"
    assert [run.outcome for run in lost_runs_retry(NOON + RETRY_AFTER)] == ["started"]
    assert orders == [("load", "tiny")]


def test_damaged_rows_are_told_and_stop_no_other():
    odd_times, cut, sound = (make_due(make_schedule(), NOON) for _ in range(3))
    Schedule.objects.filter(pk=odd_times.pk).update(cron="often")
    Schedule.objects.filter(pk=cut.pk).update(request="{}")
    due_schedules_run(NOON)
    assert last_run(sound).outcome == "started"
    assert last_run(cut).outcome == "refused" and "can't be read" in last_run(cut).message
    odd_times.refresh_from_db()
    assert not odd_times.is_enabled and "paused" in last_run(odd_times).message
    damage(sound, "request", '{"cut')
    due_schedules_run(NOON.replace(day=2, hour=3))
    assert sorted(item.outcome for item in ScheduleRun.objects.filter(due_at__day=2)) == ["refused", "skipped"]


def test_old_runs_are_deleted(monkeypatch):
    monkeypatch.setattr(runs, "MAX_STORED_RUNS", 3)
    row = make_due(make_schedule(cron="0 * * * *"), NOON)
    for hours in range(6):
        due_schedules_run(NOON + hours * HOUR)
    assert [run.due_at.hour for run in schedule_runs(row)] == [17, 16, 15]


def take_all(barrier) -> None:
    """Look at twenty minutes in turn, in a process of its own."""
    barrier.wait(60)
    for minute in range(20):
        due_schedules_run(NOON + minute * MINUTE)
    connections.close_all()


def test_two_processes_claim_each_time_once(transactional_db):
    """Both look at the same twelve schedules, each due, at the same moments."""
    for _ in range(12):
        make_due(make_schedule(), NOON)
    connections.close_all()  # a connection is of one process
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    both = [context.Process(target=take_all, args=(barrier,)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    assert ScheduleRun.objects.count() == 12 == Batch.objects.count()
    assert set(ScheduleRun.objects.values_list("outcome", flat=True)) == {"started"}


def test_a_fault_of_one_run_stops_no_other(monkeypatch):
    made = runs.batch_create

    def fail_once(**arguments):
        monkeypatch.setattr(runs, "batch_create", made)
        raise ValueError("boom")

    monkeypatch.setattr(runs, "batch_create", fail_once)
    rows = [make_due(make_schedule(), timezone.now() - MINUTE) for _ in range(2)]
    schedules_turn()
    outcomes = [last_run(row).outcome for row in rows]
    assert sorted(outcomes) == ["refused", "started"]
