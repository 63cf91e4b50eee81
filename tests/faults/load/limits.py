"""F44 and F45: limits of keys under simultaneous requests, and tokens that are charged, to the token."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from inference.transport import keys as redis_keys
from inference.values.limits import WINDOW_S
from tests.faults.load.client import Connection, Stream, completion, stream
from tests.faults.load.site import LoadSite
from tests.faults.site import wait_until

COMPLETIONS = "/v1/completions"
LIMIT = 10
NUM_AT_ONCE = 50
HELD_TOKENS = 900
TOKENS_PER_MINUTE = 6_000
FIRST_TOKENS = 900
CRASH_TOKENS = 500
NUM_FIRST = 3
"""Choices of the first request, which empties the bucket so far that time doesn't fill it while others run."""
AT_ONCE = 2
PAUSE_S = 0.5
"""Before a request that the quota refused is sent again."""


async def run_round(site: LoadSite, key: str, tenant: str) -> Counter[int]:
    """Send requests at once to all web processes, and leave them when each has a status; return the statuses."""
    connections = await asyncio.gather(
        *(Connection.opened(site.urls[number % len(site.urls)]) for number in range(NUM_AT_ONCE))
    )
    body = completion([40, 50, 60], HELD_TOKENS)
    await asyncio.gather(*(item.send(item.request(COMPLETIONS, body, key)) for item in connections))
    statuses = Counter(await asyncio.gather(*(item.head() for item in connections)))
    for item in connections:
        item.leave()
    await asyncio.to_thread(
        wait_until,
        lambda: not site.client.zcard(redis_keys.limit_open(tenant)),
        20,
        "the release of a round's requests",
    )
    return statuses


async def run_concurrent(site: LoadSite, rounds: int) -> list[Counter[int]]:
    """Rounds of simultaneous requests of a key with a limit of open requests; return the statuses of each."""
    key = site.key(max_concurrent=LIMIT)
    return [await run_round(site, key, site.tenant(key)) for _ in range(rounds)]


async def run_minute(site: LoadSite, rounds: int) -> list[tuple[Counter[int], int]]:
    """The same with a limit of requests a minute, each round with a new key.

    Returns:
        The statuses of each round, and the requests that its bucket has got back meanwhile.
    """
    found = []
    for _ in range(rounds):
        key = site.key(requests_per_minute=LIMIT)
        begun = time.monotonic()
        statuses = await run_round(site, key, site.tenant(key))
        found.append((statuses, int((time.monotonic() - begun) * LIMIT / WINDOW_S)))
    return found


@dataclass
class Charges:
    """What a key's requests were charged.

    Attributes:
        streams: What came of each request.
        num_cancelled: Requests whose clients left.
        spent: Tokens that were taken from the key's bucket and not given back, without what time has added.
        recorded: Tokens of all usage records.
        problems: Requests whose record has other tokens than the client, as sentences.
    """

    streams: list[Stream] = field(default_factory=list)
    num_cancelled: int = 0
    spent: float = 0.0
    recorded: int = 0
    problems: list[str] = field(default_factory=list)


class Quota:
    """Sends requests of all kinds with one key, and compares what the key was charged.

    Args:
        tokens_per_minute: The key's limit, so small that the tokens which time adds never fill the bucket.
    """

    def __init__(self, site: LoadSite, tokens_per_minute: int) -> None:
        self._site = site
        self._limit = tokens_per_minute
        self._key = site.key(tokens_per_minute=tokens_per_minute)
        self._tenant = site.tenant(self._key)
        self._first_at = 0.0
        self.found = Charges()

    async def begin(self) -> None:
        """Send the first request, so that the bucket isn't full while others run."""
        sent = asyncio.create_task(self.send(0, FIRST_TOKENS, n=NUM_FIRST, temperature=1.0, seed=0))
        while not (found := self._bucket()):
            await asyncio.sleep(0.002)
        self._first_at = found[1]
        await sent

    async def send(self, number: int, max_tokens: int, **members: Any) -> None:
        """Send a request, and read its response."""
        url = self._site.urls[number % len(self._site.urls)]
        options = {"stream_options": {"include_usage": True}}
        body = completion([40 + number % 400, 50, 60], max_tokens, **options, **members)
        while (found := await stream(url, COMPLETIONS, body, self._key)).status == 429:
            await asyncio.sleep(PAUSE_S)
        self.found.streams.append(found)

    async def send_and_leave(self, number: int, max_tokens: int, num_pieces: int, **members: Any) -> None:
        """Send a request, and leave after so many pieces of its stream."""
        body = completion([40 + number % 400, 50, 61], max_tokens, **members)
        while True:
            connection = await Connection.opened(self._site.urls[number % len(self._site.urls)])
            await connection.send(connection.request(COMPLETIONS, body, self._key))
            if await connection.head() != 429:
                break
            connection.leave()
            await asyncio.sleep(PAUSE_S)
        self.found.streams.append(connection.stream)
        self.found.num_cancelled += 1
        async for _ in connection.events():
            num_pieces -= 1
            if num_pieces <= 0:
                break
        connection.leave()

    def has_left(self, num_tokens: int) -> bool:
        """Whether the key may take so many tokens now."""
        bucket = self._bucket()
        assert bucket is not None
        level, at = bucket
        seconds, microseconds = self._site.client.time()
        return level + (seconds + microseconds / 1e6 - at) * self._limit / WINDOW_S >= num_tokens

    def _bucket(self) -> tuple[float, float] | None:
        """Tokens in the key's bucket, and the time of that level."""
        level, at = self._site.client.hmget(redis_keys.limit_counters(self._tenant), "tokens", "at")
        return None if level is None else (float(level), float(at))

    def check(self) -> Charges:
        """Compare clients, usage records and the bucket; call once, at the end."""
        found, site = self.found, self._site
        records = wait_until(self._records, 20, f"the usage records of {len(found.streams)} requests")
        wait_until(lambda: not site.client.zcard(redis_keys.limit_open(self._tenant)), 20, "the end of all requests")
        for item in found.streams:
            request_id = item.headers["x-request-id"]
            charged = records[request_id][1]
            is_whole = item.ends == ["done"]
            if is_whole and not charged == item.num_tokens == item.usage:
                found.problems.append(f"{request_id}: {item.num_tokens} tokens, usage {item.usage}, charged {charged}")
            if not is_whole and charged < item.num_tokens:
                found.problems.append(f"{request_id}: its client has {item.num_tokens} tokens, charged are {charged}")
        found.recorded = sum(sum(tokens) for tokens in records.values())
        bucket = self._bucket()
        assert bucket is not None
        level, at = bucket
        refilled = (at - self._first_at) * self._limit / WINDOW_S
        assert refilled < found.recorded, "the bucket was full meanwhile; the machine is too slow for this limit"
        found.spent = self._limit - level + refilled
        return found

    def _records(self) -> dict[str, tuple[int, int]]:
        """Tokens of prompt and output by request, when there is a record of each."""
        statement = "select request_id, prompt_tokens, completion_tokens from inference_usagerecord where tenant = ?"
        rows = {row[0]: (row[1], row[2]) for row in self._site.rows(statement, self._tenant)}
        return rows if len(rows) == len(self.found.streams) else {}


async def run_quota(site: LoadSite, num: int, *, num_crashes: int) -> Charges:
    """Send ``num`` requests of four kinds with one key, then kill the worker under three streams, so many times.

    The kinds: whole streams, streams of three choices, and both with clients that leave.
    """
    quota = Quota(site, TOKENS_PER_MINUTE)
    await quota.begin()
    places = asyncio.Semaphore(AT_ONCE)

    async def send(number: int) -> None:
        async with places:
            if number % 4 == 0:
                await quota.send(number, 30 + number % 40)
            elif number % 4 == 1:
                await quota.send(number, 30, n=3, temperature=1.0, seed=number)
            else:
                await quota.send_and_leave(number, 300, 1 + number % 5, n=number % 4 - 1)

    await asyncio.gather(*map(send, range(num)))
    for _ in range(num_crashes):
        await asyncio.to_thread(wait_until, site.models, 120, "the load of the model")
        # Else a quick machine ends each stream before time has added the tokens of the next one.
        await asyncio.to_thread(wait_until, partial(quota.has_left, 3 * (CRASH_TOKENS + 10)), 60, "tokens for three")
        streams = [asyncio.create_task(quota.send(number, CRASH_TOKENS)) for number in range(3)]
        await asyncio.to_thread(wait_until, lambda: site.num_open() == 3, 20, "three open requests")
        await asyncio.sleep(0.3)
        for worker_id in site.workers:
            site.signal(worker_id, signal.SIGKILL)
        await asyncio.gather(*streams)
    return await asyncio.to_thread(quota.check)
