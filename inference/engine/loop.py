"""EngineLoop: run an engine (or an LLM around one) in the one thread that owns it.

Other threads submit to the thread's inbox, so that the owner needs no locks. The thread sleeps while it has no work.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from inference.engine.failures import failure_of
from inference.errors import BlazrError, EngineDead, Unavailable
from inference.host.compute_threads import release_compute_threads

logger = logging.getLogger(__name__)

ItemT = TypeVar("ItemT")
EventT = TypeVar("EventT")
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)


class LoopOwner(Protocol[ItemT_contra, EventT]):
    """An engine or LLM that the loop runs; the loop's thread makes all calls."""

    def add(self, prepared: ItemT_contra, /) -> object:
        """Accept a request; raise an error if it can't be accepted."""

    def abort(self, request_id: str, /) -> bool:
        """End a request early; False if the id is unknown."""

    def step(self) -> list[EventT]:
        """Run one step and return its events; raise ``EngineDead`` if no further step is possible."""

    def has_unfinished(self) -> bool:
        """Whether ``step`` has work."""

    @property
    def step_tokens(self) -> int:
        """Tokens in the step that runs now, or in the last one; read by any thread."""


class EngineLoop(Generic[ItemT, EventT]):
    """Run ``owner`` in a thread of its own; the public methods may be called from any thread.

    Args:
        owner: Used by the loop's thread only, from ``start`` on.
        on_events: Called in the loop's thread with all events of one step; the next step waits for it.
        on_refused: Called with each submitted item that the owner refused, or that the loop had not read when it
            ended, and the error.
        on_dead: Called with the error that ended the loop; unfinished requests get no events.
        name: Name of the thread.

    Attributes:
        is_busy: Whether the owner has work, so that ``last_step_at`` must advance.
        last_step_at: ``time.monotonic()`` of the end of the last step, or of the last work that reached an idle loop.
        step_number: Number of the step that runs now; None: no step runs.
        longest_token_s: Seconds per token of the slowest step that has ended, the first one aside; 0: none has.
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
        self._aborted: list[str] = []
        self._is_woken = False
        self._is_draining = False
        self._is_stopping = False
        self._has_ended = False
        self.is_busy = False
        self._work: tuple[float, float | None] = (0.0, None)  # seconds until now; since when it has work again
        self.last_step_at = time.monotonic()
        self.step_number: int | None = None
        self.longest_token_s = 0.0
        self._num_steps = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; call once."""
        self._thread.start()

    def submit(self, item: ItemT) -> None:
        """Hand over a request; the callbacks get its outputs.

        Raises:
            Unavailable: The loop is stopping or has ended.
        """
        with self._condition:
            if self._is_draining or self._has_ended:
                raise _stopping()
            self._submitted.append(item)
            self._condition.notify()

    def abort(self, request_id: str) -> None:
        """Request the early end of a request; unknown ids are ignored."""
        with self._condition:
            self._aborted.append(request_id)
            self._condition.notify()

    def wake(self) -> None:
        """Look whether the owner has work: another thread has given it some."""
        with self._condition:
            self._is_woken = True
            self._condition.notify()

    def stop(self, *, drain: bool, timeout_s: float) -> bool:
        """End the thread; return whether every accepted request has finished.

        Args:
            drain: Wait up to ``timeout_s`` for running requests. Otherwise, and after the timeout, the loop ends after
                the current step, and unfinished requests get no final event.
            timeout_s: Maximum seconds to wait, in either case.
        """
        deadline = time.monotonic() + timeout_s
        with self._condition:
            self._is_draining = True
            self._is_stopping = self._is_stopping or not drain
            self._condition.notify()
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            return not self.is_busy
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            with self._condition:
                self._is_stopping = True
                self._condition.notify()
            self._thread.join(max(1.0, deadline - time.monotonic()))
        return not self._thread.is_alive() and not self.is_busy

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def step_tokens(self) -> int:
        """Tokens in the step that runs now, or in the last one."""
        return self._owner.step_tokens

    @property
    def work_s(self) -> float:
        """Seconds in which the owner had work, from the start of the loop until now; read by any thread."""
        total_s, since = self._work  # one read: the loop's thread replaces the pair
        return total_s if since is None else total_s + time.monotonic() - since

    def _set_busy(self, is_busy: bool) -> None:
        if is_busy != self.is_busy:
            total_s, since = self._work
            now = time.monotonic()
            self._work = (total_s, now) if since is None else (total_s + now - since, None)
        self.is_busy = is_busy

    def _run(self) -> None:
        try:
            while self._read_inbox():
                events = self._step()
                self._set_busy(self._owner.has_unfinished())
                if events:
                    self._call(self._on_events, events)
        except EngineDead as error:
            self._call(self._on_dead, error)
        except BaseException as error:  # also a Rust panic, which is no Exception: no request may wait for ever
            logger.exception("the engine loop failed")
            self._call(self._on_dead, EngineDead(f"the engine failed: {type(error).__name__}; the worker restarts."))
        finally:
            with self._condition:
                self._has_ended = True
            for item in self._submitted:
                self._call(self._on_refused, item, _stopping())

    def _step(self) -> list[EventT]:
        started = time.monotonic()
        self._num_steps += 1
        self.step_number = self._num_steps
        try:
            events = self._owner.step()
        finally:
            self.step_number = None
        self.last_step_at = time.monotonic()
        if self._num_steps > 1 and self._owner.step_tokens:  # a first step may compile kernels
            token_s = (self.last_step_at - started) / self._owner.step_tokens
            self.longest_token_s = max(self.longest_token_s, token_s)
        return events

    def _read_inbox(self) -> bool:
        """Wait for work and pass it to the owner; return False when the loop has to end."""
        while True:
            with self._condition:
                while not (self._submitted or self._aborted or self._is_woken or self.is_busy or self._is_draining):
                    release_compute_threads()  # other models' loops need the processors
                    self._condition.wait()
                if self._is_stopping:
                    return False
                aborted, self._aborted = self._aborted, []
                self._is_woken = False
                is_draining = self._is_draining
            if not self.is_busy:
                self.last_step_at = time.monotonic()
            while self._submitted:
                self._add(self._submitted[0])
                self._submitted.popleft()  # not before, so that no item is lost when the owner fails
            for request_id in aborted:
                self._owner.abort(request_id)
            self._set_busy(self._owner.has_unfinished())
            if self.is_busy:
                return True
            if is_draining:
                return False

    def _add(self, item: ItemT) -> None:
        try:
            self._owner.add(item)
        except EngineDead:
            raise
        except BaseException as error:
            self._call(self._on_refused, item, failure_of(error, "the request could not be started"))

    def _call(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call a callback; its exceptions don't end the loop."""
        try:
            callback(*arguments)
        except Exception:
            logger.exception("a callback of the engine loop failed")


def _stopping() -> Unavailable:
    return Unavailable("the engine is stopping; try again shortly.", retry_after_s=1)
