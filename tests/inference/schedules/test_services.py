"""Schedules of callers: what is refused, whose they are, changes, and the files that they need."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inference.errors import Conflict, InvalidRequest, NotFound, PermissionRefused, QueueFull
from inference.files.services import file_delete, file_expiry_renew, file_get, files_sweep
from inference.models import ApiKey, Schedule, StoredFile
from inference.schedules import services
from inference.schedules.definitions import batch_values
from inference.schedules.services import (
    schedule_change,
    schedule_create,
    schedule_delete,
    schedule_get,
    schedule_list,
    schedule_take_over,
)
from inference.values.principal import LOCAL
from tests.inference.batches.fakes import line, store_file
from tests.inference.schedules.fakes import batch_members, key, load_values, make_schedule

pytestmark = pytest.mark.django_db


def test_a_schedule_is_stored_as_it_is_meant(model):
    row = schedule_create(values=load_values(name="  Morning \n load ", cron=" 0  8 * * MON-FRI"), principal=LOCAL)
    assert (row.name, row.cron, row.time_zone, row.model) == (
        "Morning load",
        "0 8 * * mon-fri",
        "Europe/Berlin",
        "tiny",
    )
    assert row.next_run_at > timezone.now() and row.is_enabled
    assert [item.schedule_id for item in schedule_list(principal=LOCAL)] == [row.schedule_id]


def test_there_are_at_most_so_many_of_one_owner(model, monkeypatch):
    monkeypatch.setattr(services, "MAX_SCHEDULES", 1)
    make_schedule()
    with pytest.raises(QueueFull, match="at most 1"):
        make_schedule()
    assert make_schedule(key("files"))


def test_callers_see_their_own_and_admins_all(model):
    mine, other, admin = key("files"), key("files"), key("admin")
    row = make_schedule(mine)
    for principal in (mine, admin):
        assert schedule_get(schedule_id=row.schedule_id, principal=principal) == row
    for act in (schedule_get, schedule_delete):
        with pytest.raises(NotFound):
            act(schedule_id=row.schedule_id, principal=other)
    with pytest.raises(NotFound):
        schedule_change(schedule_id=row.schedule_id, values={"paused": True}, principal=other)
    assert schedule_list(principal=other) == []
    # It runs as its owner, whoever changes it.
    with pytest.raises(PermissionRefused):
        schedule_change(schedule_id=row.schedule_id, values={"action": "load", "model": "tiny"}, principal=admin)


def test_changes_pauses_and_resumes(model):
    row = make_schedule(cron="0 3 * * *")
    changed = schedule_change(schedule_id=row.schedule_id, values={"cron": "0 4 * * *", "name": "n"}, principal=LOCAL)
    assert (changed.cron, changed.name, changed.next_run_at.hour) == ("0 4 * * *", "n", 4)
    assert not schedule_change(schedule_id=row.schedule_id, values={"paused": True}, principal=LOCAL).is_enabled
    Schedule.objects.update(next_run_at=timezone.now() - timedelta(days=1))
    resumed = schedule_change(schedule_id=row.schedule_id, values={"paused": False}, principal=LOCAL)
    assert resumed.is_enabled and resumed.next_run_at > timezone.now()
    loads = schedule_change(schedule_id=row.schedule_id, values={"action": "load", "model": "tiny"}, principal=LOCAL)
    assert (loads.input_file_id, loads.request, loads.model) == ("", "", "tiny")
    unloads = schedule_change(schedule_id=row.schedule_id, values={"action": "unload"}, principal=LOCAL)
    assert (unloads.action, unloads.model) == ("unload", "tiny")
    with pytest.raises(InvalidRequest):
        schedule_change(schedule_id=row.schedule_id, values={"cron": "soon"}, principal=LOCAL)
    row.refresh_from_db()
    assert (row.cron, row.action) == ("0 4 * * *", "unload")


def test_a_file_stays_while_a_schedule_needs_it(model):
    row = make_schedule()
    file_id = row.input_file_id
    file_expiry_renew(file_id=file_id, principal=LOCAL)  # as a batch of it does that is queued on the page
    assert StoredFile.objects.get().expires_at is None
    with pytest.raises(Conflict, match=row.schedule_id):
        file_delete(file_id=file_id, principal=LOCAL)
    second = schedule_create(
        values={"cron": "0 3 * * *", "action": "batch", "batch": batch_members(input_file_id=file_id)}, principal=LOCAL
    )
    schedule_delete(schedule_id=second.schedule_id, principal=LOCAL)
    assert StoredFile.objects.get(file_id=file_id).expires_at is None
    other = store_file([line("b")])
    schedule_change(
        schedule_id=row.schedule_id, values={"batch": batch_members(input_file_id=other.file_id)}, principal=LOCAL
    )
    assert StoredFile.objects.get(file_id=file_id).expires_at > timezone.now() + timedelta(days=1)
    assert StoredFile.objects.get(file_id=other.file_id).expires_at is None
    files_sweep()
    schedule_delete(schedule_id=row.schedule_id, principal=LOCAL)
    assert file_get(file_id=other.file_id, principal=LOCAL).expires_at is not None
    assert file_delete(file_id=other.file_id, principal=LOCAL)


@pytest.mark.parametrize("for_update", [True, False])
def test_a_change_reads_what_it_writes_back_under_a_lock(for_update, model):
    row = schedule_create(values=load_values(), principal=LOCAL)
    with CaptureQueriesContext(connection) as queries, transaction.atomic():
        assert schedule_get(schedule_id=row.schedule_id, principal=LOCAL, for_update=for_update) == row
    locks = connection.features.has_select_for_update and for_update
    assert any("FOR UPDATE" in query["sql"] for query in queries) == locks


def test_changes_at_once_undo_nothing(transactional_db, model):
    """A pause and new names, each in a thread with a connection of its own."""
    row = schedule_create(values=load_values(), principal=LOCAL)

    def change(**values) -> None:
        try:
            schedule_change(schedule_id=row.schedule_id, values=values, principal=LOCAL)
        finally:
            connection.close()

    for number in range(6):
        schedule_change(schedule_id=row.schedule_id, values={"paused": False}, principal=LOCAL)
        changes = [{"name": f"name {number}"}, {"paused": True}, {"cron": f"{number} 3 * * *"}]
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(lambda values: change(**values), changes))
        found = schedule_get(schedule_id=row.schedule_id, principal=LOCAL)
        assert (found.name, found.is_enabled, found.cron) == (f"name {number}", False, f"{number} 3 * * *")


def test_the_file_of_somebody_else_isnt_held():
    boss, owner = key("admin"), key("files")
    batch = batch_members(owner)
    with pytest.raises(InvalidRequest, match="belongs to somebody else"):
        schedule_create(values={"cron": "0 3 * * *", "action": "batch", "batch": batch}, principal=boss)
    assert StoredFile.objects.get().expires_at is not None


def test_a_schedule_is_taken_over_once_its_owner_is_none(model) -> None:
    owner, other = key("files", "generate"), key("admin", "files", "generate")
    row = make_schedule(owner)
    request = json.loads(row.request) | {"webhook": {"url": "https://old.example", "secret": "whsec_a"}}
    Schedule.objects.filter(pk=row.pk).update(request=json.dumps(request))
    with pytest.raises(Conflict, match="owner can still run it"):
        schedule_take_over(schedule_id=row.schedule_id, principal=other)
    ApiKey.objects.filter(pk=owner.key_id).update(revoked_at=timezone.now())
    with pytest.raises(NotFound):
        schedule_take_over(schedule_id=row.schedule_id, principal=key("files", "generate"))
    assert schedule_take_over(schedule_id=row.schedule_id, principal=other).tenant == other.tenant
    row.refresh_from_db()
    assert (row.tenant, bool(row.input_file_id)) == (other.tenant, True)
    assert "webhook" not in batch_values(row), "the old owner's address"
    with pytest.raises(Conflict):
        schedule_take_over(schedule_id=row.schedule_id, principal=other)
