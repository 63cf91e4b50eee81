"""TurnThread: what the worker's threads that live off the database have in common."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from django.db import DatabaseError, InterfaceError, connections

logger = logging.getLogger(__name__)

PAUSE_S = 1.0
"""After a turn that failed: a database that is down is no reason for a busy loop."""
CONNECTION_S = 60.0
"""A connection is kept for so long: turns come many times a second, and opening one costs more than most of them."""


class TurnThread(ABC):
    """A thread that takes turns: when it is woken, and after a while anyway.

    Args:
        name: Of the thread.
        work: What it does, for logs: "the lines of batches".
    """

    def __init__(self, name: str, work: str) -> None:
        self._work = work
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """There may be something to do; thread-safe."""
        self._wake.set()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the thread after its turn and what ``_end`` does."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @abstractmethod
    def turn(self) -> None:
        """One round."""

    @abstractmethod
    def _pause_s(self) -> float:
        """Seconds until the next turn if nobody wakes it."""

    def _begin(self) -> None:  # noqa: B027 - not every thread has something to do there
        """Before the first turn."""

    def _end(self) -> None:  # noqa: B027 - the same
        """After the last one."""

    def _run(self) -> None:
        self._guard(self._begin)
        connected_at = time.monotonic()
        while not self._closing:
            self._wake.wait(self._pause_s())
            self._wake.clear()
            self._guard(self.turn)
            if time.monotonic() - connected_at > CONNECTION_S:
                connections.close_all()
                connected_at = time.monotonic()
        self._guard(self._end)
        connections.close_all()

    def _guard(self, work: Callable[[], object]) -> None:
        """Run ``work``; the database may be away for a while, everything is tried again then."""
        try:
            work()
        except (DatabaseError, InterfaceError) as error:
            logger.warning("%s can't be used at the moment: %s", self._work, error)
            connections.close_all()
            time.sleep(PAUSE_S)
        except Exception:
            logger.exception("a turn over %s failed", self._work)
            time.sleep(PAUSE_S)
