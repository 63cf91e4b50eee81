"""Hints about new jobs: the row is the job, a message about it only wakes the workers sooner."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from inference.errors import BlazrError

logger = logging.getLogger(__name__)

_hint: list[Callable[[], None]] = []


def set_hint(call: Callable[[], None]) -> None:
    """Let ``call`` run, in a thread, after each commit that queued jobs: it wakes the workers, or fails."""
    _hint[:] = [call]


def give_hint() -> None:
    """Wake the workers without waiting for it: the rows are stored, a worker's next look finds them."""
    threading.Thread(target=_send_hint, name="job-hint", daemon=True).start()


def _send_hint() -> None:
    for call in _hint:
        try:
            call()
        except BlazrError as error:
            logger.info("the hint about new jobs was not sent: %s", error.message)
