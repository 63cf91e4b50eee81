"""Subscription: the events of one request on their way from the hub to whoever reads them."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from inference.errors import BlazrError, GenerationFailed
from inference.values.messages import GenerationEvent

MAX_BUFFERED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PublishedMessage:
    """Where the message of a request was put, and how it looks, to see whether it is still there."""

    queue: str
    tag: str
    envelope: bytes


class Hub(Protocol):
    """What a subscription asks of the hub that it belongs to."""

    def forget(self, request_id: str) -> None:
        """Drop a subscription that ended or was closed."""
        ...

    def cancel_soon(self, request_id: str) -> None:
        """Tell the workers, without waiting, that nobody wants the request any more."""
        ...


class Inbox:
    """Subscriptions of one reader that have something for it, in the order in which it came.

    A reader of many subscriptions waits here once, without a task for each of them. Belongs to the event loop.
    """

    def __init__(self) -> None:
        self._ready: deque[Subscription] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, subscription: Subscription) -> None:
        """Note that a subscription has events, or has ended; noting it twice does no harm."""
        self._ready.append(subscription)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self, timeout_s: float | None = None) -> Subscription | None:
        """The next subscription with something to take; None: nothing came in time. One reader at a time."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while True:
            while self._ready:
                subscription = self._ready.popleft()
                if subscription.is_ready:
                    return subscription
            if deadline is not None and loop.time() >= deadline:
                return None
            waiter = self._waiter = loop.create_future()
            timer = None if deadline is None else loop.call_at(deadline, _wake, waiter)
            try:
                await waiter
            finally:
                if timer is not None:
                    timer.cancel()
                self._waiter = None


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Subscription:
    """The events of one request, as they come; ``async for`` gives lists of all that wait.

    Iteration ends after the terminal event. Belongs to the hub's event loop. One that was registered with an inbox is
    read through that: ``Inbox.get`` and ``take``.

    Attributes:
        request_id: The request.
        attempt: The attempt whose events count now.
        checkpoint_id, deadline, published: Set by the broker when the request is published.
        num_delivered: Output tokens handed to the reader so far, over all choices.
    """

    def __init__(self, hub: Hub, request_id: str, inbox: Inbox | None = None) -> None:
        self.request_id = request_id
        self.attempt = 0
        self.checkpoint_id: str | None = None
        self.deadline: float | None = None
        self.published: PublishedMessage | None = None
        self.num_missed = 0
        self.created_at = self.last_event_at = time.monotonic()
        self._hub = hub
        self._next_index = 0
        self._local_index = 0
        self._started = False
        self._ended = False
        self._closed = False
        self._events: list[GenerationEvent] = []
        self._buffered_bytes = 0
        self._delivered: dict[int, array[int]] = {}
        self._finished_choices: set[int] = set()
        self._inbox = Inbox() if inbox is None else inbox
        self._follower: Callable[[GenerationEvent], bool] | None = None

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> list[GenerationEvent]:
        """All events that wait; waits for the first one.

        Raises:
            StopAsyncIteration: The terminal event was given, or the subscription was closed.
        """
        while not self.is_ready:
            await self._inbox.get()
        events = self.take()
        if not events:
            raise StopAsyncIteration
        return events

    @property
    def is_ready(self) -> bool:
        """Whether ``take`` has something to give, or to say."""
        return bool(self._events) or self._ended or self._closed

    def take(self) -> list[GenerationEvent]:
        """All events that wait; empty, when the subscription is ready: it has ended."""
        events, self._events = self._events, []
        self._buffered_bytes = 0
        return events

    @property
    def is_ended(self) -> bool:
        """Whether the terminal event has come (it may still wait to be read)."""
        return self._ended

    @property
    def num_delivered(self) -> int:
        """Output tokens so far."""
        return sum(len(tokens) for tokens in self._delivered.values())

    def delivered(self) -> list[list[int]]:
        """Token ids per choice that the reader has or is about to get."""
        return [list(self._delivered.get(choice, ())) for choice in range(max(self._delivered, default=-1) + 1)]

    def fail(self, error: BlazrError) -> None:
        """End the request here with an error event."""
        if self._ended:
            return
        self._push(
            {
                "request_id": self.request_id,
                "attempt": self.attempt,
                "index": self._local_index,
                "type": "error",
                "error": error.to_dict(),
            }
        )

    def follow(self, follower: Callable[[GenerationEvent], bool]) -> None:
        """Show events to ``follower`` as they come, in the hub's task; what it takes (True) isn't kept for the reader.

        It is asked only while nothing waits for the reader, must not raise, and must not take the terminal event.
        """
        self._follower = follower

    def close(self) -> None:
        """Stop listening; the request itself goes on unless it is cancelled."""
        self._closed = True
        self._hub.forget(self.request_id)
        self._inbox.put(self)

    # --- the hub's side

    def begin_attempt(self, attempt: int) -> None:
        """Listen to ``attempt`` only, from its first event on."""
        self.attempt = attempt
        self._next_index = 0

    def accept(self, event: GenerationEvent) -> None:
        """Take one event from the stream, unless it is a repetition or an older attempt's."""
        if self._ended or event["attempt"] != self.attempt or event["index"] < self._next_index:
            return
        if event["index"] > self._next_index:
            self.fail(GenerationFailed("Tokens of this request were lost on their way from the worker; send it again."))
            self._hub.cancel_soon(self.request_id)
            return
        self._next_index += event.get("span", 1)
        self.last_event_at = time.monotonic()
        kind = event["type"]
        if kind == "start":
            if self._started:
                return
            self._started = True
        elif kind == "delta":
            choice = event.get("choice", 0)
            if choice in self._finished_choices:
                return
            if event.get("finish_reason"):
                self._finished_choices.add(choice)
            tokens = event.get("token_ids")
            if tokens:
                self._delivered.setdefault(choice, array("L")).extend(tokens)
        self._push(event)
        if self._buffered_bytes > MAX_BUFFERED_BYTES and not self._ended:
            self._events.clear()
            self.fail(GenerationFailed("The client reads too slowly: 1 MiB of answer is waiting. Read faster."))
            self._hub.cancel_soon(self.request_id)

    def _push(self, event: GenerationEvent) -> None:
        if self._follower is not None and not self._events and self._follower(event):
            self._local_index += 1
            return
        self._events.append(event)
        # What matters of an event's size: 200 bytes stand for the rest.
        self._buffered_bytes += 200 + len(event.get("text", "")) + 200 * len(event.get("logprobs") or ())
        self._local_index += 1
        if event["type"] in ("done", "error"):
            self._ended = True
            self._hub.forget(self.request_id)
        if len(self._events) == 1:  # otherwise it has been noted
            self._inbox.put(self)
