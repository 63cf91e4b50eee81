"""``blazr ps``: a row per model in memory, with its adapters."""

from __future__ import annotations

import argparse

import pytest

from blazr_site.commands import ps
from inference.errors import Unavailable
from inference.values.states import ResidentAdapter, ResidentModel, WorkerState
from tests.inference.rows import make_adapter, make_checkpoint

pytestmark = pytest.mark.django_db


def test_models_are_shown_with_their_adapters(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    base = make_checkpoint("base")
    keys = [str(make_adapter(base, name).pk) for name in ("sql", "csv")]
    adapters = tuple(map(ResidentAdapter, [*keys, "gone"]))
    models = (
        ResidentModel(str(base.pk), "ready", memory_bytes=3 << 20, adapters=adapters),
        ResidentModel("x", "loading"),
    )
    monkeypatch.setattr(ps, "worker_states_sync", lambda: {"w": WorkerState("w", device="cpu", models=models)})
    assert ps.run(argparse.Namespace()) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "base" in shown and "3.0 MiB" in shown and "csv, gone, sql" in shown and "loading 0%" in shown


def test_nothing_in_memory_and_no_server_are_said(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ps, "worker_states_sync", lambda: {"w": WorkerState("w")})
    assert ps.run(argparse.Namespace()) == 0 and "No model is in memory (1 worker" in capsys.readouterr().out

    def refuse() -> None:
        raise Unavailable("away")

    monkeypatch.setattr(ps, "worker_states_sync", refuse)
    assert ps.run(argparse.Namespace()) == 1 and "No server is running" in capsys.readouterr().out
