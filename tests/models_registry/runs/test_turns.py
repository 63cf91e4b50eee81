"""A turn looks at what the settings allow, measures one checkpoint, and no fault of a run stops the others."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from django.db import OperationalError

from models_registry import storage
from models_registry.aliases import alias_promote
from models_registry.models import RunStep, StepMeasurement, TrainingRun
from models_registry.runs import turns
from models_registry.runs.services import run_create, run_stop
from models_registry.runs.turns import start_turn, take_turn
from models_registry.tasks import watch_runs
from tests.models_registry.runs.test_measuring import OUTPUT, Install
from tests.models_registry.runs.trainers import oxidizr_run, oxidizr_step

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]


@pytest.fixture
def in_this_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements and turns end before the call that starts them does."""

    class Thread:
        def __init__(self, target, args=(), **_: object) -> None:
            self.start = lambda: target(*args)

    monkeypatch.setattr(threading, "Thread", Thread)
    monkeypatch.setattr(turns.connection, "close", lambda: None)


@pytest.mark.usefixtures("in_this_thread")
def test_turns_register_and_measure(run: TrainingRun, directory: Path, child_script: Install) -> None:
    child_script(OUTPUT)
    oxidizr_step(directory, 1)
    for _ in range(2):
        watch_runs()
    assert (run.steps.get().state, run.steps.get().loss) == ("registered", 2.5)


def test_nothing_is_read_of_what_the_settings_no_longer_allow(run: TrainingRun, directory: Path, settings) -> None:
    oxidizr_step(directory, 1)
    settings.BLAZR_WATCHED_DIRECTORIES = []
    take_turn()
    assert (RunStep.objects.count(), TrainingRun.objects.get().looked_at) == (0, None)


def test_a_run_that_fails_leaves_the_others(
    run: TrainingRun, directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = run_create(directory=oxidizr_run(directory.with_name("other")))
    looks = []

    def look(run: TrainingRun) -> None:
        looks.append(run)
        if len(looks) == 1:
            raise ValueError("boom")

    monkeypatch.setattr(turns, "run_look", look)
    take_turn()
    assert looks == [run, other]
    assert "the look at the training run nano failed" in caplog.text


@pytest.mark.usefixtures("in_this_thread")
def test_an_outage_ends_the_turn_in_one_line(
    run: TrainingRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def look(run: TrainingRun) -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr(turns, "run_look", look)
    assert start_turn()
    assert "training runs can't be watched now: database is locked" in caplog.text
    assert start_turn()  # the lock is free again


def test_a_slow_turn_is_not_joined_by_another(run: TrainingRun) -> None:
    with turns.TURNS._lock:
        assert not start_turn()
    run_stop(run)
    assert not start_turn()
    assert not StepMeasurement.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_copy_of_minutes_delays_no_look(run: TrainingRun, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What completed meanwhile was seen when the copy had ended, if the trainer hadn't deleted it by then."""
    monkeypatch.setattr(turns, "measure_next", lambda run: None)
    begun, may_end, copied = threading.Event(), threading.Event(), storage.copy_files

    def copy_slowly(*arguments: object) -> dict[str, str]:
        begun.set()
        assert may_end.wait(60)
        return copied(*arguments)

    monkeypatch.setattr(storage, "copy_files", copy_slowly)

    def state(number: int) -> str:
        return run.steps.get(number=number).state

    try:
        oxidizr_step(directory, 1)
        take_turn()
        take_turn()
        first = run.steps.get(number=1).checkpoint
        alias_promote(name="live", checkpoint=first)
        take_turn()
        assert begun.wait(60)
        oxidizr_step(directory, 2)
        take_turn()
        take_turn()
        assert state(2) == "registered"
        assert turns.COPIES.is_running
        RunStep.objects.filter(number=1).update(reason="what a look has found meanwhile")
    finally:
        may_end.set()
        turns.COPIES.wait()
    first.refresh_from_db()
    assert first.owns_files
    assert run.steps.get(number=1).reason == "what a look has found meanwhile"
    take_turn()
    assert not turns.COPIES.is_running
