"""FairThreads: callers take turns, queues have limits, and a cancelled call gives its turn back."""

from __future__ import annotations

import asyncio
import threading

import pytest

from inference.errors import QueueFull
from inference.host.fair_threads import FairThreads


@pytest.fixture
def gate():
    found = threading.Event()
    yield found
    found.set()


def threads(**limits):
    return FairThreads(1, "texts", **{"max_waiting": 8, "max_waiting_each": 4, "timeout_s": 60.0, **limits})


async def started(pool, caller, work):
    task = asyncio.create_task(pool.run(caller, work))
    await asyncio.sleep(0)
    return task


async def test_callers_take_turns(gate):
    pool, order = threads(), []
    tasks = [await started(pool, "a", gate.wait)]
    for caller in ("a", "a", "a", "b"):
        tasks.append(await started(pool, caller, lambda caller=caller: order.append(caller)))
    gate.set()
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "a", "a"]
    assert await pool.run("c", lambda: 5) == 5


async def test_queues_are_limited(gate):
    pool = threads(max_waiting=3, max_waiting_each=2)
    tasks = [await started(pool, caller, gate.wait) for caller in ("a", "a", "a")]
    with pytest.raises(QueueFull, match="2 texts of yours wait already, the limit is 2"):
        await pool.run("a", gate.wait)
    tasks.append(await started(pool, "b", gate.wait))
    with pytest.raises(QueueFull, match="3 texts in all wait already, the limit is 3"):
        await pool.run("c", gate.wait)
    gate.set()
    await asyncio.gather(*tasks)


async def test_waiting_ends(gate):
    pool = threads(timeout_s=0.05)
    first = await started(pool, "a", gate.wait)
    with pytest.raises(QueueFull, match=r"No thread for texts was free for 0\.05 s"):
        await pool.run("b", gate.wait)
    gate.set()
    await first
    assert await pool.run("b", lambda: 5) == 5


@pytest.mark.parametrize("when", ["waiting", "running"])
async def test_a_cancelled_call_gives_its_turn_back(gate, when):
    pool = threads()
    first = await started(pool, "a", gate.wait)
    second = await started(pool, "b", lambda: 1)
    (second if when == "waiting" else first).cancel()
    await asyncio.sleep(0.01)
    gate.set()
    assert await pool.run("c", lambda: 5) == 5
    assert pool._num_free == 1


async def test_an_error_reaches_the_caller(gate):
    def fail():
        raise ValueError("no")

    pool = threads()
    with pytest.raises(ValueError, match="no"):
        await pool.run("a", fail)
    assert await pool.run("a", lambda: 5) == 5
