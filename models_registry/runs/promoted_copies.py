"""Copy the promoted checkpoints of a run, because trainers delete old ones and write files again.

A copy lies in ``<data>/checkpoints/<checkpoint id>/copy``. The checkpoint's row names it as soon as it is whole: from
then on the trainer's files are another checkpoint's, if they change. A watcher may be killed at any moment, and several
may copy at the same time: what isn't whole is copied again, and only one of them changes the row.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

from django.db import transaction
from django.utils import timezone

from inference.errors import BlazrError, StorageFull
from inference.host.units import format_bytes
from models_registry import storage
from models_registry.models import AliasRevision, Checkpoint, Passport, RunStep, TrainingRun
from models_registry.passport_gaps import passport_identity
from models_registry.services import checkpoint_files_verify, file_stamp, own_stamps
from models_registry.uploads import available_bytes


def copy_promoted(run: TrainingRun) -> list[Checkpoint]:
    """Copy the run's checkpoints that other aliases mean or meant; returns those that were copied.

    A checkpoint that can't be copied has the reason at its step, and is tried again at the next call.
    """
    copied = []
    for step in uncopied_steps(run):
        assert step.checkpoint is not None
        try:
            is_copied, reason = _copy(step.checkpoint), ""
        except (BlazrError, OSError) as error:
            is_copied, reason = False, f"promoted, but not copied: {error}"
        if is_copied:
            copied.append(step.checkpoint)
        if reason != step.reason:  # but for what a look has said meanwhile
            same = RunStep.objects.filter(pk=step.pk, checkpoint=step.checkpoint, reason=step.reason)
            same.update(reason=reason)
    return copied


def uncopied_steps(run: TrainingRun) -> list[RunStep]:
    """Return the steps whose checkpoints are promoted, and still the trainer's files: ``copy_promoted`` copies them."""
    promoted = AliasRevision.objects.exclude(alias__name=run.name).values("checkpoint")
    steps = run.steps.filter(
        state=RunStep.State.REGISTERED, checkpoint__in=promoted, checkpoint__source=Checkpoint.Source.PATH,
        checkpoint__state=Checkpoint.State.AVAILABLE,
    ).select_related("checkpoint")  # fmt: skip
    return [step for step in steps if step.checkpoint and not step.checkpoint.owns_files]


def _copy(checkpoint: Checkpoint) -> bool:
    """Copy the files and let the row name the copy; False: another watcher copies them, or changed the row.

    Raises:
        ChecksumMismatch: The files aren't those that were inspected.
        StorageFull: The disk has no room for them.
    """
    checkpoint_files_verify(checkpoint)
    stamps = own_stamps(checkpoint)
    names = [stamp["name"] for stamp in stamps]
    needed = sum(stamp["size_bytes"] for stamp in stamps)
    free = max(0, available_bytes())
    if needed > free:
        raise StorageFull(
            f"its {format_bytes(needed)} don't fit on the server's disk, which has {format_bytes(free)} to give; free "
            "some space, or raise the trainer's limit of checkpoints, since its own files are used."
        )
    with storage.copy_lock(checkpoint.pk) as is_mine:
        if not is_mine:
            return False
        checkpoint.refresh_from_db()
        if checkpoint.owns_files:
            return False
        target = storage.copy_path(checkpoint.pk)
        is_moved = False
        try:
            digests = storage.copy_files(Path(checkpoint.directory), names, target)
            checkpoint_files_verify(checkpoint)  # nobody wrote while they were read
            is_moved = _move(checkpoint, target, digests)
        finally:
            if not is_moved:
                storage.remove_checkpoint_files(checkpoint.pk)
        return is_moved


def _move(checkpoint: Checkpoint, directory: Path, sha256: Mapping[str, str]) -> bool:
    """Let a checkpoint be a copy of its files; passports that held go on to hold.

    Args:
        directory: Where the copies are, under the same names.
        sha256: Digests of the copies by name.

    Returns:
        False: The row was changed meanwhile.
    """
    moved = copy.copy(checkpoint)
    moved.directory = str(directory)
    moved.path = str(directory / Path(checkpoint.path).relative_to(checkpoint.directory))
    moved.inspection = {**checkpoint.inspection, "directory": moved.directory}
    moved.file_stamps = [
        file_stamp(stamp["name"], (directory / stamp["name"]).stat(), sha256[stamp["name"]])
        if stamp["name"] in sha256
        else stamp
        for stamp in checkpoint.file_stamps
    ]
    with transaction.atomic():
        same = Checkpoint.objects.filter(pk=checkpoint.pk, path=checkpoint.path, file_stamps=checkpoint.file_stamps)
        names = ("directory", "path", "inspection", "file_stamps")
        if not same.update(**{name: getattr(moved, name) for name in names}, updated_at=timezone.now()):
            return False
        held = Passport.objects.filter(source=checkpoint, identity=passport_identity(checkpoint))
        held.update(identity=passport_identity(moved))
    return True
