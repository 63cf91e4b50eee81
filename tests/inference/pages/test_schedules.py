"""Pages of schedules: the list, the form, one schedule with its runs; links from and to batches."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from inference.access.accounts import principal_of_staff
from inference.access.api_keys import api_key_revoke
from inference.jobs import hints
from inference.models import ApiKey, Batch, Schedule
from inference.schedules import runs
from inference.schedules.runs import due_schedules_run
from tests.accounts import account
from tests.inference.batches.fakes import line, make_batch, store_file
from tests.inference.rows import make_checkpoint
from tests.inference.schedules.fakes import key, make_due, make_schedule

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def own_store(settings, tmp_path, monkeypatch) -> None:
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    monkeypatch.setattr(hints, "wake_workers", lambda: None)


def signed_in(role: str) -> tuple[Client, Any]:
    client, user = Client(), account(role, role)
    client.force_login(user)
    return client, principal_of_staff(user)


@pytest.fixture
def operator() -> Client:
    return signed_in("operator")[0]


def fields(**changes: str) -> dict[str, str]:
    return {"name": "nightly", "action": "batch", "cron": "0 2 * * *", "time_zone": "Europe/Berlin", "file": "",
            "endpoint": "/v1/completions", "window": "24h", "priority": "2", "metadata": "a=b\r\nc=d", "model": "",
            **changes}  # fmt: skip


def text_of(client: Client, path: str) -> str:
    response = client.get(path)
    assert response.status_code == 200
    return response.content.decode()


def test_a_schedule_is_made_listed_and_opened(operator: Client) -> None:
    assert "No schedules yet." in text_of(operator, "/schedules/") and 'href="/schedules/"' in text_of(
        operator, "/jobs/"
    )
    file = store_file([line("a")])
    made = operator.post("/schedules/new/", fields(file=file.file_id, name=HOSTILE))
    row = Schedule.objects.get()
    assert made.status_code == 302 and made["Location"] == f"/schedules/{row.schedule_id}/"
    for path in ("/schedules/", made["Location"]):
        text = text_of(operator, path)
        assert "every day at 02:00 Europe/Berlin" in text and HOSTILE not in text and "&lt;script&gt;" in text
        assert re.search(r"[A-Z][a-z]{2} \d+ [A-Z][a-z]{2}(?: \d{4})?, 02:00", text)
    for words in ("a=b", "c=d", "in.jsonl", "doesn't expire while this schedule needs it"):
        assert words in text


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"cron": "*/2 * * * *"}, "at least 5 minutes"), ({"time_zone": "Berlin"}, "IANA"),
     ({"file": "file-x"}, "no file"),
     ({"priority": "high"}, "priority is"), ({"metadata": "nothing"}, "name=value"),
     ({"endpoint": "/x"}, "endpoint is"),
     ({"action": "dance"}, "action is"), ({"action": "load"}, "model is required"),
     ({"window": "soon"}, "completion_window")],
)  # fmt: skip
def test_a_form_with_a_mistake_is_shown_again(operator: Client, wrong: dict[str, str], words: str) -> None:
    file = store_file([line("a")])
    response = operator.post("/schedules/new/", fields(**{"file": file.file_id, **wrong}))
    text = response.content.decode()
    assert 400 <= response.status_code < 500 and words in text and 'value="nightly"' in text
    assert '<details id="new-schedule" open>' in text and not Schedule.objects.exists()


def test_times_are_previewed(operator: Client) -> None:
    text = text_of(operator, "/schedules/preview/?cron=30+2+*+*+0&time_zone=Europe/Berlin")
    assert "every Sunday at 02:30 Europe/Berlin" in text and text.count("<li>Sun ") == 5
    assert "IANA" in text_of(operator, "/schedules/preview/?cron=30+2+*+*+0&time_zone=Mars")
    assert "five fields" in text_of(operator, "/schedules/preview/")


def test_what_is_changed_is_changed_alone(operator: Client) -> None:
    row = make_schedule(priority=2, metadata={"a": "b", "two": "lines\nc=d"}, output_expires_after={
        "anchor": "created_at", "seconds": 7200})  # fmt: skip
    path = f"/schedules/{row.schedule_id}/"
    form = operator.get(path).context["form"]
    assert operator.post(f"{path}change/", {**form, "name": "renamed"}).status_code == 302
    row.refresh_from_db()
    before = row.request
    assert row.name == "renamed" and '"two":"lines\\nc=d"' in before
    assert operator.post(f"{path}change/", {**form, "name": "renamed", "window": "6h"}).status_code == 302
    row.refresh_from_db()
    assert row.request == before.replace('"24h"', '"6h"')
    refused = operator.post(f"{path}change/", {**form, "cron": "never"})
    assert refused.status_code == 400 and "five fields" in refused.content.decode()
    assert operator.post("/schedules/sched_0/change/", form).status_code == 404


def test_steps_lead_back_to_where_they_were_taken(operator: Client) -> None:
    row = make_schedule()
    path = f"/schedules/{row.schedule_id}/"
    assert operator.post(f"{path}pause/", {"from": "list"})["Location"] == "/schedules/"
    assert ">paused<" in text_of(operator, "/schedules/") and ">Resume<" in text_of(operator, path)
    assert operator.post(f"{path}resume/")["Location"] == path
    assert operator.post(f"{path}run/")["Location"] == path
    batch = Batch.objects.get()
    text = text_of(operator, path)
    assert f'href="/batches/{batch.batch_id}/"' in text and "started (by hand)" in text and "0 of 1" in text
    operator.post(f"{path}run/")
    assert "hasn&#x27;t ended" in text_of(operator, "/schedules/")
    assert operator.post(f"{path}delete/")["Location"] == "/schedules/"
    assert operator.get(path).status_code == 404 and Batch.objects.count() == 1


def test_outcomes_are_said(operator: Client, monkeypatch) -> None:
    make_checkpoint("tiny")
    monkeypatch.setattr(runs.live, "load", lambda model: None)
    operator.post("/schedules/new/", fields(action="load", model="tiny", name=""))
    row = Schedule.objects.get()
    assert "load tiny" in text_of(operator, "/schedules/")
    noon = datetime(2031, 3, 1, 12, tzinfo=UTC)
    due_schedules_run(make_due(row, noon).next_run_at)
    make_due(row, noon - timedelta(days=2))
    due_schedules_run(noon)
    text = text_of(operator, f"/schedules/{row.schedule_id}/")
    assert "A worker was asked to load it." in text and "missed" in text and "No worker ran" in text


def test_members_see_their_own_and_may_not_load() -> None:
    make_checkpoint("tiny")
    client, member = signed_in("member")
    foreign = make_schedule()
    own = make_schedule(member)
    text = text_of(client, "/schedules/")
    assert own.schedule_id in text and foreign.schedule_id not in text
    assert 'value="load"' not in text and 'id="model"' not in text
    refused = client.post("/schedules/new/", fields(action="load", model="tiny"))
    assert refused.status_code == 403 and "lifecycle" in refused.content.decode()
    for step in ("pause", "resume", "run", "delete", "change"):
        assert client.post(f"/schedules/{foreign.schedule_id}/{step}/").status_code == 404
    assert signed_in("viewer")[0].get("/schedules/").status_code == 403


def test_a_batch_leads_to_a_schedule_and_back(operator: Client) -> None:
    make_checkpoint("tiny")
    batch = make_batch([line("a")], metadata={"label": "weekly", "retry_of": "batch_0"}, priority=4)
    assert f'href="/schedules/?batch={batch.batch_id}#new-schedule"' in text_of(operator, f"/batches/{batch.batch_id}/")
    response = operator.get(f"/schedules/?batch={batch.batch_id}")
    form = response.context["form"]
    assert (form["name"], form["file"], form["endpoint"]) == ("weekly", batch.input_file_id, "/v1/completions")
    assert (form["priority"], form["metadata"]) == ("4", "label=weekly")
    assert operator.post("/schedules/new/", form).status_code == 302
    row = Schedule.objects.get()
    operator.post(f"/schedules/{row.schedule_id}/run/")
    made = Batch.objects.get(schedule_id=row.schedule_id)
    assert f'href="/schedules/{row.schedule_id}/">weekly</a>' in text_of(operator, f"/batches/{made.batch_id}/")
    Schedule.objects.all().delete()
    assert "by a schedule" in text_of(operator, f"/batches/{made.batch_id}/")
    assert operator.get("/schedules/?batch=batch_0").status_code == 404


def test_a_removed_file_is_said(operator: Client) -> None:
    row = make_schedule()
    Schedule.objects.update(input_file_id="file-gone")
    assert "every run will be refused" in text_of(operator, f"/schedules/{row.schedule_id}/")


def test_a_schedule_of_a_revoked_key_says_so_and_can_be_taken_over() -> None:
    """Its runs were refused for ever, and nothing but the outcome of the last one told why."""
    client, principal = signed_in("superuser")
    caller = key("files", "generate")
    make_checkpoint()
    row = make_schedule(caller)
    page = f"/schedules/{row.schedule_id}/"
    for path in ("/schedules/", page):
        assert "was revoked" not in text_of(client, path)
    refused = client.post(f"{page}change/", {"take_over": "1"})
    assert refused.status_code == 409 and "owner can still run it" in refused.content.decode()
    api_key_revoke(prefix=ApiKey.objects.get(pk=caller.key_id).prefix)
    assert "its key was revoked: its runs are refused" in text_of(client, "/schedules/")
    text = text_of(client, page)
    assert "Every run is refused: its key was revoked." in text and "its file doesn't expire" in text
    assert 'id="take-over"' in text and f'action="{page}delete/"' in text
    done = client.post(f"{page}change/", {"take_over": "1"})
    assert done.status_code == 302 and done["Location"] == page
    row.refresh_from_db()
    assert row.tenant == principal.tenant and "take-over" not in text_of(client, page)
    client.post(f"{page}run/")
    assert Batch.objects.get().tenant == principal.tenant
    assert signed_in("viewer")[0].post(f"{page}change/", {"take_over": "1"}).status_code == 403
