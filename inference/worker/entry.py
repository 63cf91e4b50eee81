"""Admit requests to the engines in order; a request that must run alone enters empty engines only."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from inference.worker.resident import ActiveRequest, Resident


class Admission(NamedTuple):
    """Requests to start now, and the request that runs alone from now on.

    Attributes:
        requests: The requests, in order.
        alone: Id of the request that runs alone; empty: none does any more; None: nothing has changed.
    """

    requests: list[ActiveRequest]
    alone: str | None


class EntryQueue:
    """The requests between ``submit`` and their engines; guarded by the lock of ``ResidentModels``.

    A request that must run alone waits until no other request is in any engine of the worker, and later requests wait
    behind it, so that it waits for running requests only. It shares the engines again once it has made enough tokens.

    Attributes:
        num_inside: Number of requests in the engines.
        alone: The request that runs alone now.
    """

    def __init__(self) -> None:
        self.num_inside = 0
        self.alone: ActiveRequest | None = None
        self._waiting: deque[ActiveRequest] = deque()

    @property
    def is_closed(self) -> bool:
        """Whether a request runs alone, or waits to."""
        return self.alone is not None or bool(self._waiting and self._waiting[0].alone_tokens is not None)

    def add(self, request: ActiveRequest) -> None:
        """Add a request whose model is ready."""
        self._waiting.append(request)

    def admit(self) -> list[ActiveRequest]:
        """Take the requests that can enter now, in order."""
        admitted: list[ActiveRequest] = []
        while self._waiting and self.alone is None:
            if self._waiting[0].alone_tokens is not None:
                if self.num_inside:
                    break
                self.alone = self._waiting[0]
            admitted.append(self._waiting.popleft())
            self.num_inside += 1
        return admitted

    def record_tokens(self, request: ActiveRequest) -> None:
        """Let others in again if ``request`` ran alone for long enough."""
        if request is self.alone and request.num_tokens >= (request.alone_tokens or 0):
            self.alone = None

    def leave(self, request: ActiveRequest) -> None:
        """Remove a request that has ended in an engine."""
        self.num_inside -= 1
        if request is self.alone:
            self.alone = None

    def discard(self, request: ActiveRequest) -> None:
        """Remove a request that waits here, if it does."""
        if request in self._waiting:
            self._waiting.remove(request)

    def take_of(self, resident: Resident) -> list[ActiveRequest]:
        """Remove and return the waiting requests of a model that is unloaded."""
        taken = [request for request in self._waiting if request.resident is resident]
        self._waiting = deque(request for request in self._waiting if request.resident is not resident)
        return taken

    def clear(self) -> None:
        """Remove all waiting requests."""
        self._waiting.clear()
