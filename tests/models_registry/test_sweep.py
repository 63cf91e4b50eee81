"""The sweep of the storage: strays go, what is at work stays."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from models_registry import storage
from models_registry.checkpoint_jobs import START_LIMIT
from models_registry.models import Quantisation
from models_registry.sweep import storage_sweep
from models_registry.tasks import sweep
from tests.models_registry.test_uploads import left_behind

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]


def test_strays_are_removed(storage_dirs: Path) -> None:
    for name in ("uploads/3f9", "checkpoints/00000000-0000-0000-0000-000000000001"):
        (storage_dirs / name).mkdir(parents=True)
        (storage_dirs / name / "0.part").write_bytes(b"x")
    storage.blobs_dir()
    (storage_dirs / "blobs" / ("0" * 64)).write_bytes(b"x")
    report = storage_sweep()
    assert (report.removed_directories, report.removed_blobs) == (2, 0)  # the blob went with a directory's removal
    assert left_behind(storage_dirs) == []


def test_files_of_a_running_quantisation_stay_until_its_process_is_dead(storage_dirs: Path) -> None:
    row = Quantisation.objects.create(
        source_name="big", served_model_name="small", max_kl=1.0, active_at=timezone.now() - START_LIMIT * 2
    )
    for directory in (storage.upload_path(row.pk) / "checkpoint", storage.checkpoint_path(row.pk)):
        directory.mkdir(parents=True)
        (directory / "model.safetensors").write_bytes(b"x")
    with storage.upload_lock(row.pk) as held:
        assert held
        report = storage_sweep()
        assert (report.ended_jobs, report.removed_directories) == (0, 0)
        assert len(left_behind(storage_dirs)) == 2
    report = storage_sweep()
    assert (report.ended_jobs, report.removed_directories) == (1, 1)
    assert left_behind(storage_dirs) == []
    row.refresh_from_db()
    assert (row.state, "the server stopped" in row.reason) == ("failed", True)


def test_the_task_sweeps_and_looks_for_files(hybrid: Path) -> None:
    Quantisation.objects.create(
        source_name="big", served_model_name="small", max_kl=1.0, active_at=timezone.now() - timedelta(hours=1)
    )
    sweep()
    assert Quantisation.objects.get().state == "failed"
