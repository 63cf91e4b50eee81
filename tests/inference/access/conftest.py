"""The counters' Redis, empty after each test."""

from __future__ import annotations

import pytest
import redis


@pytest.fixture
def counters(redis_urls_in_settings):
    client = redis.Redis.from_url(redis_urls_in_settings.client)
    yield client
    client.flushall()
    client.close()
