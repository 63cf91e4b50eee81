"""Waiting requests learn where they stand, from one reader for all of them."""

from __future__ import annotations

import asyncio

import pytest

from inference.errors import Unavailable
from inference.serving import queue_watch as module
from inference.serving.queue_watch import QueueWatch
from inference.transport.queue_places import Queues


@pytest.fixture
def reads(monkeypatch):
    """The models of each reading of the queues; each takes the first of them out."""
    found: list[set[str]] = []

    async def read(checkpoint_ids):
        found.append(set(checkpoint_ids))
        if len(found) == 1:
            raise Unavailable("Redis is away.")
        return Queues((), {"a": [f"r{number}" for number in range(len(found) - 2, 9)]})

    monkeypatch.setattr(module, "read_queues", read)
    monkeypatch.setattr(module, "PERIOD_S", 0.01)
    return found


async def test_places_come_until_the_block_ends_and_one_task_reads_for_all(reads):
    watch, unknown = QueueWatch(), []

    async def positions(name, count):
        found = []
        with watch.watching(name, "a") as watcher:
            async for place in watcher.places():
                if place is None:
                    unknown.append(name)
                    continue
                found.append(place.position)
                if len(found) == count:
                    watcher.end()
        return found

    async with asyncio.timeout(60):
        first, second = await asyncio.gather(positions("r3", 3), positions("r4", 2))
    assert first == [4, 3, 2] and second == [5, 4]
    assert sorted(unknown) == ["r3", "r4"], "of the reading that failed"
    assert len(reads) == 4 and all(models == {"a"} for models in reads)
    await asyncio.sleep(0.05)
    assert len(reads) <= 5  # nobody watches, so nothing is read
    async with asyncio.timeout(60):
        assert len(await positions("r8", 1)) == 1
