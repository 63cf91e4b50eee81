"""F37: clients that leave in every stage of a request, over HTTP and WebSockets."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import connect

from tests.faults.load.client import Connection, completion, stream
from tests.faults.load.site import LoadSite

KINDS = ("json", "sse", "websocket")
STAGES = ("body", "sent", "prefill", "decode", "deltas")
"""Where a client leaves: within its body, at once, while its prompt is computed, some time later, between deltas."""
LONG = 900
"""Tokens of a request that doesn't end by itself while the test looks at it."""
MAX_PREFILL_S = 0.04
FREED_WITHIN_S = 0.25
NUM_RUNNING = 4
"""Clients at the same time."""


@dataclass
class Disconnects:
    """What became of requests whose clients left.

    Attributes:
        freed_s: Seconds from the close of a connection until the request's slot and blocks were free.
        dequeued_s: Seconds from the last close until none of the waiting requests was admitted any more.
        num_unadmitted: Clients that left before their request was in an engine.
        stages: Numbers of requests by the stage in which the engine ended them.
        problems: What is left behind.
    """

    freed_s: list[float] = field(default_factory=list)
    dequeued_s: float = 0.0
    num_unadmitted: int = 0
    stages: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def quantile(values: list[float], share: float) -> float:
    """Return the smallest value that so many of all values don't exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class Leavers:
    """Sends requests, and leaves them."""

    def __init__(self, site: LoadSite, seed: int = 1) -> None:
        self._site = site
        self._dice = random.Random(seed)
        self._numbers = itertools.count()
        self._left_at: dict[tuple[int, ...], float] = {}

    def _prompt(self, num_tokens: int, stage: str = "", kind: str = "") -> tuple[tuple[int, ...], list[int]]:
        """A prompt that no other request has, and its first tokens."""
        number = next(self._numbers)
        mark = (40 + number // 400, 40 + number % 400, 60 + (*STAGES, "").index(stage), 70 + (*KINDS, "").index(kind))
        return mark, [*mark, *(40 + self._dice.randrange(400) for _ in range(num_tokens - len(mark)))]

    async def run(self, num: int) -> Disconnects:
        """Leave ``num`` requests in all stages, and then those of a full engine and of its queue."""
        found = Disconnects()
        for url in self._site.urls:
            await stream(url, "/v1/completions", completion([40, 50], 4))
        before = self._site.holdings()
        pending = iter(list(itertools.islice(itertools.cycle(itertools.product(STAGES, KINDS)), num)))

        async def client() -> None:
            for stage, kind in pending:
                await (self._websocket(stage) if kind == "websocket" else self._http(stage, kind))

        await asyncio.gather(*(client() for _ in range(NUM_RUNNING)))
        await self._fill_and_leave(found, max(4, num // 5))
        found.problems += await asyncio.to_thread(self._site.left_behind, before)
        begun, aborts = self._site.requests()
        for mark, left_at in self._left_at.items():
            if mark in aborts:
                found.freed_s.append(aborts[mark].at - left_at)
                found.stages[aborts[mark].stage] += 1
            elif mark in begun:
                found.problems.append(f"a request was computed to its end although its client left: {mark}")
            else:
                found.num_unadmitted += 1
        return found

    # --- one client ------------------------------------------------------------------------------

    async def _http(self, stage: str, kind: str) -> None:
        mark, prompt = self._prompt(LONG if stage == "prefill" else 8, stage, kind)
        members: dict[str, Any] = {} if kind == "sse" else {"stream": False}
        connection = await Connection.opened(self._site.urls[mark[1] % 2])
        data = connection.request("/v1/completions", completion(prompt, 1000 - len(prompt), **members))
        await connection.send(data[: len(data) - 10] if stage == "body" else data)
        if stage == "deltas" and kind == "sse":
            await connection.head()
            await self._pieces(connection, 3)
        else:
            await self._pause(stage)
        self._left_at[mark] = connection.leave(reset=self._dice.random() < 0.5)

    @staticmethod
    async def _pieces(connection: Connection, num: int) -> None:
        async for _ in connection.events():
            num -= 1
            if not num:
                return

    async def _pause(self, stage: str) -> None:
        if stage == "prefill":
            await asyncio.sleep(self._dice.uniform(0, MAX_PREFILL_S))
        elif stage in ("decode", "deltas"):
            await asyncio.sleep(self._dice.uniform(0.1, 0.2))

    async def _websocket(self, stage: str) -> None:
        mark, prompt = self._prompt(LONG if stage == "prefill" else 8, stage, "websocket")
        url = self._site.urls[mark[1] % 2].replace("http", "ws")
        socket = await connect(f"{url}/v1/stream", max_size=None)
        body = completion(prompt, 1000 - len(prompt))
        if stage != "body":  # else it leaves without a frame
            await socket.send(json.dumps({"type": "completion", "id": "a", "request": body}))
        if stage == "deltas":
            for _ in range(4):
                await socket.recv()
        else:
            await self._pause(stage)
        self._left_at[mark] = time.monotonic()
        socket.transport.abort()

    # --- a full engine ---------------------------------------------------------------------------

    async def _fill_and_leave(self, found: Disconnects, num_queued: int) -> None:
        """Fill the engine, leave requests that wait for it, and then all that it computes, at once."""
        (model,) = self._site.models()
        num_slots = model.stats["num_state_slots_total"]
        num_fillers = num_slots + max(2, num_slots // 4)  # as many as the engine takes (inference.worker.start_queue)
        fillers = [await self._filler() for _ in range(num_fillers)]
        reading = [asyncio.create_task(self._read(connection)) for _, connection in fillers]
        await self._until(lambda: self._site.num_open() == num_fillers)
        await self._until(lambda: sum(bool(connection.stream.arrivals) for _, connection in fillers) >= num_slots)
        queued = [await self._filler(stream=bool(number % 2)) for number in range(num_queued)]
        await self._until(lambda: self._site.num_open() == num_fillers + num_queued)
        for mark, connection in queued:
            self._left_at[mark] = connection.leave()
        last = time.monotonic()
        await self._until(lambda: self._site.num_open() <= num_fillers)
        found.dequeued_s = time.monotonic() - last
        for mark, connection in fillers:
            self._left_at[mark] = connection.leave()
        await asyncio.gather(*reading, return_exceptions=True)

    async def _filler(self, **members: Any) -> tuple[tuple[int, ...], Connection]:
        mark, prompt = self._prompt(8)
        connection = await Connection.opened(self._site.urls[mark[1] % 2])
        await connection.send(connection.request("/v1/completions", completion(prompt, LONG, **members)))
        return mark, connection

    @staticmethod
    async def _read(connection: Connection) -> None:
        await connection.head()
        async for _ in connection.events():
            pass

    @staticmethod
    async def _until(check: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not check():
                await asyncio.sleep(0.005)
