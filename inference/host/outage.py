"""Log once that something can't be reached, and once that it can be again."""

from __future__ import annotations

import logging
import threading
import time


class Outage:
    """Logs the beginning and the end of an outage, however often the attempts in between fail; thread-safe.

    Each loop that uses a connection has its own.

    Args:
        logger: Logger of the module whose work is interrupted.
        work: The work that can't be done in the meantime, such as ``the heartbeat``.
        server: What can't be reached.
    """

    def __init__(self, logger: logging.Logger, work: str, *, server: str = "Redis") -> None:
        self._logger = logger
        self._work = work
        self._server = server
        self._since: float | None = None
        self._lock = threading.Lock()

    def failed(self, error: BaseException) -> None:
        """An attempt has failed; the first one of an outage is logged."""
        with self._lock:
            is_new = self._since is None
            if is_new:
                self._since = time.monotonic()
        if is_new:
            self._logger.warning("%s: %s can't be reached (%s); trying again", self._work, self._server, _words(error))

    def succeeded(self) -> None:
        """An attempt has succeeded; the first one after an outage is logged."""
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            seconds = time.monotonic() - since
            self._logger.warning("%s: %s is reached again after %.1f s", self._work, self._server, seconds)


def _words(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
