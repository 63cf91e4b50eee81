"""What tests of schedules share: a file store of their own, and a model."""

from __future__ import annotations

import pytest

from inference.jobs import hints
from tests.inference.rows import make_checkpoint


@pytest.fixture(autouse=True)
def own_store(settings, tmp_path, monkeypatch):
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    monkeypatch.setattr(hints, "wake_workers", lambda: None)


@pytest.fixture
def model(db):
    return make_checkpoint()
