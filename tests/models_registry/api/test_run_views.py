"""Training runs over HTTP: watched, followed, stopped, forgotten; a checkpoint is promoted; errors in OpenAI's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from models_registry.aliases import alias_checkpoint_id
from models_registry.models import Checkpoint, ModelAlias, StepMeasurement, TrainingRun
from models_registry.runs.services import run_delete
from tests.models_registry.api.test_views import SOME_ID
from tests.models_registry.runs.test_measuring import SAMPLE
from tests.models_registry.runs.trainers import oxidizr_step

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]


def error_of(response: Any, status: int) -> dict[str, Any]:
    """The error of a refusal with this status."""
    assert response.status_code == status, response.content
    return response.json()["error"]


def send(client: Client, method: str, path: str, **body: object):
    return client.generic(method, path, json.dumps(body), content_type="application/json")


def test_a_run_over_http(browser: Client, directory: Path) -> None:
    response = send(browser, "POST", "/registry/runs", directory=str(directory), prompts=["a", "b"], seed=5)
    assert response.status_code == 201, response.content
    shown = response.json()
    assert (shown["name"], shown["state"], shown["prompts"], shown["seed"]) == ("nano", "watching", ["a", "b"], 5)
    assert (shown["steps"], shown["measuring"]) == ([], "")
    path = f"/registry/runs/{shown['id']}"
    assert browser.get("/registry/runs").json() == [
        {name: value for name, value in shown.items() if name not in ("steps", "measuring", "progress")}
    ]
    assert send(browser, "PATCH", path, temperature=0.0).json()["temperature"] == 0.0
    stopped = send(browser, "POST", f"{path}/stop").json()
    assert (stopped["state"], stopped["reason"]) == ("stopped", "stopped by vera")
    assert send(browser, "POST", f"{path}/resume").json()["state"] == "watching"
    assert send(browser, "DELETE", path).status_code == 204
    assert error_of(browser.get(path), 404)["message"] == f"there is no training run {shown['id']}."


def test_a_page_asks_whether_a_run_has_changed_and_gets_no_samples(
    browser: Client, run: TrainingRun, directory: Path, looks
) -> None:
    oxidizr_step(directory, 1)
    looks(2)
    path = f"/registry/runs/{run.pk}/state"
    seen = []

    def changes() -> bool:
        with CaptureQueriesContext(connection) as queries:
            state = browser.get(path).json()
        assert set(state) == {"version", "measuring", "progress"}
        assert [query for query in queries.captured_queries if "samples" in query["sql"]] == []
        seen.append(state["version"])
        return len(seen) < 2 or seen[-1] != seen[-2]

    assert changes() and not changes()
    looks(1)  # a look at the directory alone is no change
    assert not changes()
    run.steps.update(loss=2.5, samples=[SAMPLE], measured_at=timezone.now())
    assert changes() and not changes()
    run.steps.update(problem="no memory.")
    assert changes()
    send(browser, "PATCH", f"/registry/runs/{run.pk}", temperature=0.0)
    assert changes()
    oxidizr_step(directory, 2)
    looks(2)
    assert changes() and not changes()
    StepMeasurement.objects.create(
        step=run.steps.get(number=2), source_name="x", progress=0.5, active_at=timezone.now()
    )
    state = browser.get(path).json()
    assert (state["measuring"], state["progress"]) == (run.steps.get(number=2).name, 0.5)
    assert f'"version": "{state["version"]}"' in browser.get(f"/runs/{run.pk}/").content.decode()


def test_checkpoints_are_shown_and_promoted(
    browser: Client,
    run: TrainingRun,
    directory: Path,
    looks,
) -> None:
    for number in (1, 2):
        oxidizr_step(directory, number)
    looks(2)
    run.steps.filter(number=1).update(loss=2.5, num_tokens=9, samples=[SAMPLE], measured_at=timezone.now())
    StepMeasurement.objects.create(
        step=run.steps.get(number=2), source_name="x", progress=0.5, active_at=timezone.now()
    )
    shown = browser.get(f"/registry/runs/{run.pk}").json()
    first, second = shown["steps"]
    assert (first["label"], first["revision"], first["loss"], first["samples"]) == ("step 1", 1, 2.5, [SAMPLE])
    assert (second["state"], second["loss"], shown["measuring"], shown["progress"]) == (
        "registered", None, second["name"], 0.5,
    )  # fmt: skip
    path = f"/registry/checkpoints/{first['checkpoint']}/promote"
    promoted = send(browser, "POST", path, alias="production")
    assert (promoted.status_code, promoted.json()["alias"], promoted.json()["number"]) == (201, "production", 1)
    assert promoted.json()["author_name"] == "vera"
    assert str(alias_checkpoint_id("production")) == first["checkpoint"]
    assert "already" in error_of(send(browser, "POST", path, alias="production"), 409)["message"]
    ModelAlias.objects.update(demands_passport=True)
    other = f"/registry/checkpoints/{second['checkpoint']}/promote"
    refusal = error_of(send(browser, "POST", other, alias="production"), 409)
    assert refusal["message"] == (
        "'production' demands a passport, which 'nano-step-2' lacks: it has none; make one on its page."
    )
    assert error_of(send(browser, "POST", other, alias="a/b"), 400)
    send(browser, "DELETE", f"/registry/runs/{run.pk}", with_models=True)
    assert [row.served_model_name for row in Checkpoint.objects.all()] == ["nano-step-1"]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"directory": "/etc"}, 403, "is in no directory of the server's settings"),
        ({"directory": "/nothing"}, 403, "is in no directory of the server's settings"),
        ({}, 400, "directory"), ({"directory": "x" * 5000}, 400, "no path of a directory"),
        ({"prompts": []}, 400, "there are 0 prompts"), ({"prompts": "x"}, 400, "prompts"),
        ({"temperature": "hot"}, 400, "temperature"), ({"seed": 1 << 70}, 400, "seed"),
        ({"text": ""}, 400, "text is empty"), ({"name": "a b"}, 400, "name is 'a b'; it must be"),
    ],
)  # fmt: skip
def test_bad_requests_are_explained(
    browser: Client,
    directory: Path,
    body: dict,
    status: int,
    message: str,
) -> None:
    complete = {"directory": str(directory), **body} if body else body
    assert message in error_of(send(browser, "POST", "/registry/runs", **complete), status)["message"]
    assert not TrainingRun.objects.exists()


def test_what_is_not_there(browser: Client, run: TrainingRun) -> None:
    run_delete(run)
    for method, path in (
        ("GET", f"runs/{run.pk}"), ("PATCH", f"runs/{run.pk}"), ("DELETE", f"runs/{run.pk}"),
        ("POST", f"runs/{run.pk}/stop"), ("POST", f"runs/{run.pk}/resume"),
    ):  # fmt: skip
        assert error_of(send(browser, method, f"/registry/{path}"), 404)
    assert error_of(send(browser, "POST", f"/registry/checkpoints/{SOME_ID}/promote", alias="x"), 404)
