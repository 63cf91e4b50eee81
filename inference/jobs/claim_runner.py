"""Define the thread that runs claimed rows in the engines: the base of the job and the batch runner."""

from __future__ import annotations

import queue
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sized
from typing import Protocol

from inference.errors import BlazrError, ModelLoadFailed, OutOfCacheBlocks, Unavailable
from inference.jobs.claims import LEASE_S
from inference.jobs.turn_thread import TurnThread
from inference.values.messages import GenerateMessage, GenerationEvent
from inference.values.states import ResidentModel

POLL_S = 1.0
"""Seconds between looks for new rows when no hint comes."""
HEARTBEAT_S = LEASE_S / 4
"""Seconds between renewals of the leases, also while an engine hangs: ``worker.step_watch`` ends the process then."""
HINTED_HEARTBEAT_S = 0.2
"""Fewest seconds between heartbeats that hints bring forward: cancels take effect soon, many hints cost little."""
RETRY_DELAY_S = 5.0
"""Seconds before another attempt at a row whose error names none."""


class Manager(Protocol):
    """The part of ``inference.worker.model_manager.ModelManager`` that a runner uses."""

    def submit(
        self,
        message: GenerateMessage,
        on_events: Callable[[list[GenerationEvent]], None],
        on_alone: Callable[[str], None] | None = None,
    ) -> None:
        """Take a request; ``on_events`` and ``on_alone`` are called from other threads."""
        ...

    def start_alone(self, request_id: str) -> None:
        """Start a request for which ``on_alone`` was called."""
        ...

    def cancel(self, request_id: str) -> bool: ...

    def describe(self) -> tuple[ResidentModel, ...]: ...

    @property
    def runs_alone(self) -> bool:
        """Whether a request runs alone in the engines, or waits to."""
        ...


class ClaimRunner(TurnThread):
    """Keeps a window of claimed rows in the engines.

    Args:
        name, work: As in ``TurnThread``.
        owner: The worker's id. Rows that an earlier process of this id held are given back at the start.
        window: The most rows that are held at once.
    """

    _running: Sized

    def __init__(self, name: str, work: str, *, owner: str, window: int) -> None:
        super().__init__(name, work)
        self._owner = owner
        self._window = window
        self._events: queue.SimpleQueue[list[GenerationEvent]] = queue.SimpleQueue()
        self._alone: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._look_now = True
        self._hinted = False
        self._claimed_at = self._beat_at = 0.0

    def wake(self) -> None:
        """Look now for new rows, and for cancelled ones among the held rows; thread-safe."""
        self._look_now = self._hinted = True
        super().wake()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Claim nothing more, store the results, give the other rows back; call it before the models are drained."""
        super().stop(timeout_s)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @abstractmethod
    def _begin(self) -> None:
        """Give back the rows that an earlier process of this name held."""

    @abstractmethod
    def _hand_back(self) -> None:
        """Store the results so far, and give the unfinished rows back."""

    def _end(self) -> None:
        self._hand_back()

    def _on_events(self, events: list[GenerationEvent]) -> None:
        """Queue events for the runner's thread; called from engine threads."""
        self._events.put(events)
        if any(event["type"] in ("done", "error") for event in events):
            self._wake.set()

    def _on_alone(self, request_id: str) -> None:
        """Queue a request whose turn to run alone has come for the runner's thread, which starts it."""
        self._alone.put(request_id)
        self._wake.set()

    def _start_alone(self) -> None:
        """Count and start the requests whose turn to run alone has come."""
        while not self._alone.empty():
            self._count_and_start(self._alone.get_nowait())

    @abstractmethod
    def _count_and_start(self, request_id: str) -> None:
        """Count the last attempt of a row in the database, then start its request; unknown ids are ignored."""

    def _received_events(self) -> Iterator[GenerationEvent]:
        while True:
            try:
                yield from self._events.get_nowait()
            except queue.Empty:
                return


def counts_as_attempt(error: BlazrError) -> bool:
    """Whether an attempt that ended with this error counts: a full or loading worker is not the request's fault.

    A model that can't be loaded counts, unless the error names a time to retry: other models use the memory, or the
    database is away.
    """
    if isinstance(error, ModelLoadFailed | OutOfCacheBlocks):
        return error.retry_after_s is None
    return not isinstance(error, Unavailable)
