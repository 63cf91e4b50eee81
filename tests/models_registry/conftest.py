"""A tiny hybrid checkpoint, a training run, a staff member, and a clean storage for each test."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.test import Client

from models_registry import job_process, services
from models_registry.models import Checkpoint, RunStep, TrainingRun
from models_registry.runs import watching
from models_registry.runs.services import run_create
from tests.accounts import account
from tests.models_registry.detection.builders import small_hybrid, write_checkpoint
from tests.models_registry.runs.trainers import oxidizr_run

CHILD_PRELUDE = """
import json, os, pathlib, shutil, sys, time
directory = pathlib.Path(__file__).parent
request = json.loads(sys.stdin.readline())
def send(**message):
    print(json.dumps(message), flush=True)
"""


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    """Mamba-2, MLA with MoE, and attention layers at toy size."""
    shapes, config = small_hybrid()
    return write_checkpoint(tmp_path / "tiny-hybrid", shapes, config)


@pytest.fixture
def two_dtypes(db, hybrid: Path, tmp_path: Path) -> tuple[Checkpoint, Checkpoint]:
    """The hybrid in float32, and again in float16 with one more key of its config, which looks like markup."""
    shapes, config = small_hybrid()
    other = write_checkpoint(
        tmp_path / "other", shapes, {**config, "note": "<script>alert(1)</script>"}, dtype="float16"
    )
    ignored = {"config.ignored_keys": "note"}
    return services.checkpoint_register(path=hybrid), services.checkpoint_register(path=other, overrides=ignored)


@pytest.fixture
def storage_dirs(settings, tmp_path: Path) -> Iterator[Path]:
    """Upload directories of this test alone."""
    root = tmp_path / "storage"
    settings.BLAZR_UPLOADS_DIR = root / "uploads"
    settings.BLAZR_BLOBS_DIR = root / "blobs"
    settings.BLAZR_CHECKPOINTS_DIR = root / "checkpoints"
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def staff(db) -> User:
    return account("vera", "operator", password="rotation-curve")


@pytest.fixture
def browser(staff: User) -> Client:
    """A signed-in client that, like a browser, is held to CSRF."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(staff)
    client.get("/models/upload/")
    client.defaults["HTTP_X_CSRFTOKEN"] = client.cookies["csrftoken"].value
    return client


@pytest.fixture(autouse=True)
def no_redis(settings) -> None:
    """The workers can't be asked in these tests; nothing waits for them."""
    settings.BLAZR_REDIS_URL = "unix:///nonexistent/redis.sock?db=0"


@pytest.fixture
def child_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Let a script stand in for the child of a job; returns its directory. ``request`` and ``send`` are there."""

    def install(script: str) -> Path:
        directory = tmp_path / "child"
        directory.mkdir(exist_ok=True)
        body = directory / "child.py"
        body.write_text(CHILD_PRELUDE + script)
        program = directory / "python"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {body} "$@"\n')
        program.chmod(0o755)
        monkeypatch.setattr(job_process, "sys", SimpleNamespace(executable=str(program)))
        return directory

    return install


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
