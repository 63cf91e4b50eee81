"""Schedules over HTTP: shapes, errors that name their member, whose they are."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from inference.access.api_keys import api_key_create
from inference.api.platform import schedule_views
from inference.jobs import hints
from inference.models import Batch, Schedule
from inference.schedules import runs
from tests.inference.api.openai.test_views import matches
from tests.inference.schedules.fakes import batch_members


@pytest.fixture(autouse=True)
def own_store(transactional_db, settings, tmp_path, monkeypatch, checkpoint) -> None:
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    settings.BLAZR_WEBHOOKS = "public"
    monkeypatch.setattr(hints, "wake_workers", lambda: None)


def body(**values: Any) -> dict[str, Any]:
    return {"name": "nightly", "cron": "0 2 * * *", "time_zone": "Europe/Berlin", "action": "batch", **values}


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_a_schedule_from_its_creation_to_its_end(http: httpx.Client, document: dict[str, Any]) -> None:
    def shown(method: str, path: str, template: str | None = None, **options: Any) -> dict[str, Any]:
        response = http.request(method, path, **options)
        assert response.status_code == 200, response.text
        schema = document["paths"][template or path][method.lower()]["responses"]["200"]["content"]["application/json"]
        matches(document, schema["schema"], response.json())
        return dict(response.json())

    batch = batch_members(metadata={"a": "b"}, webhook={"url": "https://example.com/hook"})
    made = shown("POST", "/api/schedules", json=body(batch=batch))
    assert made["words"] == "every day at 02:00 Europe/Berlin" and made["runs"] == [] and not made["paused"]
    assert made["batch"]["webhook"]["secret"].startswith("whsec_")
    one, template = f"/api/schedules/{made['id']}", "/api/schedules/{schedule_id}"
    assert "secret" not in shown("GET", one, template)["batch"]["webhook"]
    changed = shown("PATCH", one, template, json={"paused": True, "cron": "*/30 * * * *", "name": None})
    assert (changed["paused"], changed["next_run_at"], changed["name"]) == (True, None, "nightly")
    assert changed["batch"] == made["batch"] | {"webhook": {"url": "https://example.com/hook"}}
    run = shown("POST", f"{one}/run", f"{template}/run")
    assert (run["outcome"], run["manual"], run["batch_id"]) == ("started", True, Batch.objects.get().batch_id)
    assert shown("POST", f"{one}/run", f"{template}/run")["outcome"] == "skipped"
    (listed,) = shown("GET", "/api/schedules")["data"]
    assert [item["outcome"] for item in listed["runs"]] == ["skipped", "started"]
    # The same schedule, as the API of batches has it.
    of_batches = http.get(f"/v1/batches/schedules/{made['id']}").json()
    assert (of_batches["enabled"], of_batches["last_batch_id"]) == (False, run["batch_id"])
    assert of_batches["last_error"] == "The batch of an earlier run hasn't ended."
    assert shown("DELETE", one, template) == {"id": made["id"], "object": "schedule", "deleted": True}
    error_of(http.get(one), 404)
    assert Batch.objects.count() == 1


def test_models_are_loaded_by_schedules_that_make_no_batches(http: httpx.Client, monkeypatch) -> None:
    orders: list[str] = []
    monkeypatch.setattr(runs.live, "unload", lambda model: orders.append(model.served_model_name))
    made = http.post("/api/schedules", json=body(action="unload", model="tiny")).json()
    assert (made["batch"], made["model"], made["owner"]) == (None, "tiny", "local")
    assert http.post(f"/api/schedules/{made['id']}/run").json()["outcome"] == "started" and orders == ["tiny"]
    assert http.get("/v1/batches/schedules").json()["data"] == []
    assert "makes no batches" in error_of(http.get(f"/v1/batches/schedules/{made['id']}"), 404)["message"]


@pytest.mark.parametrize(
    ("wrong", "status", "param"),
    [
        ({"cron": "*/3 * * * *"}, 400, "cron"), ({"cron": 5}, 400, "cron"), ({"time_zone": "Mars"}, 400, "time_zone"),
        ({"action": "dance"}, 400, "action"), ({"model": "tiny"}, 400, "model"), ({"name": "x" * 101}, 400, "name"),
        ({"paused": "yes"}, 400, "paused"), ({"when": "now"}, 400, "when"), ({"batch": None}, 400, "batch"),
        ({"batch": {"input_file_id": "file-x"}}, 400, "batch.endpoint"), ({"batch": []}, 400, "batch"),
        ({"batch": {"lines": 1}}, 400, "batch.lines"), ({"action": "load", "batch": None}, 400, "model"),
        ({"action": "load", "batch": None, "model": "gone"}, 404, "model"),
        ({"batch": {"input_file_id": "file-x", "endpoint": "/v1/completions", "completion_window": "24h"}}, 404,
         "input_file_id"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(http: httpx.Client, wrong: dict[str, Any], status: int, param: str) -> None:
    error = error_of(http.post("/api/schedules", json=body(batch=batch_members()) | wrong), status)
    assert error["param"] == param and not Schedule.objects.exists()


def test_a_preview_does_not_hold_up_the_event_loop(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[object] = []

    def preview(*given: str) -> dict[str, str]:
        loops.append(asyncio._get_running_loop())
        return {}

    monkeypatch.setattr(schedule_views, "preview_object", preview)
    assert http.get("/api/schedules/preview", params={"cron": "0 0 29 2 */7"}).status_code == 200
    assert loops == [None]


def test_previews(http: httpx.Client, document: dict[str, Any]) -> None:
    found = http.get("/api/schedules/preview", params={"cron": "30 2 * * 7", "time_zone": "Europe/Berlin"})
    schema = document["paths"]["/api/schedules/preview"]["get"]["responses"]["200"]["content"]["application/json"]
    matches(document, schema["schema"], found.json())
    assert found.json()["words"] == "every Sunday at 02:30 Europe/Berlin"
    assert len(found.json()["next_run_times"]) == 5
    assert error_of(http.get("/api/schedules/preview"), 400)["param"] == "cron"
    assert error_of(http.get("/api/schedules/preview?cron=0+0+*+*+*&zone=UTC"), 400)["param"] == "zone"


def test_keys_see_their_own_and_need_lifecycle_for_models(http: httpx.Client) -> None:
    headers = [
        {"Authorization": f"Bearer {api_key_create(name='key', scopes=scopes)[1]}"}
        for scopes in (["files"], ["files"], ["files", "lifecycle"])
    ]
    load = body(action="load", model="tiny")
    error = error_of(http.post("/api/schedules", json=load, headers=headers[0]), 403)
    assert "lifecycle" in error["message"]
    made = http.post("/api/schedules", json=load, headers=headers[2]).json()
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/run")):
        error_of(http.request(method, f"/api/schedules/{made['id']}{path}", headers=headers[1]), 404)
    error_of(http.patch(f"/api/schedules/{made['id']}", json={"paused": True}, headers=headers[1]), 404)
    assert http.get("/api/schedules", headers=headers[1]).json()["data"] == []
