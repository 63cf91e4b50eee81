"""Return Redis's time, the one clock by which processes on several machines compare leases and deadlines.

The clocks of machines differ. Each process measures the difference between Redis's clock and its own monotonic clock,
and measures again after ``REFRESH_S``, so that most calls need no round trip.
"""

from __future__ import annotations

import time
from typing import Any

REFRESH_S = 10.0

_measured: tuple[float, float] | None = None
"""Seconds from the monotonic clock to Redis's, and the monotonic time of the measurement."""


async def redis_now(client: Any) -> float:
    """Return Redis's time in seconds; ``client`` is asynchronous."""
    if _is_stale():
        _measure(await client.time())
    return redis_now_estimated()


def redis_now_sync(client: Any) -> float:
    """Return Redis's time in seconds; ``client`` is synchronous."""
    if _is_stale():
        _measure(client.time())
    return redis_now_estimated()


def redis_now_estimated() -> float:
    """Return Redis's time by the last measurement, without a call; this machine's time before the first."""
    measured = _measured
    return time.time() if measured is None else time.monotonic() + measured[0]


def _is_stale() -> bool:
    return _measured is None or time.monotonic() - _measured[1] > REFRESH_S


def _measure(reply: tuple[int, int]) -> None:
    global _measured
    seconds, microseconds = reply
    now = time.monotonic()
    _measured = (seconds + microseconds / 1e6 - now, now)
