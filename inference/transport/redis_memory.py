"""Read how much memory Redis may take, and describe settings of its memory that lose or refuse requests."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from inference.host.units import format_bytes
from inference.transport.open_requests import MAX_BYTES, byte_limits

REFRESH_S = 60.0

_read: tuple[int, float] | None = None
"""The memory that Redis may take, and the monotonic time at which it was read."""


async def redis_memory_bytes(client: Any) -> int:
    """Return the bytes that Redis may take (``maxmemory``), read once a minute; 0: it has no limit."""
    global _read
    if _read is None or time.monotonic() - _read[1] > REFRESH_S:
        # INFO rather than CONFIG, which servers that others run often refuse.
        _read = int((await client.info("memory")).get("maxmemory", 0)), time.monotonic()
    return _read[0]


def memory_warnings(memory: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the memory settings of Redis, with the remedy.

    Args:
        memory: The section ``memory`` of its INFO.
    """
    memory_bytes, policy = int(memory.get("maxmemory", 0)), str(memory.get("maxmemory_policy", "noeviction"))
    warnings: list[str] = []
    if not memory_bytes:
        return warnings
    if policy != "noeviction":
        warnings.append(
            f"Redis deletes keys when its memory is full (maxmemory-policy {policy}), and a deleted key is a lost "
            "request; set maxmemory-policy to noeviction."
        )
    if memory_bytes < 2 * MAX_BYTES:
        caller, _, all_ = byte_limits(memory_bytes)
        warnings.append(
            f"Redis has {format_bytes(memory_bytes)} of memory (maxmemory), so the queues hold {format_bytes(all_)} of "
            f"requests, {format_bytes(caller)} of one caller; set maxmemory to {format_bytes(2 * MAX_BYTES)} for "
            f"{format_bytes(MAX_BYTES)}."
        )
    return warnings
