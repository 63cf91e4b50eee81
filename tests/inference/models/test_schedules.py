"""Rows of schedules: one run of each is starting at most; runs go with their schedule."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from inference.models import RunOutcome, Schedule, ScheduleRun

pytestmark = pytest.mark.django_db


def make(name: str = "") -> Schedule:
    now = timezone.now()
    return Schedule.objects.create(
        schedule_id=f"sched_{Schedule.objects.count()}", tenant="local", name=name, cron="0 3 * * *", next_run_at=now,
        created_at=now,
    )  # fmt: skip


def run(row: Schedule, outcome: RunOutcome = RunOutcome.STARTING) -> ScheduleRun:
    now = timezone.now()
    return ScheduleRun.objects.create(schedule=row, due_at=now, claimed_at=now, outcome=outcome)


def test_one_run_of_a_schedule_is_starting_at_most():
    first, second = make(), make()
    for row in (first, second):
        run(row)
        run(row, RunOutcome.STARTED)
    with pytest.raises(IntegrityError), transaction.atomic():
        run(first)
    first.runs.filter(outcome=RunOutcome.STARTING).update(outcome=RunOutcome.REFUSED)
    assert run(first).outcome == "starting"


def test_runs_go_with_their_schedule_and_rows_have_names():
    row = make("Nightly")
    assert str(run(row)).endswith("(starting)")
    assert str(row) == "Nightly (0 3 * * * UTC)" and str(make()) == "sched_1 (0 3 * * * UTC)"
    row.delete()
    assert not ScheduleRun.objects.exists()
