"""Schedules: when they run next, what is refused, whose they are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from inference.batches import schedules
from inference.batches.schedules import next_run, schedule_create, schedule_delete, schedule_get, schedules_run
from inference.errors import InvalidRequest, NotFound, QueueFull
from inference.models import Batch, BatchSchedule
from inference.values.principal import LOCAL
from tests.inference.batches.fakes import line, store_file
from tests.inference.rows import damage

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)  # a Sunday


@pytest.mark.parametrize(
    ("cron", "expected"),
    [("0 3 * * *", datetime(2026, 3, 2, 3, 0, tzinfo=UTC)), ("30 12 * * *", datetime(2026, 3, 1, 12, 30, tzinfo=UTC)),
     ("0 0 1 * *", datetime(2026, 4, 1, 0, 0, tzinfo=UTC)), ("0 8 * * 1", datetime(2026, 3, 2, 8, 0, tzinfo=UTC))],
)  # fmt: skip
def test_the_next_time_of_an_expression(cron, expected):
    assert next_run(cron, NOON) == expected
    assert next_run(cron, expected) > expected


@pytest.mark.parametrize("cron", ["", "* * * *", "61 * * * *", "x y z a b", "0 0 31 2 *"])
def test_expressions_that_name_no_time_are_refused(cron):
    with pytest.raises(InvalidRequest) as caught:
        next_run(cron, NOON)
    assert caught.value.param == "cron"


def values(**members):
    file = store_file([line("a")])
    return {"cron": "0 3 * * *", "endpoint": "/v1/completions", "completion_window": "24h",
            "input_file_id": file.file_id} | members  # fmt: skip


def test_a_due_schedule_makes_one_batch_and_moves_on(model):
    row = schedule_create(values=values(), principal=LOCAL)
    assert schedules_run() == []
    BatchSchedule.objects.update(next_run_at=NOON - timedelta(days=1))
    (made,) = schedules_run()
    assert made.schedule_id == row.schedule_id
    assert schedules_run() == []
    assert BatchSchedule.objects.get().next_run_at > NOON
    schedule_delete(schedule_id=row.schedule_id, principal=LOCAL)
    assert Batch.objects.count() == 1
    with pytest.raises(NotFound):
        schedule_get(schedule_id=row.schedule_id, principal=LOCAL)


def test_what_a_batch_would_be_refused_for_is_refused_at_once(model, monkeypatch):
    for wrong, error in (({"completion_window": "soon"}, InvalidRequest), ({"input_file_id": "file-x"}, NotFound)):
        with pytest.raises(error):
            schedule_create(values=values(**wrong), principal=LOCAL)
    monkeypatch.setattr(schedules, "MAX_SCHEDULES", 0)
    with pytest.raises(QueueFull):
        schedule_create(values=values(), principal=LOCAL)


def test_a_damaged_schedule_is_told_and_stops_no_other(model):
    damaged, sound = (schedule_create(values=values(), principal=LOCAL) for _ in range(2))
    BatchSchedule.objects.update(next_run_at=datetime(2026, 1, 1, tzinfo=UTC))
    damage(damaged, "request", '{"cut')
    (batch,) = schedules_run()
    assert batch.schedule_id == sound.schedule_id
    damaged.refresh_from_db()
    assert "damaged" in damaged.last_error and damaged.next_run_at > datetime.now(UTC)
    assert schedules_run() == []
