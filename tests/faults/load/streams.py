"""F40: many streams at once, each whole, in order and with the tokens of an undisturbed run."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from inference.transport import keys as redis_keys
from tests.faults.load.client import Stream, completion, stream
from tests.faults.load.disconnects import quantile
from tests.faults.load.site import LoadSite

NUM_PROMPTS = 16
RESPONSE_EVERY = 4
"""Of so many streams one is a response, whose events have sequence numbers."""


@dataclass
class Streams:
    """What came of all streams.

    Attributes:
        num_complete: Streams that ended once, as they should.
        seconds: From the first request to the last end.
        delays_s: From a worker's writing of deltas to Redis to their arrival here.
        memory_bytes: Of the largest web process, at most.
        problems: Streams that are cut, have gaps or wrong tokens, and what is left behind.
    """

    num_complete: int = 0
    seconds: float = 0.0
    delays_s: list[float] = field(default_factory=list)
    memory_bytes: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def p99_delay_s(self) -> float:
        """99th percentile of ``delays_s``."""
        return quantile(self.delays_s, 0.99)


class Watcher(threading.Thread):
    """Reads what the workers write for the web processes, and looks at the memory of these.

    Attributes:
        written_at: Unix times of a request's events with tokens, in order.
        memory_bytes: The most that a web process had.
    """

    def __init__(self, site: LoadSite) -> None:
        super().__init__(daemon=True)
        self._site = site
        self._stopping = False
        self.written_at: dict[str, list[float]] = defaultdict(list)
        self.memory_bytes = 0

    def run(self) -> None:
        client = self._site.client
        last: dict[Any, Any] = dict.fromkeys(client.scan_iter(redis_keys.out("*")), "$")
        looked_at = 0.0
        while not self._stopping:
            for key, entries in client.xread(last, block=20) or ():
                for entry_id, fields in entries:
                    last[key] = entry_id
                    self._take(int(entry_id.split(b"-")[0]) / 1000, fields)
            if time.monotonic() - looked_at > 0.2:
                looked_at = time.monotonic()
                self.memory_bytes = max(self.memory_bytes, self._site.web_memory())

    def _take(self, at: float, fields: dict[bytes, bytes]) -> None:
        if b"e" in fields:
            for event in redis_keys.unpack(fields[b"e"]):
                if event["type"] == "delta" and event.get("token_ids"):
                    self.written_at[event["request_id"]].append(at)

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self.join(10)


def body_of(number: int, max_tokens: int) -> tuple[str, dict[str, Any]]:
    """Path and body of a stream."""
    if number % RESPONSE_EVERY == 0:
        text = f"Say {number % NUM_PROMPTS}"
        return "/v1/responses", {
            "model": "demo", "input": text, "max_output_tokens": max_tokens, "temperature": 0, "stream": True,
            "store": False,
        }  # fmt: skip
    prompt = [40 + number % NUM_PROMPTS, 50, 60, 70]
    return "/v1/completions", completion(prompt, max_tokens, stream_options={"include_usage": True})


async def run_streams(site: LoadSite, num: int, max_tokens: int) -> Streams:
    """Run the different streams alone, then all at once."""
    found = Streams()
    right = [await _stream(site, number, max_tokens) for number in range(NUM_PROMPTS)]
    for item in right:
        assert item.ends == ["done"], item
    before = site.holdings()
    watcher = Watcher(site)
    watcher.start()
    offset = time.time() - time.monotonic()
    begun = time.monotonic()
    try:
        streams = await asyncio.gather(*(_stream(site, number, max_tokens) for number in range(num)))
    finally:
        await asyncio.to_thread(watcher.stop)
    found.seconds = time.monotonic() - begun
    found.memory_bytes = watcher.memory_bytes
    for number, item in enumerate(streams):
        problem = _problem(item, right[number % NUM_PROMPTS])
        if problem:
            found.problems.append(f"stream {number}: {problem}")
        else:
            found.num_complete += 1
        written = watcher.written_at.get(item.headers.get("x-request-id", ""), [])
        if len(written) == len(item.arrivals):
            found.delays_s += [at + offset - then for then, (at, _) in zip(written, item.arrivals, strict=True)]
    found.problems += await asyncio.to_thread(site.left_behind, before)
    return found


async def _stream(site: LoadSite, number: int, max_tokens: int) -> Stream:
    path, body = body_of(number, max_tokens)
    return await stream(site.urls[number % len(site.urls)], path, body)


def _problem(item: Stream, right: Stream) -> str:
    if item.status != 200 or item.ends != ["done"]:
        return f"status {item.status}, ends {item.ends}: {item.error[:200]}"
    if item.gaps:
        return "; ".join(itertools.islice(item.gaps, 3))
    if (item.tokens, item.text) != (right.tokens, right.text):
        return f"{item.num_tokens} tokens {item.text!r}, undisturbed {right.num_tokens} {right.text!r}"
    if item.final_text not in (None, item.text):
        return f"the deltas are {item.text!r}, the response is {item.final_text!r}"
    if item.usage not in (None, item.num_tokens):
        return f"{item.num_tokens} tokens, the usage is {item.usage}"
    return ""
