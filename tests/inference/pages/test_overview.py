"""The overview."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client

from inference.values.states import ResidentModel, WorkerState
from models_registry import live, services
from tests.accounts import account
from tests.inference.pages.test_jobs import make_job
from tests.models_registry.detection.builders import small_hybrid, write_checkpoint

pytestmark = pytest.mark.django_db
MIB = 1 << 20


def test_models_workers_and_jobs_are_summed_up(client: Client, tmp_path: Path, monkeypatch) -> None:
    row = services.checkpoint_register(path=write_checkpoint(tmp_path / "tiny", *small_hybrid()))
    resident = ResidentModel(
        str(row.pk), "ready", memory_bytes=300 * MIB, states_bytes=200 * MIB, num_running=2, tokens_per_s=12.5
    )
    worker = WorkerState(
        "w-0", heartbeat_at=1e12, memory_used_bytes=300 * MIB, memory_budget_bytes=1000 * MIB, models=(resident,)
    )
    late = WorkerState("w-1", heartbeat_at=1e12, is_late=True, step_age_s=70)
    from inference.values.states import merge_models

    monkeypatch.setattr(live, "worker_states_sync", lambda: {"w-0": worker, "w-1": late})
    monkeypatch.setattr(live, "model_states_sync", lambda: merge_models([worker, late]))
    make_job(batch_label="nightly")
    client.force_login(account("owner", "superuser"))
    text = client.get("/").content.decode()
    for piece in ("of 1 registered", "12.5", "100.0 MiB weights + 200.0 MiB reserved states", "no step for 70 s",
                  "alive", "nightly", "1 jobs queued"):  # fmt: skip
        assert piece in text, piece


def test_viewers_see_no_jobs(client: Client) -> None:
    make_job(batch_label="nightly")
    client.force_login(account("vera", "viewer"))
    text = client.get("/").content.decode()
    assert "nightly" not in text and "The operator adds models" in text
