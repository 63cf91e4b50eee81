"""EngineLoop: the one thread that owns an engine (or an LLM around one).

Everything else reaches the owner through this thread's inbox, so the owner needs no locks. The thread
sleeps on a condition while there is nothing to do; a submit wakes it at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from inference.errors import BlazrError, EngineDead, GenerationFailed, Unavailable
from inference.host.compute_threads import release_compute_threads

logger = logging.getLogger(__name__)

ItemT = TypeVar("ItemT")
EventT = TypeVar("EventT")
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)


class LoopOwner(Protocol[ItemT_contra, EventT]):
    """What the loop drives. All members are called from the loop's thread only."""

    def add(self, prepared: ItemT_contra, /) -> object:
        """Accept a request, or raise the reason why not."""
        ...

    def abort(self, request_id: str, /) -> bool:
        """End a request early; False if it isn't there."""
        ...

    def step(self) -> list[EventT]:
        """Do one step's work and return its events; raises ``EngineDead`` if there will be no further one."""
        ...

    def has_unfinished(self) -> bool:
        """Whether ``step`` has something to do."""
        ...


class EngineLoop(Generic[ItemT, EventT]):
    """Runs ``owner`` in a thread of its own.

    Args:
        owner: Belongs to the loop from ``start`` on.
        on_events: Gets all events of one step at once, from the loop's thread; must not block for long, as
            the next step waits for it. What it raises is logged.
        on_refused: Gets each submitted item that the owner refused (or that the end of the loop left
            unread), with the reason.
        on_dead: Gets the error after which the loop has ended. Requests in flight get no events; their
            messages go back to the queue.
        name: Of the thread.
    """

    def __init__(
        self,
        owner: LoopOwner[ItemT, EventT],
        on_events: Callable[[list[EventT]], object],
        *,
        on_refused: Callable[[ItemT, BlazrError], object],
        on_dead: Callable[[EngineDead], object],
        name: str = "engine",
    ) -> None:
        self._owner = owner
        self._on_events = on_events
        self._on_refused = on_refused
        self._on_dead = on_dead
        self._condition = threading.Condition()
        self._submitted: deque[ItemT] = deque()
        self._aborted: deque[str] = deque()
        self._draining = False
        self._stopping = False
        self._ended = False
        self._busy = False
        self._last_step_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # --- any thread ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def submit(self, item: ItemT) -> None:
        """Hand over a request; its outputs come through the callbacks.

        Raises:
            Unavailable: The loop is stopping or has ended.
        """
        with self._condition:
            if self._draining or self._stopping or self._ended:
                raise Unavailable("the engine is stopping; try again shortly.", retry_after_s=1)
            self._submitted.append(item)
            self._condition.notify()

    def abort(self, request_id: str) -> None:
        """Ask for the early end of a request; unknown ids are ignored."""
        with self._condition:
            self._aborted.append(request_id)
            self._condition.notify()

    def stop(self, *, drain: bool, timeout_s: float) -> bool:
        """End the thread.

        Args:
            drain: Let running requests finish first, for at most ``timeout_s``. Otherwise (and after the
                timeout) the loop ends after the current step and requests in flight get no final event.
            timeout_s: Longest time to wait, in either case.

        Returns:
            Whether every accepted request had finished.
        """
        deadline = time.monotonic() + timeout_s
        with self._condition:
            self._draining = True
            self._stopping = self._stopping or not drain
            self._condition.notify()
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            return not self._busy
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            with self._condition:
                self._stopping = True
                self._condition.notify()
            self._thread.join(max(1.0, deadline - time.monotonic()))
        return not self._thread.is_alive() and not self._busy

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def is_busy(self) -> bool:
        """Whether there is work, so that ``last_step_at`` has to move."""
        return self._busy

    @property
    def last_step_at(self) -> float:
        """``time.monotonic()`` when the last step ended, or when work last arrived at an idle loop."""
        return self._last_step_at

    # --- the loop's thread ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._take_in():
                events = self._owner.step()
                self._last_step_at = time.monotonic()
                self._busy = self._owner.has_unfinished()
                if events:
                    self._publish(events)
        except EngineDead as error:
            self._die(error)
        except BaseException as error:  # a Rust panic is no Exception; whatever it is, nobody must wait for ever
            logger.exception("the engine loop failed")
            self._die(EngineDead(f"the engine failed: {type(error).__name__}; the worker restarts."))
        finally:
            self._end()

    def _take_in(self) -> bool:
        """Wait for work and pass the inbox on; False when the loop is to end."""
        while True:
            with self._condition:
                while not (self._submitted or self._aborted or self._busy or self._draining):
                    release_compute_threads()  # other models' loops need the processors
                    self._condition.wait()
                if self._stopping:
                    return False
                submitted, self._submitted = self._submitted, deque()
                aborted, self._aborted = self._aborted, deque()
                draining = self._draining
            if not self._busy:
                self._last_step_at = time.monotonic()
            while submitted:
                item = submitted.popleft()
                try:
                    self._add(item)
                except BaseException:
                    with self._condition:
                        self._submitted.extendleft(reversed(submitted))
                        self._submitted.appendleft(item)
                    raise
            for request_id in aborted:
                self._owner.abort(request_id)
            self._busy = self._owner.has_unfinished()
            if self._busy:
                return True
            if draining:
                return False

    def _add(self, item: ItemT) -> None:
        try:
            self._owner.add(item)
        except EngineDead:
            raise
        except BlazrError as error:
            self._refuse(item, error)
        except Exception:
            logger.exception("a request could not be added")
            self._refuse(item, GenerationFailed("the request could not be started because of an internal error."))

    def _publish(self, events: list[EventT]) -> None:
        try:
            self._on_events(events)
        except Exception:
            logger.exception("%d events could not be passed on", len(events))

    def _refuse(self, item: ItemT, error: BlazrError) -> None:
        try:
            self._on_refused(item, error)
        except Exception:
            logger.exception("a refusal could not be passed on")

    def _die(self, error: EngineDead) -> None:
        try:
            self._on_dead(error)
        except Exception:
            logger.exception("the engine's death could not be passed on")

    def _end(self) -> None:
        with self._condition:
            self._ended = True
            left, self._submitted = self._submitted, deque()
        for item in left:
            self._refuse(item, Unavailable("the engine is stopping; try again shortly.", retry_after_s=1))
