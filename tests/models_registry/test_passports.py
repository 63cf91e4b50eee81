"""Passports end with entries in their row, or with a reason; the server makes one of what was registered, when idle."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from inference.errors import Conflict, QueueFull
from inference.values.states import ModelState, WorkerState
from models_registry import live, passports, services
from models_registry.checkpoint_jobs import START_LIMIT
from models_registry.live import Live
from models_registry.models import Checkpoint, Passport, RunStep, TrainingRun
from models_registry.passports import MAX_KEPT, PASSPORTS, is_idle, next_checkpoint, passport_create, passport_next
from models_registry.runs.services import DEFAULTS
from models_registry.server_choices import passports_choose
from models_registry.sweep import storage_sweep
from models_registry.tasks import sweep
from tests.models_registry.detection.builders import copy_bare_demo
from tests.models_registry.test_passport_gaps import PASSED
from tests.models_registry.test_uploads import left_behind

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]

Install = Callable[[str], Path]

OUTPUT = f"send(result={{'entries': [{PASSED!r}]}})\n"


@pytest.fixture
def source(tmp_path: Path) -> Checkpoint:
    row = services.checkpoint_register(path=copy_bare_demo(tmp_path / "demo"), served_model_name="tiny")
    Checkpoint.objects.update(created_at=timezone.now() - timedelta(hours=1))
    return row


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passports, "is_idle", lambda: True)


def test_the_entries_are_in_the_row(source: Checkpoint, staff: User, child_script: Install, storage_dirs: Path) -> None:
    directory = child_script("(directory / 'request').write_text(json.dumps(request))\n" + OUTPUT)
    services.checkpoint_settings_update(checkpoint=source, values={"quant": "int8"})
    row = passport_create(checkpoint=source, owner=staff, wait=True)
    assert (row.state, row.reason, row.entries, row.owner, row.is_automatic) == ("done", "", [PASSED], staff, False)
    assert str(row) == "passport of tiny (done)"
    assert json.loads((directory / "request").read_text()) == {
        "path": source.path, "overrides": {}, "device": "auto",
        "served": {"dtype": "auto", "quant": "int8"},
    }  # fmt: skip
    assert left_behind(storage_dirs) == []


def test_the_newest_are_kept(source: Checkpoint, child_script: Install) -> None:
    child_script(OUTPUT)
    rows = [passport_create(checkpoint=source, wait=True).pk for _ in range(MAX_KEPT + 2)]
    assert set(Passport.objects.values_list("pk", flat=True)) == set(rows[2:])
    Passport.objects.update(active_at=timezone.now() - timedelta(days=99))
    storage_sweep()
    assert Passport.objects.count() == MAX_KEPT
    source.delete()
    storage_sweep()
    assert not Passport.objects.exists()


def test_one_is_made_at_a_time_of_files_that_are_there(source: Checkpoint) -> None:
    Passport.objects.create(source=source, source_name="tiny", active_at=timezone.now())
    with pytest.raises(QueueFull, match=r"another passport is running \(tiny, 0% done\)"):
        passport_create(checkpoint=source)
    source.state = "missing"
    with pytest.raises(Conflict, match="tiny is missing"):
        passport_create(checkpoint=source)


def test_what_changes_meanwhile_makes_no_passport(source: Checkpoint, child_script: Install) -> None:
    child_script(f"os.utime({str(Path(source.path) / 'model.safetensors')!r}, (1, 1))\n" + OUTPUT)
    row = passport_create(checkpoint=source, wait=True)
    assert (row.state, "has changed since it was inspected" in row.reason) == ("failed", True)


def test_a_fact_that_is_set_meanwhile_makes_no_passport(
    source: Checkpoint, child_script: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    child_script(OUTPUT)
    follow = passports.follow

    def meanwhile(*arguments, **options):
        services.checkpoint_override_set(checkpoint=source, fact="max_position_embeddings", value=32)
        return follow(*arguments, **options)

    monkeypatch.setattr(passports, "follow", meanwhile)
    assert passport_create(checkpoint=source, wait=True).reason.startswith("a fact was set by hand meanwhile")


@pytest.mark.usefixtures("idle")
def test_a_registration_is_followed_by_a_passport(source: Checkpoint, child_script: Install) -> None:
    child_script(OUTPUT)
    row = passport_next(wait=True)
    assert (row.state, row.is_automatic, row.source) == ("done", True, source)
    assert passport_next(wait=True) is None


@pytest.mark.usefixtures("idle")
def test_a_failed_passport_is_not_made_again_but_an_interrupted_one_is(
    source: Checkpoint, child_script: Install
) -> None:
    child_script("send(error={'class': 'InvalidRequest', 'message': 'no memory.'})")
    row = Passport.objects.create(source=source, source_name="tiny", active_at=timezone.now() - 2 * START_LIMIT)
    storage_sweep()
    row.refresh_from_db()
    assert row.reason.startswith("the server stopped while it made a passport")
    assert passport_next(wait=True).reason == "no memory."
    assert passport_next(wait=True) is None
    Passport.objects.update(reason="the server stopped while it made a passport; start it again")
    assert next_checkpoint() == source
    Passport.objects.create(
        source=source, source_name="tiny", state="failed", reason=row.reason, active_at=row.active_at
    )
    assert next_checkpoint() is None  # it may be what ends the server


def test_some_checkpoints_get_none_by_themselves(source: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    assert next_checkpoint() == source
    services.checkpoint_settings_update(checkpoint=source, values={"passport": "off"})
    assert next_checkpoint() is None
    services.checkpoint_settings_update(checkpoint=source, values={"passport": None})
    assert next_checkpoint() == source
    passports_choose(makes_passports=False, author_name="edwin")
    assert next_checkpoint() is None
    passports_choose(makes_passports=True, author_name="edwin")
    assert next_checkpoint() == source
    Checkpoint.objects.update(created_at=timezone.now())
    assert next_checkpoint() is None
    Checkpoint.objects.update(created_at=timezone.now() - timedelta(hours=1), state="missing")
    assert next_checkpoint() is None
    Checkpoint.objects.update(state="available")
    monkeypatch.setattr(passports, "machine_memory_bytes", lambda: 1 << 20)
    assert next_checkpoint() is None
    monkeypatch.undo()
    run = TrainingRun.objects.create(name="nano", directory="/x", **DEFAULTS)
    RunStep.objects.create(run=run, name="x", everything="", seen_at=timezone.now(), checkpoint=source)
    assert next_checkpoint() is None


def worker(**values: object) -> WorkerState:
    return WorkerState(worker_id="w", **values)


def test_idle_is_what_the_workers_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(*workers: WorkerState, used_at: float = 0.0, notice: str = "") -> bool:
        models = {"a": ModelState("a", last_used_at=used_at)}
        monkeypatch.setattr(live, "look", lambda: Live(models, workers, notice))
        return is_idle()

    assert seen(worker())
    assert seen(worker(), used_at=time.time() - 61)
    assert not seen(worker(), used_at=time.time() - 5)
    assert not seen(worker(num_active=1))
    assert not seen()
    assert not seen(worker(), notice="Redis can't be reached.")


def test_a_busy_or_unknown_server_makes_none(source: Checkpoint) -> None:
    """No Redis is there in these tests."""
    sweep()
    assert not Passport.objects.exists()


@pytest.mark.usefixtures("idle")
def test_another_that_runs_is_waited_for(source: Checkpoint, tmp_path: Path) -> None:
    other = services.checkpoint_register(path=copy_bare_demo(tmp_path / "other"), served_model_name="other")
    row = PASSPORTS.rows().create(source=other, source_name="other", active_at=timezone.now())
    assert passport_next(wait=True) is None
    row.refresh_from_db()
    assert row.state == "running"
