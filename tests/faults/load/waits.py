"""How well the estimates of waiting requests agree with their waits: callers who send one request after the other."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field

from tests.faults.load.client import TIMEOUT_S, Connection
from tests.faults.load.site import LoadSite

NUM_CALLERS = 64
NUM_SEQS = 8
"""Requests that the worker computes together: the others wait."""
TOKENS = (64, 900)
FACTOR = 2.0
"""An estimate is right if it is at most so many times the wait, and at least one part of so many."""


@dataclass
class Waits:
    """Pairs of an estimate and the seconds that the request then waited.

    Attributes:
        first: The first estimate of each request that waited.
        every: All of them.
        num_unknown: Requests that started before there was an estimate, though they had events.
        num_at_once: Requests that started before the first event was due.
        problems: What went wrong, as sentences.
    """

    first: list[tuple[float, float]] = field(default_factory=list)
    every: list[tuple[float, float]] = field(default_factory=list)
    num_unknown: int = 0
    num_at_once: int = 0
    problems: list[str] = field(default_factory=list)


def right_share(pairs: list[tuple[float, float]]) -> float:
    """Return the share of estimates that are within ``FACTOR`` of the wait."""
    return sum(wait / FACTOR <= estimate <= wait * FACTOR for estimate, wait in pairs) / max(1, len(pairs))


async def run_waits(site: LoadSite, num: int, seed: int) -> Waits:
    """Send requests of many lengths until ``num`` of them have waited with an event."""
    found, draws = Waits(), random.Random(seed)

    async def caller(number: int) -> None:
        while len(found.first) + found.num_unknown < num and not found.problems:
            max_tokens = draws.randint(*TOKENS)
            await _send(site.urls[number % len(site.urls)], max_tokens, found)

    await asyncio.gather(*(caller(number) for number in range(NUM_CALLERS)))
    return found


async def _send(url: str, max_tokens: int, found: Waits) -> None:
    body = {
        "model": "demo", "messages": [{"role": "user", "content": "What is a list?"}], "max_tokens": max_tokens,
        "ignore_eos": True, "temperature": 0, "stream": True, "stream_options": {"include_queue": True},
    }  # fmt: skip
    estimates: list[tuple[float, float | None]] = []
    started_at: float | None = None
    connection = await Connection.opened(url)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await connection.send(connection.request("/v1/chat/completions", body))
            if await connection.head() != 200:
                found.problems.append((await connection.content()).decode()[:300])
                return
            async for event in connection.server_events():
                data = next((line[6:] for line in event.split(b"\n") if line.startswith(b"data: ")), b"")
                if event.startswith(b"event: blazr.queue\n"):
                    estimates.append((time.monotonic(), json.loads(data)["queue"]["estimated_s"]))
                elif data and started_at is None:
                    started_at = time.monotonic()
    finally:
        connection.leave()
    if started_at is None:
        found.problems.append("a stream ended without a chunk")
        return
    pairs = [(estimate, started_at - at) for at, estimate in estimates if estimate is not None]
    found.num_at_once += not estimates
    found.num_unknown += bool(estimates) and not pairs
    found.first += pairs[:1]
    found.every += pairs
