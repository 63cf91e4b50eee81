"""Complete checkpoints become revisions, once each; what a trainer does meanwhile is never half registered."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import ChecksumMismatch
from models_registry import services
from models_registry.aliases import alias_checkpoint_id, alias_get
from models_registry.models import Checkpoint, RunStep, TrainingRun
from models_registry.runs import watching
from models_registry.runs.services import run_stop
from models_registry.runs.watching import run_look
from tests.models_registry.runs.trainers import hugging_face_step, oxidizr_step

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]

Looks = Callable[[int], list[RunStep]]


def states(run: TrainingRun) -> list[tuple[int | None, str, int | None]]:
    return [(step.number, step.state, step.revision) for step in run.steps.all()]


def test_each_complete_checkpoint_is_a_revision(run: TrainingRun, directory: Path, looks: Looks) -> None:
    oxidizr_step(directory, 100)
    oxidizr_step(directory, 20)
    hugging_face_step(directory, 300)
    assert looks(1) == []
    assert states(run) == [(20, "incomplete", None), (100, "incomplete", None), (300, "incomplete", None)]
    assert [step.number for step in looks(1)] == [20, 100, 300]
    oxidizr_step(directory, None)
    looks(3)
    assert states(run) == [(n, "registered", i) for i, n in enumerate([20, 100, 300, None], start=1)]
    found = alias_get("nano")
    assert [row.checkpoint_name for row in found.revisions.all()] == [
        "nano-final", "nano-step-300", "nano-step-100", "nano-step-20",
    ]  # fmt: skip
    one = run.steps.get(number=20).checkpoint
    assert (one.source, one.origin, one.path) == (
        "path",
        "step 20 of the run nano",
        str(next(directory.glob("*_20.*"))),
    )
    assert alias_checkpoint_id("nano@1") == one.pk
    assert alias_checkpoint_id("nano") == run.steps.get(number=None).checkpoint_id
    services.checkpoint_files_verify(one)
    assert looks(3) == []
    assert Checkpoint.objects.count() == 4


def test_half_a_file_is_registered_when_it_is_whole(run: TrainingRun, directory: Path, looks: Looks) -> None:
    file = oxidizr_step(directory, 1)
    content = file.read_bytes()
    for length in (0, 7, 900, len(content) - 1):
        file.write_bytes(content[:length])
        assert looks(3) == []
        assert file.name in run.steps.get().reason
    file.write_bytes(content)
    assert [step.number for step in looks(2)] == [1]


def test_a_look_alone_decides_nothing(run: TrainingRun, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may have its whole length before its content."""
    monkeypatch.setattr(watching, "STILL_FOR", timedelta(hours=1))
    file = oxidizr_step(directory, 1)
    for _ in range(3):
        assert run_look(run) == []
    RunStep.objects.update(seen_at=timezone.now() - timedelta(minutes=61))
    os.utime(file, (1, 1))  # written meanwhile
    assert run_look(run) == []
    RunStep.objects.update(seen_at=timezone.now() - timedelta(minutes=61))
    assert len(run_look(run)) == 1


def test_a_clock_that_was_set_back_costs_a_look(run: TrainingRun, directory: Path, looks: Looks) -> None:
    oxidizr_step(directory, 1)
    looks(1)
    RunStep.objects.update(seen_at=timezone.now() + timedelta(days=1))
    assert (len(looks(1)), len(looks(1))) == (0, 1)


def test_files_that_change_while_they_are_inspected(
    run: TrainingRun, directory: Path, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = oxidizr_step(directory, 1)
    looks(1)
    inspect = watching.inspect_in_child

    def slow(path: Path, overrides: dict):
        found = inspect(path, overrides)
        os.utime(file, (1, 1))
        return found

    monkeypatch.setattr(watching, "inspect_in_child", slow)
    assert looks(1) == []
    assert (states(run), Checkpoint.objects.count()) == ([(1, "incomplete", None)], 0)
    monkeypatch.setattr(watching, "inspect_in_child", inspect)
    assert len(looks(2)) == 1


def test_a_checkpoint_that_was_written_again_is_read_again(run: TrainingRun, directory: Path, looks: Looks) -> None:
    oxidizr_step(directory, 1)
    looks(2)
    run.steps.update(loss=3.0, samples=["old"], measured_at=timezone.now())
    step = run.steps.get()
    oxidizr_step(directory, 1, seed=3)
    with pytest.raises(ChecksumMismatch):
        services.checkpoint_files_verify(step.checkpoint)
    assert len(looks(2)) == 1
    again = run.steps.get()
    assert (again.checkpoint, again.revision, again.loss, again.samples) == (step.checkpoint, 1, None, [])
    services.checkpoint_files_verify(again.checkpoint)
    assert Checkpoint.objects.count() == 1


def test_what_inspection_refuses_keeps_its_reason_until_it_changes(
    run: TrainingRun, directory: Path, looks: Looks
) -> None:
    place = hugging_face_step(directory, 1)
    (place / "config.json").write_text('{"model_type": "unheard-of", "vocab_size": "x"}')
    assert looks(3) == []
    step = run.steps.get()
    assert (step.state, step.checkpoint, bool(step.reason)) == ("refused", None, True)
    shutil.copy(PREBUILT_DIRECTORY / "config.json", place / "config.json")
    assert len(looks(2)) == 1


def test_rotated_checkpoints_leave_their_figures(run: TrainingRun, directory: Path, looks: Looks) -> None:
    files = [oxidizr_step(directory, number) for number in (1, 2)]
    files[1].write_bytes(b"half")
    looks(2)
    run.steps.filter(number=1).update(loss=2.5)
    for file in files:
        file.unlink()
    looks(1)
    (kept,) = run.steps.all()
    assert (kept.number, kept.loss) == (1, 2.5)
    services.checkpoint_states_refresh()
    assert Checkpoint.objects.get().state == "missing"


def test_a_directory_that_is_gone_is_a_state(run: TrainingRun, directory: Path, looks: Looks) -> None:
    oxidizr_step(directory, 1)
    looks(2)
    directory.rename(directory.with_name("elsewhere"))
    assert looks(1) == []
    run.refresh_from_db()
    assert (run.state, run.reason) == (
        "missing",
        f"{directory} can't be read (no such file or directory); restore it and watching goes on by itself, or stop "
        "it. Registered checkpoints need their files to be served.",
    )
    directory.with_name("elsewhere").rename(directory)
    oxidizr_step(directory, 2)
    looks(2)
    run.refresh_from_db()
    assert (run.state, run.reason, len(states(run))) == ("watching", "", 2)


def test_a_stopped_run_is_left_alone(run: TrainingRun, directory: Path) -> None:
    oxidizr_step(directory, 1)
    other = TrainingRun.objects.get()
    run_stop(other, "vera")
    assert run_look(run) == []
    other.refresh_from_db()
    assert (other.state, other.reason, other.steps.count()) == ("stopped", "stopped by vera", 0)


def test_two_watchers_register_a_checkpoint_once(
    run: TrainingRun, directory: Path, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    oxidizr_step(directory, 1)
    looks(1)
    inspect = watching.inspect_in_child

    def overtaken(path: Path, overrides: dict):
        monkeypatch.setattr(watching, "inspect_in_child", inspect)
        assert len(run_look(TrainingRun.objects.get())) == 1
        return inspect(path, overrides)

    monkeypatch.setattr(watching, "inspect_in_child", overtaken)
    assert looks(1) == []
    assert (states(run), Checkpoint.objects.count()) == ([(1, "registered", 1)], 1)


def test_facts_that_a_person_has_set_hold_for_later_checkpoints(
    run: TrainingRun, directory: Path, looks: Looks
) -> None:
    oxidizr_step(directory, 1)
    looks(2)
    services.checkpoint_override_set(checkpoint=run.steps.get().checkpoint, fact="max_position_embeddings", value=32)
    oxidizr_step(directory, 2)
    looks(2)
    assert run.steps.get(number=2).checkpoint.max_position_embeddings == 32


def test_a_name_that_is_taken_is_a_reason(run: TrainingRun, directory: Path, looks: Looks) -> None:
    services.checkpoint_register(path=PREBUILT_DIRECTORY)
    Checkpoint.objects.update(served_model_name="nano")  # of a time when a run's name was left to others
    oxidizr_step(directory, 1)
    looks(2)
    step = run.steps.get()
    assert (step.state, step.reason) == (
        "incomplete", "not registered: 'nano' is the name of a checkpoint; choose another one for the alias.",
    )  # fmt: skip
