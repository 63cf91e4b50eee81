from __future__ import annotations

import pytest

from inference.records import usage
from inference.records.usage import UsageWriter


@pytest.fixture
def writer(monkeypatch):
    monkeypatch.setattr(usage, "FLUSH_INTERVAL_S", 24 * 3600.0)
    found = UsageWriter()
    # Only the test stores: the thread would have a connection of its own.
    found._closed = True
    return found
