"""Remove what dead processes left in the storage of the registry: open rows, directories and blobs."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from models_registry import storage
from models_registry.checkpoint_jobs import CheckpointJobs, State
from models_registry.models import Checkpoint, PullJob, Upload
from models_registry.passports import PASSPORTS
from models_registry.quantisations import QUANTISATIONS
from models_registry.received_blobs import received_sweep
from models_registry.runs.measuring import STEP_MEASUREMENTS
from models_registry.span_measurements import SPAN_MEASUREMENTS
from models_registry.uploads import uploads_sweep

JOBS: tuple[CheckpointJobs[Any], ...] = (QUANTISATIONS, SPAN_MEASUREMENTS, STEP_MEASUREMENTS, PASSPORTS)


@dataclass(frozen=True, slots=True)
class SweepReport:
    """Numbers of uploads and jobs that a sweep ended, and of files that it removed."""

    ended_uploads: int
    ended_jobs: int
    removed_directories: int
    removed_blobs: int


def storage_sweep() -> SweepReport:
    """End dead uploads and jobs, and remove stray files. Safe at any time, in any process."""
    ended_uploads, ended_jobs = uploads_sweep(), sum(jobs.sweep() for jobs in JOBS)
    received_sweep()
    return SweepReport(ended_uploads, ended_jobs, _remove_strays(), storage.prune_blobs())


def _remove_strays() -> int:
    """Remove directories without a row. Rows are read after the listing, as a row precedes its files."""
    removed = 0
    places: tuple[tuple[Any, Callable[[str], None], Callable[[list[str]], set[str]]], ...] = (
        (storage.uploads_dir(), storage.remove_upload_files, _running_ids),
        (storage.checkpoints_dir(), _remove_checkpoint_files, _owned_checkpoint_ids),
    )
    for place, remove, spoken_for in places:
        found = [entry.name for entry in place.iterdir()]
        for name in set(found) - spoken_for(found):
            remove(name)
            removed += 1
    return removed


def _ids(names: list[str]) -> list[uuid.UUID]:
    found = []
    for name in names:
        try:
            found.append(uuid.UUID(name))
        except ValueError:
            continue
    return found


def _running_ids(names: list[str]) -> set[str]:
    """Return the ids of uploads and jobs that haven't ended."""
    keys = list(Upload.objects.filter(pk__in=_ids(names), state__in=Upload.OPEN).values_list("pk", flat=True))
    for jobs in JOBS:
        keys += jobs.rows().filter(pk__in=_ids(names), state=State.RUNNING).values_list("pk", flat=True)
    keys += PullJob.objects.filter(pk__in=_ids(names), state=State.RUNNING).values_list("pk", flat=True)
    return {str(key) for key in keys}


def _remove_checkpoint_files(name: str) -> None:
    """Remove a directory, unless a copy is made in it, or has been meanwhile."""
    for key in _ids([name]):
        with storage.copy_lock(key) as is_free:
            if is_free and not _owned_checkpoint_ids([name]):
                storage.remove_checkpoint_files(name)
        return
    storage.remove_checkpoint_files(name)


def _owned_checkpoint_ids(names: list[str]) -> set[str]:
    """Return the ids of checkpoints whose files are there, and of jobs that are making some."""
    rows = Checkpoint.objects.filter(pk__in=_ids(names)).only("source", "directory")
    return {str(row.pk) for row in rows if row.owns_files} | _running_ids(names)
