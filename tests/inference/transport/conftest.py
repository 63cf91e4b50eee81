"""What the tests of the transport have: a client of a real Redis."""

from __future__ import annotations

import pytest
import redis


@pytest.fixture
def client(redis_client: redis.Redis) -> redis.Redis:
    """A client of the session's Redis, instead of pytest-django's of the site."""
    return redis_client
