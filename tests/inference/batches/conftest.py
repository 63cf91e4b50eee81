"""What tests of batches share: a file store of their own, turns without waiting, a model and its manager."""

from __future__ import annotations

import pytest

from tests.inference.batches.fakes import EchoManager, end_waits
from tests.inference.rows import make_checkpoint


@pytest.fixture(autouse=True)
def own_store(settings, tmp_path):
    settings.BLAZR_FILES_DIR = tmp_path / "files"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    end_waits(monkeypatch)


@pytest.fixture
def model(transactional_db):
    return make_checkpoint()


@pytest.fixture
def manager(model) -> EchoManager:
    return EchoManager(str(model.pk))
