"""Run the work of callers in a few threads, with a bounded queue in which callers take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from inference.errors import QueueFull
from inference.host.caller_queues import CallerQueues

T = TypeVar("T")


class FairThreads:
    """Threads for blocking work of an event loop's callers.

    Args:
        work: Noun of the work, for the names of the threads and for errors: "grammars".
        max_waiting_each: Most of them of one caller.
        timeout_s: Most seconds that a call waits for a thread.
    """

    def __init__(
        self, num_threads: int, work: str, *, max_waiting: int, max_waiting_each: int, timeout_s: float
    ) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=work)
        self._work = work
        self._max_waiting, self._max_waiting_each, self._timeout_s = max_waiting, max_waiting_each, timeout_s
        self._num_free = num_threads
        self._waiting: CallerQueues[asyncio.Future[None]] = CallerQueues()

    async def run(self, caller: str, work: Callable[[], T]) -> T:
        """Return the result of ``work``, which a thread calls when it is the caller's turn.

        Raises:
            QueueFull: Too many calls wait, or this one has waited for too long.
        """
        if self._num_free:
            self._num_free -= 1
        else:
            await self._wait(caller)
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        future.add_done_callback(self._release)
        # A cancelled call keeps its thread until the work has ended, so that the thread isn't given away twice.
        return await asyncio.shield(future)

    async def _wait(self, caller: str) -> None:
        for held, limit, whose in (
            (self._waiting.count(caller), self._max_waiting_each, "of yours"),
            (len(self._waiting), self._max_waiting, "in all"),
        ):
            if held >= limit:
                raise QueueFull(
                    f"{held} {self._work} {whose} wait already, the limit is {limit}; try again in a moment.",
                    retry_after_s=1,
                )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(caller, turn)
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.shield(turn)
        except BaseException as error:
            if turn.done():
                self._release()
            else:
                self._waiting.remove(caller, turn)
            if isinstance(error, TimeoutError):
                raise QueueFull(
                    f"No thread for {self._work} was free for {self._timeout_s:g} s; try again in a moment.",
                    retry_after_s=1,
                ) from None
            raise

    def _release(self, _: object = None) -> None:
        head = next(self._waiting.heads(), None)
        if head is None:
            self._num_free += 1
            return
        self._waiting.remove(*head)
        head[1].set_result(None)
