"""Measure for how long the event loop stands still: whoever blocks it delays every request of the process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

TICK_S = 0.02
MIN_BLOCK_S = 0.005
"""Shorter ones are the loop's own work."""


async def watch_loop(record: Callable[[float], object], *, tick_s: float = TICK_S) -> None:
    """Call ``record`` with the seconds of each block until cancelled; a block shorter than a tick may be missed.

    A sleep that ends late tells of a block. Time in which this process had no processor is no block: other processes
    had it, or the machine stood still.
    """
    while True:
        wall, processor = time.perf_counter(), time.process_time()
        await asyncio.sleep(tick_s)
        late_s = time.perf_counter() - wall - tick_s
        blocked_s = min(late_s, time.process_time() - processor)
        if blocked_s >= MIN_BLOCK_S:
            record(blocked_s)
