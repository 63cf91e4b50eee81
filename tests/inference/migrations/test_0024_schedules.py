"""The migration of schedules: what those from before have afterwards, and who may still look at them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

BEFORE, AFTER = ("inference", "0023_batch_paused_at"), ("inference", "0024_schedules")
REQUEST = '{"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h"}'


def migrate(*targets: tuple[str, str]) -> Any:
    executor = MigrationExecutor(connection)
    executor.migrate(list(targets))
    return MigrationExecutor(connection).loader.project_state(list(targets)).apps


@pytest.fixture
def before(transactional_db) -> Iterator[Any]:
    newest = MigrationExecutor(connection).loader.graph.leaf_nodes()
    yield migrate(BEFORE)
    migrate(*newest)


def test_schedules_keep_what_they_do_and_their_last_run(before):
    now = timezone.now()
    make = before.get_model("inference", "BatchSchedule").objects.create
    common = {"tenant": "local", "cron": "0 3 * * *", "next_run_at": now, "created_at": now}
    make(schedule_id="fine", request=REQUEST, last_run_at=now, last_batch_id="batch_1", **common)
    make(schedule_id="failed", request=REQUEST, last_run_at=now, last_batch_id="batch_1", last_error="No.", **common)
    make(schedule_id="new", request=REQUEST, is_enabled=False, **common)
    make(schedule_id="damaged", request='{"cut', **common)
    files = before.get_model("inference", "StoredFile").objects
    for file_id in ("file-1", "file-2"):
        values = {"tenant": "local", "filename": "a", "purpose": "batch", "size_bytes": 1, "created_at": now}
        files.create(file_id=file_id, expires_at=now + timedelta(days=1), **values)
    after = migrate(AFTER)
    rows = {row.schedule_id: row for row in after.get_model("inference", "Schedule").objects.all()}
    fine = rows["fine"]
    assert (fine.action, fine.time_zone, fine.input_file_id, fine.is_enabled) == ("batch", "UTC", "file-1", True)
    assert "input_file_id" not in fine.request and "/v1/completions" in fine.request
    assert (rows["new"].is_enabled, rows["damaged"].input_file_id) == (False, "")
    runs = after.get_model("inference", "ScheduleRun").objects
    found = runs.order_by("pk").values_list("schedule__schedule_id", "outcome", "batch_id", "message")
    assert list(found) == [("fine", "started", "batch_1", ""), ("failed", "refused", "", "No.")]
    expiries = (
        after.get_model("inference", "StoredFile").objects.order_by("file_id").values_list("expires_at", flat=True)
    )
    assert [expiry is None for expiry in expiries] == [True, False]


def test_permissions_have_the_new_name_and_whom_they_had(before):
    Group, Permission = before.get_model("auth", "Group"), before.get_model("auth", "Permission")
    kind, _ = before.get_model("contenttypes", "ContentType").objects.get_or_create(
        app_label="inference", model="batchschedule"
    )
    Permission.objects.filter(content_type=kind).delete()
    permission = Permission.objects.create(content_type=kind, codename="change_batchschedule", name="Can change")
    Group.objects.create(name="readers").permissions.add(permission)
    after = migrate(AFTER)
    (found,) = after.get_model("auth", "Group").objects.get(name="readers").permissions.all()
    assert (found.codename, found.name) == ("change_schedule", "Can change schedule")
