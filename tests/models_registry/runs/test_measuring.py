"""Checkpoints of runs are measured one after the other; kills cost nothing, failures are counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from models_registry.checkpoint_jobs import START_LIMIT
from models_registry.models import RunStep, StepMeasurement, TrainingRun
from models_registry.runs.measuring import MAX_FAILURES, STEP_MEASUREMENTS, measure_next, next_step
from models_registry.runs.services import run_resume, run_stop
from models_registry.sweep import storage_sweep
from tests.models_registry.runs.trainers import oxidizr_step
from tests.models_registry.test_uploads import left_behind

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]

Install = Callable[[str], Path]

SAMPLE = {"prompt": "a", "text": "b", "num_tokens": 1, "finish_reason": "length", "error": ""}
RESULT = {"loss": 2.5, "num_tokens": 9, "samples": [SAMPLE], "problem": ""}
OUTPUT = f"send(result={RESULT!r})\n"


@pytest.fixture
def steps(run: TrainingRun, directory: Path, looks) -> TrainingRun:
    for number in (10, 2):
        oxidizr_step(directory, number)
    looks(2)
    return run


def test_the_result_is_in_the_steps_row(steps: TrainingRun, child_script: Install, storage_dirs: Path) -> None:
    directory = child_script("(directory / 'request').write_text(json.dumps(request))\n" + OUTPUT)
    job = measure_next(wait=True)
    step = steps.steps.get(number=2)
    assert (job.state, job.source_name, job.step, str(job)) == (
        "done", "nano-step-2", step, "measurement of nano-step-2 (done)",
    )  # fmt: skip
    assert (step.loss, step.num_tokens, step.samples, step.problem, bool(step.measured_at)) == (
        2.5, 9, [SAMPLE], "", True,
    )  # fmt: skip
    request = json.loads((directory / "request").read_text())
    assert (request["seed"], request["prompts"], request["path"]) == (0, steps.prompts, step.checkpoint.path)
    assert measure_next(wait=True).step.number == 10
    assert measure_next(wait=True) is None
    assert left_behind(storage_dirs) == []


def test_one_runs_at_a_time(steps: TrainingRun, child_script: Install) -> None:
    child_script(OUTPUT)
    values = {"source_name": "other", "active_at": timezone.now(), "step": steps.steps.first()}
    job = StepMeasurement.objects.create(**values)
    assert measure_next(wait=True) is None
    STEP_MEASUREMENTS.cancel(job.pk)
    assert measure_next(wait=True).state == "done"


def test_failures_are_counted_and_forgiven_by_hand(steps: TrainingRun, child_script: Install) -> None:
    child_script("send(error={'class': 'InvalidRequest', 'message': 'no memory.'})")
    for _ in range(MAX_FAILURES):
        assert measure_next(wait=True).state == "failed"
    step = steps.steps.get(number=2)
    assert (step.num_failures, step.problem, step.measured_at) == (MAX_FAILURES, "no memory.", None)
    assert next_step().number == 10
    run_resume(steps)
    assert next_step().number == 2


def test_the_end_of_the_server_is_no_failure(steps: TrainingRun, child_script: Install) -> None:
    child_script(OUTPUT)
    step = steps.steps.get(number=2)
    StepMeasurement.objects.create(source_name="x", step=step, active_at=timezone.now() - 2 * START_LIMIT)
    assert measure_next(wait=True).step == step  # it ends the row of the dead process, too
    assert StepMeasurement.objects.get(state="failed").reason.startswith("the server stopped while it measured a step")
    StepMeasurement.objects.update(active_at=timezone.now() - timedelta(days=8))
    storage_sweep()
    assert not StepMeasurement.objects.exists()


def test_a_process_that_hangs_is_ended(steps: TrainingRun, child_script: Install) -> None:
    child_script("time.sleep(60)")
    TrainingRun.objects.update(max_seconds=1)
    assert measure_next(wait=True).state == "failed"
    assert "it took longer than 1 s" in steps.steps.get(number=2).problem


def test_files_that_change_meanwhile_have_no_figures(steps: TrainingRun, child_script: Install) -> None:
    step = steps.steps.get(number=2)
    child_script(f"os.utime({step.checkpoint.path!r}, (1, 1))\n" + OUTPUT)
    assert measure_next(wait=True).state == "failed"
    step.refresh_from_db()
    assert (step.loss, "has changed since it was inspected" in step.problem) == (None, True)


def test_what_is_not_there_or_not_watched_is_not_measured(steps: TrainingRun) -> None:
    run_stop(steps)
    assert next_step() is None
    run_resume(steps)
    checkpoint = next_step(steps).checkpoint
    checkpoint.state = "missing"
    checkpoint.save()
    assert next_step(steps).number == 10
    assert next_step(TrainingRun(directory="/x")) is None
    Path(steps.steps.get(number=10).checkpoint.path).unlink()
    assert measure_next(wait=True).state == "failed"
    assert "is gone" in RunStep.objects.get(number=10).problem
