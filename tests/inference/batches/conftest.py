"""What tests of batches share: a file store of their own, turns without waiting, a model and its manager."""

from __future__ import annotations

import pytest

from inference.batches import runner
from inference.jobs import hints
from tests.inference.batches.fakes import EchoManager
from tests.inference.rows import make_checkpoint


@pytest.fixture(autouse=True)
def own_store(settings, tmp_path):
    settings.BLAZR_FILES_DIR = tmp_path / "files"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Turns are taken by hand, without a thread: everything that is due happens at once."""
    for name in ("POLL_S", "FLUSH_S", "HEARTBEAT_S", "RETRY_DELAY_S"):
        monkeypatch.setattr(runner, name, 0.0)
    monkeypatch.setattr(hints, "wake_workers", lambda: None)


@pytest.fixture
def model(transactional_db):
    return make_checkpoint()


@pytest.fixture
def manager(model) -> EchoManager:
    return EchoManager(str(model.pk))
