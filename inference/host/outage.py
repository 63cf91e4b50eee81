"""Log once that something can't be reached, and once that it can be again."""

from __future__ import annotations

import logging
import time


class Outage:
    """Logs the beginning and the end of an outage, however often the attempts in between fail.

    Used by one thread or task: each loop that uses a connection has its own.

    Args:
        logger: Logger of the module whose work is interrupted.
        work: The work that can't be done in the meantime, such as ``the heartbeat``.
    """

    def __init__(self, logger: logging.Logger, work: str) -> None:
        self._logger = logger
        self._work = work
        self._since: float | None = None

    def failed(self, error: BaseException) -> None:
        """An attempt has failed; the first one of an outage is logged."""
        if self._since is None:
            self._since = time.monotonic()
            self._logger.warning("%s: Redis can't be reached (%s); trying again", self._work, _words(error))

    def succeeded(self) -> None:
        """An attempt has succeeded; the first one after an outage is logged."""
        if self._since is not None:
            seconds, self._since = time.monotonic() - self._since, None
            self._logger.warning("%s: Redis is reached again after %.1f s", self._work, seconds)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
