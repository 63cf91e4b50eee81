from __future__ import annotations

import pytest
import redis

from inference.records.usage import Usage
from inference.serving import accounting


class Usages:
    """Keeps usage records, which the tests here have no tables for."""

    def __init__(self) -> None:
        self.records: list[Usage] = []

    def offer(self, usage: Usage) -> None:
        self.records.append(usage)


@pytest.fixture
def usages(monkeypatch) -> Usages:
    found = Usages()
    monkeypatch.setattr(accounting, "usage_writer", lambda: found)
    return found


@pytest.fixture
def client(redis_client: redis.Redis) -> redis.Redis:
    return redis_client
