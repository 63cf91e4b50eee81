"""F42 and F43: more requests than the server can compute, and one tenant's flood beside another's few requests."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tests.faults.load.client import Stream, completion, stream
from tests.faults.load.site import LoadSite

COMPLETIONS = "/v1/completions"
TOKENS = 400
"""So many that ten times the capacity is some 70 requests a second, which a client beside the server can send."""
RAMP_S = 1.0
MAX_FILL_S = 120.0
"""Most seconds until the queue is full."""
FLOOD_CLIENTS = 100
FLOOD_TOKENS = (30, 120)
REFUSALS = (429, 503)


@dataclass
class Overload:
    """What a server does with more than it can compute.

    Attributes:
        capacity, goodput: Tokens a second that clients get, with as many clients as the engine takes, and overloaded.
        capacity_use, use: Processors that each process kept busy then, by name; see ``LoadSite.processor_s``.
        statuses: Numbers of the overload's requests, by status; 0: the client left before there was one.
        refused_s: Seconds from a request to its refusal.
        baseline_s: Time to the first token of a request alone.
        recovered_s: Seconds from the last request to the first one whose first token comes as fast as before.
        problems: Refusals without a time to retry, streams that broke, and what is left behind.
    """

    capacity: float = 0.0
    goodput: float = 0.0
    capacity_use: dict[str, float] = field(default_factory=dict)
    use: dict[str, float] = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)
    refused_s: list[float] = field(default_factory=list)
    baseline_s: float = 0.0
    recovered_s: float = 0.0
    problems: list[str] = field(default_factory=list)


class Meter:
    """Sends requests of some tokens, and counts the tokens that come.

    Attributes:
        streams: What came of each request, also while it runs.
        num_refused: Number of refused requests.
    """

    def __init__(self, site: LoadSite) -> None:
        self._site = site
        self._dice = random.Random(1)
        self.streams: list[Stream] = []
        self.num_refused = 0

    async def send(self, key: str = "", max_tokens: int = TOKENS) -> Stream:
        """Send one request, to each web process in turn."""
        found = Stream()
        self.streams.append(found)
        prompt = [40 + self._dice.randrange(400) for _ in range(6)]
        url = self._site.urls[len(self.streams) % len(self._site.urls)]
        await stream(url, COMPLETIONS, completion(prompt, max_tokens), key, found)
        self.num_refused += found.status in REFUSALS
        return found

    def tokens_between(self, begin: float, end: float) -> float:
        """Tokens a second."""
        arrivals = (arrival for item in self.streams for arrival in item.arrivals)
        return sum(number for at, number in arrivals if begin <= at < end) / (end - begin)


@contextlib.asynccontextmanager
async def closed_loop(meter: Meter, num: int, key: str = "", max_tokens: tuple[int, int] = (TOKENS, TOKENS)):
    """So many clients that each send a request when the one before has ended, for a block."""
    dice = random.Random(2)

    async def client() -> None:
        while True:
            found = await meter.send(key, dice.randint(*max_tokens))
            if found.status != 200:
                await asyncio.sleep(0.1)

    tasks = [asyncio.create_task(client()) for _ in range(num)]
    try:
        yield
    finally:
        await leave(tasks)


async def leave(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Close the connections of requests that still run."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def ticks(interval_s: float, seconds: float) -> AsyncIterator[float]:
    """Yield the time at each interval; late ones at once, because clients of an open loop don't wait for a server."""
    begun = time.monotonic()
    number = 0
    while (due := number * interval_s) < seconds:
        await asyncio.sleep(max(0.0, begun + due - time.monotonic()))
        yield time.monotonic()
        number += 1


async def run_overload(site: LoadSite, seconds: float, *, factor: float = 10.0) -> Overload:
    """Measure the capacity, then send ``factor`` times as many requests, first until the queue is full."""
    found = Overload()
    before = site.holdings()
    found.baseline_s = median([(await Meter(site).send(max_tokens=4)).ttft_s for _ in range(5)])
    meter = Meter(site)
    async with closed_loop(meter, num_in_engine(site)):
        await asyncio.sleep(RAMP_S)
        begun, used = time.monotonic(), site.processor_s()
        await asyncio.sleep(seconds / 2)
        found.capacity = meter.tokens_between(begun, time.monotonic())
        found.capacity_use = _use(site, begun, used)
    meter = Meter(site)
    tasks: list[asyncio.Task[Stream]] = []
    filled, used = 0.0, {}
    async for now in ticks(TOKENS / (factor * found.capacity), MAX_FILL_S + seconds):
        if not filled and meter.num_refused:
            filled, used = now, site.processor_s()
        if filled and now >= filled + seconds:
            break
        tasks.append(asyncio.create_task(meter.send()))
    assert filled, f"no request was refused within {MAX_FILL_S:.0f} s"
    ended = time.monotonic()
    found.use = _use(site, filled, used)
    await leave(tasks)
    found.goodput = meter.tokens_between(filled, ended)
    _judge(found, meter.streams)
    while (await Meter(site).send(max_tokens=4)).ttft_s > 1.5 * found.baseline_s + 0.05:
        assert time.monotonic() < ended + 60, "requests are slower for a minute after an overload"
        await asyncio.sleep(0.1)
    found.recovered_s = time.monotonic() - ended
    found.problems += await asyncio.to_thread(site.left_behind, before)
    return found


def _use(site: LoadSite, since: float, used: dict[str, float]) -> dict[str, float]:
    seconds = time.monotonic() - since
    return {name: (now - used[name]) / seconds for name, now in site.processor_s().items()}


def _judge(found: Overload, streams: list[Stream]) -> None:
    for item in streams:
        found.statuses[item.status] += 1
        if item.status in REFUSALS:
            found.refused_s.append(item.began_at - item.sent_at)
            if "retry-after" not in item.headers:
                found.problems.append(f"a refusal without Retry-After: {item.error[:100]}")
        elif item.ends not in ([], ["done"]) or item.gaps:
            found.problems.append(f"status {item.status}: {item.ends} {item.gaps} {item.error[:100]}")


def num_in_engine(site: LoadSite) -> int:
    """As many requests as the engines compute together."""
    return sum(model.stats["num_state_slots_total"] for model in site.models())


async def run_tenants(site: LoadSite, seconds: int) -> list[float]:
    """Flood as one tenant, and send a request each second as another; return the other's seconds to first tokens."""
    flood, other = site.key(), site.key()
    meter, quiet = Meter(site), Meter(site)
    tasks: list[asyncio.Task[Stream]] = []
    async with closed_loop(meter, FLOOD_CLIENTS, flood, FLOOD_TOKENS):
        await asyncio.sleep(2 * RAMP_S)
        async for _ in ticks(1.0, seconds):
            tasks.append(asyncio.create_task(quiet.send(other, 20)))
        await asyncio.wait(tasks, timeout=30)
    assert len(meter.streams) > 2 * FLOOD_CLIENTS / 2, "there was no flood"
    return [item.ttft_s for item in quiet.streams]
