"""Schedules of batches over HTTP, in the form that was there before ``/api/schedules``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
import pytest
from django.utils import timezone

from inference.models import Batch, Schedule, StoredFile
from inference.schedules.runs import due_schedules_run
from tests.inference.api.openai.test_batch_views import error_of
from tests.inference.api.openai.test_views import matches
from tests.inference.batches.fakes import EchoManager, end_waits, line, make_runner, store_file, work


@pytest.fixture(autouse=True)
def own_store(settings, tmp_path, monkeypatch):
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    end_waits(monkeypatch)


@pytest.fixture
def http(live_url, checkpoint):
    with httpx.Client(base_url=live_url, timeout=60) as found:
        yield found


def schedule_body(**values: Any) -> dict[str, Any]:
    file = store_file([line("a")])
    return {
        "cron": "*/5 * * * *", "input_file_id": file.file_id, "endpoint": "/v1/completions",
        "completion_window": "24h", **values,
    }  # fmt: skip


def test_a_schedule_makes_its_batch_once_when_it_is_due(http, checkpoint):
    made = http.post("/v1/batches/schedules", json=schedule_body(metadata={"a": "b"}, priority=3)).json()
    assert due_schedules_run(timezone.now()) == []
    Schedule.objects.update(next_run_at=timezone.now() - timedelta(hours=2))
    (run,) = due_schedules_run(timezone.now())
    assert due_schedules_run(timezone.now()) == []
    batch = Batch.objects.get(batch_id=run.batch_id)
    shown = http.get(f"/v1/batches/schedules/{made['id']}").json()
    assert shown["last_batch_id"] == batch.batch_id
    assert shown["next_run_at"] > timezone.now().timestamp()
    assert shown["next_run_at"] % 300 == 0
    found = http.get(f"/v1/batches/{batch.batch_id}").json()
    assert (found["schedule_id"], found["priority"], found["metadata"]) == (made["id"], 3, {"a": "b"})
    assert work(batch, make_runner(EchoManager(str(checkpoint.pk)))).num_completed == 1


def test_a_schedule_whose_file_is_gone_says_so(http):
    body = schedule_body()
    made = http.post("/v1/batches/schedules", json=body).json()
    refused = error_of(http.delete(f"/v1/files/{body['input_file_id']}"), 409)
    assert made["id"] in refused["message"] and refused["param"] == "file_id"
    StoredFile.objects.all().delete()
    Schedule.objects.update(next_run_at=timezone.now() - timedelta(minutes=2))
    (run,) = due_schedules_run(timezone.now())
    assert run.outcome == "refused" and run.batch_id == ""
    assert "no file" in http.get(f"/v1/batches/schedules/{made['id']}").json()["last_error"]


@pytest.mark.parametrize(
    "cron", ["", "daily", "* * * *", "61 * * * *", "0 0 31 2 *", "*/4 * * * *", "* * * * * *", "x * * * *"]
)
def test_wrong_cron_expressions(http, cron):
    assert error_of(http.post("/v1/batches/schedules", json=schedule_body(cron=cron)), 400)["param"] == "cron"


def test_answers_match_the_document(http, document):
    def schema(path: str, method: str) -> dict[str, Any]:
        return document["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]

    made = http.post("/v1/batches/schedules", json=schedule_body()).json()
    matches(document, schema("/v1/batches/schedules", "post"), made)
    matches(document, schema("/v1/batches/schedules", "get"), http.get("/v1/batches/schedules").json())
    path = f"/v1/batches/schedules/{made['id']}"
    matches(document, schema("/v1/batches/schedules/{schedule_id}", "get"), http.get(path).json())
    matches(document, schema("/v1/batches/schedules/{schedule_id}", "delete"), http.delete(path).json())
    error_of(http.get(path), 404)


def test_a_schedule_that_makes_no_batches_is_neither_shown_nor_deleted(http, checkpoint):
    body = {"cron": "0 8 * * *", "action": "load", "model": checkpoint.served_model_name}
    made = http.post("/api/schedules", json=body).json()
    assert http.get("/v1/batches/schedules").json()["data"] == []
    for method in ("GET", "DELETE"):
        refused = error_of(http.request(method, f"/v1/batches/schedules/{made['id']}"), 404)
        assert f"/api/schedules/{made['id']} has it" in refused["message"]
    assert Schedule.objects.get().schedule_id == made["id"]


def test_times_are_in_the_zone_that_is_named(http):
    made = http.post("/v1/batches/schedules", json=schedule_body(cron="0 3 * * *", time_zone="Asia/Kathmandu")).json()
    assert made["time_zone"] == "Asia/Kathmandu" and made["next_run_at"] % 86_400 == (21 * 60 + 15) * 60
    assert (
        error_of(http.post("/v1/batches/schedules", json=schedule_body(time_zone="Mars")), 400)["param"] == "time_zone"
    )
