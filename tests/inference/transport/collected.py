"""The events that a hub passes on for one request."""

from __future__ import annotations

import asyncio

from inference.transport.hub import StreamHub
from inference.values.messages import GenerationEvent


class Collected:
    """Registers a request with a hub, and keeps its events."""

    def __init__(self, hub: StreamHub, request_id: str) -> None:
        self.events: list[GenerationEvent] = []
        self._has_ended = asyncio.Event()
        self.subscription = hub.register(request_id, self._receive)

    @property
    def num_delivered(self) -> int:
        """Output tokens so far, over all choices."""
        return sum(map(len, self.subscription.delivered()))

    def _receive(self, event: GenerationEvent) -> None:
        self.events.append(event)
        if event["type"] in ("done", "error"):
            self._has_ended.set()

    async def all(self, timeout_s: float = 60) -> list[GenerationEvent]:
        """All events, once the terminal one has come."""
        async with asyncio.timeout(timeout_s):
            await self._has_ended.wait()
        return self.events
