"""What clients were promised and what they got: one end for each request, and the tokens of an undisturbed run."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import httpx

from inference.transport import keys as redis_keys
from tests.faults.site import Site, wait_until


@dataclass
class Entry:
    """One streamed request."""

    prompt: list[int]
    max_tokens: int
    seed: int | None = None
    status: int = 0
    tokens: list[int] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def key(self) -> tuple[tuple[int, ...], int, int | None]:
        """What its tokens depend on."""
        return tuple(self.prompt), self.max_tokens, self.seed

    @property
    def body(self) -> dict[str, Any]:
        """Body of a completion without a stream: greedy, or sampled with the seed."""
        sampling = {"temperature": 0} if self.seed is None else {"temperature": 0.8, "seed": self.seed}
        return {
            "model": "demo", "prompt": self.prompt, "max_tokens": self.max_tokens, "ignore_eos": True,
            "return_token_ids": True, **sampling,
        }  # fmt: skip


Reference = Callable[[list[Entry]], list[list[int]]]
"""Returns the tokens that each request has to get."""


class Ledger:
    """Streams requests in threads, and checks what became of each."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._threads: list[threading.Thread] = []
        self.entries: list[Entry] = []

    def send(self, prompt: list[int], max_tokens: int, seed: int | None = None) -> Entry:
        """Stream a completion in a thread of its own, from each web process in turn."""
        entry = Entry(prompt, max_tokens, seed)
        url = self._site.urls[len(self.entries) % len(self._site.urls)]
        self.entries.append(entry)
        thread = threading.Thread(target=stream, args=(url, entry), daemon=True)
        self._threads.append(thread)
        thread.start()
        return entry

    def wait(self, timeout_s: float) -> None:
        """Wait until every request has ended."""
        wait_until(lambda: not any(thread.is_alive() for thread in self._threads), timeout_s, "the end of all requests")

    def check(self, reference: Reference, *, failed: Collection[int] = ()) -> None:
        """Check that each request ended once and exactly, and that nothing of it is left.

        Args:
            reference: The tokens of an undisturbed run.
            failed: Numbers of the requests that have to fail.
        """
        for number in failed:
            assert self.entries[number].ends == ["error"], self.entries[number]
        whole = [entry for number, entry in enumerate(self.entries) if number not in failed]
        assert [(entry.status, entry.ends, entry.error) for entry in whole] == [(200, ["done"], "")] * len(whole)
        for entry, tokens in zip(whole, reference(whole), strict=True):
            assert entry.tokens == tokens, (entry.prompt, len(entry.tokens))
        # The last words of a stream come before the ends that workers and web processes write down.
        client, workers = self._site.client, self._site.workers
        wait_until(lambda: client.hlen(redis_keys.MESSAGES) == 0, 30, "the last end")
        wait_until(lambda: client.zcard(redis_keys.OPEN_REQUESTS) == 0, 30, "the release of all requests")
        wait_until(lambda: not any(map(self._site.held_by, workers)), 30, "the release of all messages")


def stream(url: str, entry: Entry) -> None:
    """Stream a completion from a web process until it ends, whatever the end is."""
    try:
        body = {**entry.body, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as response:
            entry.status = response.status_code
            if entry.status != 200:
                entry.error = response.read().decode()
                entry.ends.append("error")
                return
            for line in response.iter_lines():
                if line.startswith("data: "):
                    _record(entry, line[6:])
    except httpx.HTTPError as error:
        entry.ends.append(f"cut: {error!r}")


def _record(entry: Entry, data: str) -> None:
    if data == "[DONE]":
        entry.ends += [] if entry.ends == ["error"] else ["done"]
        return
    chunk: dict[str, Any] = json.loads(data)
    if "error" in chunk:
        entry.ends.append("error")
        entry.error = chunk["error"]["message"]
    for choice in chunk.get("choices", ()):
        entry.tokens += choice.get("token_ids") or ()
