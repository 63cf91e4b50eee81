"""Work in tasks of its own: it ends, its first error is raised, and each loop has one object."""

from __future__ import annotations

import asyncio
import gc

import pytest

from inference.errors import QueueFull, Unavailable
from inference.host.coroutines import PerLoop, run_all, run_in_background


def test_work_in_the_background_outlives_its_caller():
    done = []

    async def work() -> None:
        await asyncio.sleep(0.01)
        done.append(True)

    async def caller() -> None:
        run_in_background(work())
        raise asyncio.CancelledError

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(caller())
        gc.collect()  # nothing but the loop's weak reference would hold it
        await asyncio.sleep(0.05)

    asyncio.run(main())
    assert done == [True]


def test_the_first_error_ends_the_others():
    ended = []

    async def fail() -> None:
        raise QueueFull("full")

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    with pytest.raises(QueueFull, match="full"):
        asyncio.run(run_all([wait(), fail()]))
    assert ended == [True]


def test_an_error_of_work_within_work_is_raised_itself():
    async def fail() -> None:
        raise Unavailable("gone")

    with pytest.raises(Unavailable, match="gone"):
        asyncio.run(run_all([run_all([fail()])]))


def test_other_errors_stay_groups():
    async def fail() -> None:
        raise ValueError

    with pytest.raises(ExceptionGroup):
        asyncio.run(run_all([fail()]))


def test_each_loop_has_one_object():
    per_loop = PerLoop(object)

    async def twice() -> tuple[object, object]:
        return per_loop(), per_loop()

    first, second = asyncio.run(twice()), asyncio.run(twice())
    assert first[0] is first[1]
    assert first[0] is not second[0]
