"""The pages of training runs: what they show, to whom, and that nothing of a trainer's becomes markup."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from models_registry.aliases import alias_promote
from models_registry.models import RunStep, TrainingRun
from models_registry.run_pages import MAX_SHOWN_SAMPLES, evenly, samples_by_prompt
from tests.accounts import account
from tests.models_registry.runs.test_measuring import SAMPLE
from tests.models_registry.runs.trainers import oxidizr_step

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]

HOSTILE = "<script>alert(1)</script>{{ 7 }}"


def page_of(run: TrainingRun) -> str:
    return f"/runs/{run.pk}/"


def text_of(client: Client, path: str) -> str:
    response = client.get(path)
    assert response.status_code == 200
    return response.content.decode()


def test_the_list_without_and_with_runs(browser: Client, directory: Path, settings) -> None:
    text = text_of(browser, "/runs/")
    assert "No directory is watched yet." in text
    assert str(directory.parent) in text
    settings.BLAZR_WATCHED_DIRECTORIES = []
    assert "The server's settings name no directory." in text_of(browser, "/runs/")


def test_the_list_reads_no_samples(browser: Client, run: TrainingRun, directory: Path, looks) -> None:
    oxidizr_step(directory, 10)
    looks(2)
    run.steps.update(loss=3.25, samples=[{**SAMPLE, "text": "long"}])
    with CaptureQueriesContext(connection) as queries:
        assert "3.2500" in text_of(browser, "/runs/")
    assert [query for query in queries.captured_queries if "samples" in query["sql"]] == []


def test_a_run_with_checkpoints_curve_and_samples(
    browser: Client,
    run: TrainingRun,
    directory: Path,
    looks,
) -> None:
    assert "No checkpoint was found yet." in text_of(browser, page_of(run))
    for number in (10, 20, 30):
        oxidizr_step(directory, number)
    (directory / "nano_64_1m_f32_step_40.safetensors").write_bytes(b"half")
    looks(2)
    for number, loss in ((10, 3.25), (20, 2.75)):
        sample = {**SAMPLE, "prompt": run.prompts[0], "text": f"after {number} {HOSTILE}"}
        run.steps.filter(number=number).update(loss=loss, num_tokens=9, samples=[sample], measured_at=timezone.now())
    run.steps.filter(number=30).update(problem="no memory.")
    alias_promote(name="production", checkpoint=run.steps.get(number=20).checkpoint)
    text = text_of(browser, page_of(run))
    table = text[text.index('id="run-steps"') : text.index('id="run-samples"')]
    assert table.index("step 40") < table.index("step 30") < table.index("step 10")
    assert "lowest at step 20" in text
    assert text[text.index('id="run-curve"') : text.index('id="run-steps"')].count("<circle") == 2
    assert "nano@2" in text
    assert '<span class="badge border text-body text-wrap text-break">production</span>' in text
    assert "a safetensors file has at least 10" in text
    assert "no memory." in text
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;{{ 7 }}" in text
    assert "2.7500" in text_of(browser, "/runs/")


def test_states_say_what_to_do(browser: Client, run: TrainingRun, settings) -> None:
    TrainingRun.objects.update(state="missing", reason="it is gone; restore it.")
    assert "it is gone; restore it." in text_of(browser, page_of(run))
    settings.BLAZR_WATCHED_DIRECTORIES = []
    assert 'only <span class="font-monospace">blazr watch</span> looks at it' in text_of(browser, page_of(run))
    TrainingRun.objects.update(state="stopped")
    assert "Watch again" in text_of(browser, page_of(run))


def test_a_viewer_looks_only(run: TrainingRun, db) -> None:
    viewer: User = account("vic", "viewer")
    client = Client()
    client.force_login(viewer)
    text = text_of(client, page_of(run)) + text_of(client, "/runs/")
    for word in ("data-act", "data-promote", "promote-dialog", "watch-dialog"):
        assert word not in text
    assert client.get("/runs/00000000-0000-0000-0000-000000000001/").status_code == 404


def test_earlier_prompts_stand_behind_those_of_the_run() -> None:
    run = TrainingRun(prompts=["new"])
    steps = [
        RunStep(number=1, samples=[{**SAMPLE, "prompt": "old"}]),
        RunStep(number=2, samples=["damaged", {"prompt": "old"}]),
        RunStep(number=3, samples=[{**SAMPLE, "prompt": "new"}, {**SAMPLE, "prompt": "old"}]),
    ]
    found = samples_by_prompt(run, steps)
    assert [(item["prompt"], [sample["step"].number for sample in item["samples"]]) for item in found] == [
        ("new", [3]), ("old", [1, 3]),
    ]  # fmt: skip


def test_of_many_steps_some_are_shown_evenly() -> None:
    steps = [RunStep(number=number) for number in range(500)]
    shown = [step.number for step in evenly(steps, MAX_SHOWN_SAMPLES)]
    assert (len(set(shown)), shown[0], shown[-1]) == (MAX_SHOWN_SAMPLES, 0, 499)
    assert evenly(steps[:3], 3) == steps[:3]
