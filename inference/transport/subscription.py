"""Pass the events of one request from the hub to its receiver, each once and in order."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import Protocol

from inference.errors import BlazrError, GenerationFailed
from inference.transport.open_requests import NewMessage
from inference.values.messages import GenerationEvent, error_event


class Hub(Protocol):
    """The methods of the hub that a subscription calls."""

    def forget(self, request_id: str) -> None:
        """Drop a subscription that ended or was closed."""
        ...

    def cancel_soon(self, request_id: str) -> None:
        """Cancel the request at the workers, without waiting."""
        ...


class Subscription:
    """Pass on the events of one request, each once and in order, on the hub's event loop.

    Args:
        hub: The hub that reads the stream.
        request_id: The request's id.
        receive: Called with each event, the terminal event last; must neither wait nor raise.

    Attributes:
        attempt: The current attempt; events of other attempts are dropped.
        checkpoint_id, deadline: Set when the request is published; the deadline is one of ``time.monotonic()``.
        published: The published message, kept in case Redis forgets it.
        num_missed: Consecutive heartbeats at which Redis didn't know the message.
    """

    def __init__(self, hub: Hub, request_id: str, receive: Callable[[GenerationEvent], None]) -> None:
        self.request_id = request_id
        self.attempt = 0
        self.checkpoint_id: str | None = None
        self.deadline: float | None = None
        self.published: NewMessage | None = None
        self.num_missed = 0
        self.created_at = self.last_event_at = time.monotonic()
        self._hub = hub
        self._receive = receive
        self._next_index = 0
        self._is_started = False
        self._is_ended = False
        self._delivered: dict[int, array[int]] = {}
        self._finished_choices: set[int] = set()

    @property
    def is_ended(self) -> bool:
        """Whether no further event is passed on."""
        return self._is_ended

    def delivered(self) -> list[list[int]]:
        """Return the token ids passed on so far, per choice."""
        return [list(self._delivered.get(choice, ())) for choice in range(max(self._delivered, default=-1) + 1)]

    def fail(self, error: BlazrError) -> None:
        """End the request with an error event, unless it has ended."""
        if not self._is_ended:
            self._forward(error_event(self.request_id, self.attempt, self._next_index, error))

    def close(self) -> None:
        """Stop listening; the request itself continues unless it is cancelled."""
        self._is_ended = True
        self._hub.forget(self.request_id)

    # --- the hub's side

    def begin_attempt(self, attempt: int) -> None:
        """Accept only events of ``attempt``, from its first event."""
        self.attempt = attempt
        self._next_index = 0

    def accept(self, event: GenerationEvent) -> None:
        """Pass on one event of the stream, unless the event is repeated or of an older attempt."""
        if self._is_ended or event["attempt"] != self.attempt or event["index"] < self._next_index:
            return
        if event["index"] > self._next_index:
            self.fail(GenerationFailed("Tokens of this request were lost on their way from the worker; send it again."))
            self._hub.cancel_soon(self.request_id)
            return
        self._next_index += event.get("span", 1)
        self.last_event_at = time.monotonic()
        kind = event["type"]
        if kind == "start":
            if self._is_started:
                return
            self._is_started = True
        elif kind == "delta":
            choice = event.get("choice", 0)
            if choice in self._finished_choices:
                return
            if event.get("finish_reason"):
                self._finished_choices.add(choice)
            tokens = event.get("token_ids")
            if tokens:
                self._delivered.setdefault(choice, array("L")).extend(tokens)
        self._forward(event)

    def _forward(self, event: GenerationEvent) -> None:
        if event["type"] in ("done", "error"):
            self._is_ended = True
            self._hub.forget(self.request_id)
        self._receive(event)
