"""The memory that Redis may take: read now and then, and what is wrong with it."""

from __future__ import annotations

import pytest

from inference.transport import redis_memory
from inference.transport.redis_memory import memory_warnings, redis_memory_bytes


class Server:
    def __init__(self) -> None:
        self.memory_bytes = 5

    async def info(self, section: str) -> dict[str, int]:
        assert section == "memory"
        return {"maxmemory": self.memory_bytes}


async def test_the_limit_is_read_once_a_minute(monkeypatch):
    monkeypatch.setattr(redis_memory, "_read", None)
    server = Server()
    assert await redis_memory_bytes(server) == 5
    server.memory_bytes = 7
    assert await redis_memory_bytes(server) == 5
    monkeypatch.setattr(redis_memory, "REFRESH_S", -1.0)
    assert await redis_memory_bytes(server) == 7


@pytest.mark.parametrize(
    ("memory_bytes", "policy", "named"),
    [
        (0, "allkeys-lru", []),  # without a limit nothing is evicted
        (1 << 30, "noeviction", []),
        (1 << 30, "allkeys-lru", ["maxmemory-policy allkeys-lru"]),
        (128 << 20, "noeviction", ["hold 64.0 MiB of requests, 16.0 MiB of one caller; set maxmemory to 1.0 GiB"]),
        (128 << 20, "volatile-ttl", ["to noeviction", "128.0 MiB of memory"]),
    ],
)
def test_settings_that_lose_or_refuse_requests_are_named(memory_bytes, policy, named):
    found = memory_warnings({"maxmemory": memory_bytes, "maxmemory_policy": policy})
    assert len(found) == len(named)
    assert all(part in text for part, text in zip(named, found, strict=True)), found
