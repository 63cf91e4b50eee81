"""Promoted checkpoints outlive what trainers do to their files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from django.utils import timezone

from models_registry import selectors, storage, uploads
from models_registry.aliases import alias_checkpoint_id, alias_delete, alias_promote
from models_registry.creations import Creation, creation_finish
from models_registry.detection.inspection import Inspection
from models_registry.models import Checkpoint, Passport, RunStep, TrainingRun
from models_registry.passport_gaps import passport_gap, passport_identity
from models_registry.runs.promoted_copies import copy_promoted
from models_registry.services import checkpoint_delete, checkpoint_files_verify, checkpoint_refresh
from models_registry.sweep import storage_sweep
from tests.models_registry.runs.trainers import PREFIX, hugging_face_step, oxidizr_step

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]

Looks = Callable[[int], list[RunStep]]


def registered(run: TrainingRun, number: int) -> Checkpoint:
    checkpoint = run.steps.get(number=number).checkpoint
    assert checkpoint is not None
    return checkpoint


@pytest.fixture
def one(run: TrainingRun, directory: Path, looks: Looks) -> Checkpoint:
    """The checkpoint after step 1, promoted."""
    oxidizr_step(directory, 1)
    looks(3)
    checkpoint = registered(run, 1)
    alias_promote(name="live", checkpoint=checkpoint)
    return checkpoint


def test_a_promoted_checkpoint_is_copied_once(run: TrainingRun, directory: Path, one: Checkpoint) -> None:
    assert [copied.pk for copied in copy_promoted(run)] == [one.pk]
    assert copy_promoted(run) == []
    one.refresh_from_db()
    assert one.owns_files and one.path == str(storage.copy_path(one.pk) / f"{PREFIX}_step_1.safetensors")
    assert Inspection.from_dict(one.inspection).directory == storage.copy_path(one.pk)
    assert all(stamp["sha256"] for stamp in one.file_stamps)
    for stamp in one.file_stamps:
        assert (directory / stamp["name"]).read_bytes() == (Path(one.directory) / stamp["name"]).read_bytes()
    checkpoint_files_verify(one)
    checkpoint_refresh(checkpoint=one)
    assert one.owns_files


def test_a_directory_with_shards_is_copied(run: TrainingRun, directory: Path, looks: Looks) -> None:
    place = hugging_face_step(directory, 5, num_shards=2)
    looks(3)
    alias_promote(name="live", checkpoint=registered(run, 5))
    (copied,) = copy_promoted(run)
    copied.refresh_from_db()
    shutil.rmtree(place)
    assert copied.path == copied.directory == str(storage.copy_path(copied.pk))
    checkpoint_files_verify(copied)
    checkpoint_refresh(checkpoint=copied)


def test_it_outlives_the_trainers_files(run: TrainingRun, directory: Path, one: Checkpoint, looks: Looks) -> None:
    copy_promoted(run)
    (directory / f"{PREFIX}_step_1.safetensors").unlink()
    looks(2)
    one.refresh_from_db()
    checkpoint_files_verify(one)
    assert (one.state, alias_checkpoint_id("live")) == ("available", one.pk)


def test_what_is_written_over_is_another_checkpoint(
    run: TrainingRun, directory: Path, one: Checkpoint, looks: Looks
) -> None:
    copy_promoted(run)
    oxidizr_step(directory, 1, seed=3)
    looks(3)
    other = registered(run, 1)
    assert other.pk != one.pk and not other.owns_files
    assert (alias_checkpoint_id("live"), alias_checkpoint_id("nano")) == (one.pk, other.pk)
    one.refresh_from_db()
    checkpoint_files_verify(one)


def test_a_passport_holds_on(run: TrainingRun, one: Checkpoint) -> None:
    Passport.objects.create(
        source=one, source_name="x", state="done", identity=passport_identity(one), active_at=timezone.now()
    )
    assert passport_gap(one) == ""
    copy_promoted(run)
    one.refresh_from_db()
    assert passport_gap(one) == ""


def test_only_what_another_alias_means_is_copied(run: TrainingRun, directory: Path, looks: Looks) -> None:
    oxidizr_step(directory, 1)
    looks(3)
    assert copy_promoted(run) == []
    assert not registered(run, 1).owns_files


def test_a_full_disk_is_said_and_tried_again(
    run: TrainingRun, one: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(storage, "free_bytes", lambda: uploads.DISK_RESERVE_BYTES + 1000)
        assert copy_promoted(run) == []
    reason = run.steps.get().reason
    assert reason.startswith("promoted, but not copied: its 2.9 MiB don't fit") and "1000 B to give" in reason
    assert not registered(run, 1).owns_files and not storage.copy_path(one.pk).exists()
    assert len(copy_promoted(run)) == 1
    assert run.steps.get().reason == ""


def test_files_that_change_while_they_are_copied_are_left(
    run: TrainingRun, directory: Path, one: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = storage.copy_files

    def write_meanwhile(*arguments: object) -> dict[str, str]:
        digests = copied(*arguments)
        os.utime(directory / f"{PREFIX}_step_1.safetensors")
        return digests

    monkeypatch.setattr(storage, "copy_files", write_meanwhile)
    assert copy_promoted(run) == []
    assert "promoted, but not copied" in run.steps.get().reason
    assert not selectors.checkpoint_get(one.pk).owns_files
    assert not storage.checkpoint_path(one.pk).exists()


def test_a_killed_copy_is_made_again(run: TrainingRun, one: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was copied before the row could name it, and half a copy, are replaced."""
    target = storage.copy_path(one.pk)
    for place in (target, target.with_name("partial")):
        place.mkdir(parents=True)
        (place / "config.json").write_text("half")
    storage_sweep()
    assert len(copy_promoted(run)) == 1
    one.refresh_from_db()
    checkpoint_files_verify(one)
    assert sorted(path.name for path in target.parent.iterdir()) == ["copy", "lock"]


def test_what_a_killed_copy_left_is_swept(run: TrainingRun, one: Checkpoint) -> None:
    """The trainer may have deleted the files since, so that nobody copies again; a copy under way is left alone."""
    partial = storage.copy_path(one.pk).with_name("partial")
    partial.mkdir(parents=True)
    with storage.copy_lock(one.pk):
        storage_sweep()
        assert partial.exists()
    storage_sweep()
    assert not storage.checkpoint_path(one.pk).exists()


def test_who_holds_the_lock_copies_alone(run: TrainingRun, one: Checkpoint) -> None:
    with storage.copy_lock(one.pk) as is_mine:
        assert is_mine
        assert copy_promoted(run) == []
    assert len(copy_promoted(run)) == 1


def test_a_model_made_of_a_copy_outlives_it(run: TrainingRun, directory: Path, one: Checkpoint) -> None:
    copy_promoted(run)
    one = selectors.checkpoint_get(one.pk)
    child = creation_finish(Creation(name="child", source=one), None)
    for alias in ("live", "nano"):
        alias_delete(name=alias)
    checkpoint_delete(checkpoint=one)
    checkpoint_files_verify(child)


def test_a_copy_goes_with_its_checkpoint(run: TrainingRun, directory: Path, one: Checkpoint) -> None:
    copy_promoted(run)
    one = selectors.checkpoint_get(one.pk)
    storage_sweep()
    assert Path(one.path).exists()
    key = one.pk
    for alias in ("live", "nano"):
        alias_delete(name=alias)
    checkpoint_delete(checkpoint=one)
    assert not storage.checkpoint_path(key).exists()
    assert (directory / f"{PREFIX}_step_1.safetensors").exists()
