"""Define a thread that works in turns on rows of the database, and survives the database's absence."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from django.db import DatabaseError, InterfaceError, connections

from inference.host.outage import Outage

logger = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Pause after a failed turn, so that a database that is down causes no busy loop."""
CONNECTION_S = 60.0
"""A connection is kept for so long, because opening one costs more than most turns."""


class TurnThread(ABC):
    """A thread that does a turn when it is woken, and after a pause anyway.

    Args:
        work: The rows that it works on, for logs: "the lines of batches".
    """

    def __init__(self, name: str, work: str) -> None:
        self._work = work
        self._outage = Outage(logger, work, server="the database")
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Do a turn now; thread-safe."""
        self._wake.set()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the thread after its turn and ``_end``."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @abstractmethod
    def turn(self) -> None:
        """Do one round of work."""

    @abstractmethod
    def _pause_s(self) -> float:
        """Return the seconds until the next turn if nothing wakes the thread."""

    def _begin(self) -> None:  # noqa: B027 - optional
        """Do something before the first turn."""

    def _end(self) -> None:  # noqa: B027 - optional
        """Do something after the last turn."""

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
        """Run ``work``; the next turn tries it again after an error, such as a database that is away."""
        try:
            work()
            self._outage.succeeded()
        except (DatabaseError, InterfaceError) as error:
            self._outage.failed(error)
            connections.close_all()
            time.sleep(PAUSE_S)
        except Exception:
            logger.exception("a turn over %s failed", self._work)
            time.sleep(PAUSE_S)
