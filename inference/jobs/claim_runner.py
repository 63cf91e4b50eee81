"""ClaimRunner: what jobs and lines of batches have in common on their way from the database through an engine."""

from __future__ import annotations

import queue
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sized
from typing import Protocol

from inference.errors import BlazrError, ModelLoadFailed, OutOfCacheBlocks, Unavailable
from inference.jobs.turn_thread import TurnThread
from inference.values.messages import GenerateMessage, GenerationEvent
from inference.values.states import ResidentModel


class Manager(Protocol):
    """What a runner needs of ``inference.worker.model_manager.ModelManager``."""

    def submit(self, message: GenerateMessage, on_events: Callable[[list[GenerationEvent]], None]) -> None:
        """Take a request; events come from other threads."""
        ...

    def cancel(self, request_id: str) -> bool:
        """End a request early."""
        ...

    def describe(self) -> tuple[ResidentModel, ...]:
        """The models that are here."""
        ...

    def step_age_s(self) -> float:
        """Since an engine with work last moved."""
        ...


class ClaimRunner(TurnThread):
    """Holds a window of claimed work in the engines.

    Args:
        name, work: As in ``TurnThread``.
        owner: The worker's id; what it left behind under the same name is taken back at the start.
        window: How much is held at once.
    """

    _running: Sized

    def __init__(self, name: str, work: str, *, owner: str, window: int) -> None:
        super().__init__(name, work)
        self._owner = owner
        self._window = window
        self._events: queue.SimpleQueue[list[GenerationEvent]] = queue.SimpleQueue()
        self._look_now = True
        self._hinted = False
        self._claimed_at = self._beat_at = 0.0

    def wake(self) -> None:
        """Look now (a hint came) for new work, and for what of the held was cancelled; thread-safe."""
        self._look_now = self._hinted = True
        super().wake()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Claim nothing more, store what there is, hand the rest back; call it before the models are drained."""
        super().stop(timeout_s)

    @property
    def num_running(self) -> int:
        """How much is held."""
        return len(self._running)

    @abstractmethod
    def _begin(self) -> None:
        """Give back what an earlier process of this name held."""

    @abstractmethod
    def _hand_back(self) -> None:
        """Store what there is, and give the rest back."""

    def _end(self) -> None:
        self._hand_back()

    def _on_events(self, events: list[GenerationEvent]) -> None:
        """Called from engine threads: pass on and return."""
        self._events.put(events)
        if any(event["type"] in ("done", "error") for event in events):
            self._wake.set()

    def _arrived(self) -> Iterator[GenerationEvent]:
        """The events that have come."""
        while True:
            try:
                yield from self._events.get_nowait()
            except queue.Empty:
                return


def counts_as_attempt(error: BlazrError) -> bool:
    """Whether work that goes back with this error has used up a try: being full or busy loading is nobody's fault."""
    return not isinstance(error, Unavailable) or isinstance(error, ModelLoadFailed | OutOfCacheBlocks)
