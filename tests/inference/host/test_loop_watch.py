"""What the loop's watch calls a block: work on the loop, and not a process that stands still."""

from __future__ import annotations

import asyncio
import time

from inference.host.loop_watch import watch_loop

BLOCK_S = 0.2


def work() -> None:
    until = time.process_time() + BLOCK_S
    while time.process_time() < until:
        pass


def sleep() -> None:
    time.sleep(BLOCK_S)


def longest(block) -> float:
    """The longest block of a loop that does nothing but this, once."""
    found = [0.0]

    async def run() -> None:
        watch = asyncio.create_task(watch_loop(found.append, tick_s=0.001))
        await asyncio.sleep(0.01)
        block()
        await asyncio.sleep(0.01)
        watch.cancel()

    asyncio.run(run())
    return max(found)


def test_work_on_the_loop_is_a_block():
    assert longest(work) >= 0.9 * BLOCK_S


def test_time_without_a_processor_is_none():
    assert longest(sleep) < 0.5 * BLOCK_S
