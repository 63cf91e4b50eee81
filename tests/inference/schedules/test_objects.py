"""Schedules as objects of the API."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from inference.errors import InvalidRequest
from inference.models import ScheduleRun
from inference.schedules.objects import batch_schedule_object, preview_object, run_object, schedule_object, words_of
from inference.schedules.services import schedule_change
from inference.values.principal import LOCAL
from tests.inference.schedules.fakes import make_schedule

NOON = datetime(2031, 3, 1, 12, tzinfo=UTC)
pytestmark = pytest.mark.django_db


def test_a_schedule_and_its_runs(model):
    row = make_schedule(metadata={"a": "b"})
    old, new = (
        ScheduleRun.objects.create(schedule=row, due_at=NOON, claimed_at=NOON, **values)
        for values in ({"outcome": "started", "batch_id": "batch_1"}, {"outcome": "refused", "message": "No."})
    )
    shown = schedule_object(row, [new, old])
    assert (shown["words"], shown["model"]) == ("every day at 03:00 UTC", None)
    assert shown["batch"]["metadata"] == {"a": "b"} and shown["next_run_at"] == int(row.next_run_at.timestamp())
    assert shown["runs"] == [run_object(new), run_object(old)]
    assert run_object(new) == {"object": "schedule.run", "due_at": int(NOON.timestamp()), "outcome": "refused",
                               "manual": False, "batch_id": None, "message": "No."}  # fmt: skip
    of_batches = batch_schedule_object(row, [new, old])
    assert (of_batches["last_batch_id"], of_batches["last_error"]) == ("batch_1", "No.")
    paused = schedule_change(schedule_id=row.schedule_id, values={"paused": True}, principal=LOCAL)
    assert schedule_object(paused)["next_run_at"] is None
    row.cron = "often"
    assert words_of(row) == ""


def test_a_preview_is_in_its_zone():
    shown = preview_object("0  2 * * *", "Asia/Kathmandu")
    assert shown["cron"] == "0 2 * * *" and len(shown["next_run_times"]) == 5
    assert all(text.endswith("T02:00:00+05:45") for text in shown["next_run_times"])
    with pytest.raises(InvalidRequest):
        preview_object("0 2 * * *", "")
