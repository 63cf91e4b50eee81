"""A run's directory that the settings allow, and a watcher that doesn't wait between its looks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from models_registry.models import RunStep, TrainingRun
from models_registry.runs import watching
from models_registry.runs.services import run_create
from tests.models_registry.runs.trainers import oxidizr_run


@pytest.fixture
def directory(tmp_path: Path, settings) -> Path:
    """``runs/nano``, in a directory that the settings name for watching."""
    settings.BLAZR_MODELS = []
    settings.BLAZR_WATCHED_DIRECTORIES = [str(tmp_path / "runs")]
    return oxidizr_run(tmp_path / "runs" / "nano")


@pytest.fixture
def run(db, directory: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingRun:
    monkeypatch.setattr(watching, "STILL_FOR", timedelta(0))
    return run_create(directory=directory)


@pytest.fixture
def looks(run: TrainingRun) -> Callable[[int], list[RunStep]]:
    """Look so many times; returns what was registered."""
    return lambda count: [step for _ in range(count) for step in watching.run_look(run)]
