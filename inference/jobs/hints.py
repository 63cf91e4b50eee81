"""Wake the workers after jobs were queued; without the hint they find the rows within a second."""

from __future__ import annotations

import logging
import threading

from inference.errors import BlazrError
from inference.host.fault_points import fault_point
from inference.host.outage import Outage
from inference.transport.control import hint_jobs_sync

logger = logging.getLogger(__name__)

_outage = Outage(logger, "hints about new jobs")
_is_due = threading.Event()
_sender: threading.Thread | None = None


def wake_workers() -> None:
    """Send the hint from a thread, as the caller must not wait for Redis.

    While a hint is sent, further ones become one that follows it: threads must not pile up while Redis hangs.
    """
    global _sender
    fault_point("hint")
    _is_due.set()
    if _sender is None or not _sender.is_alive():
        _sender = sender = threading.Thread(target=_send_hints, name="job-hint", daemon=True)
        sender.start()


def _send_hints() -> None:
    while _is_due.is_set():
        _is_due.clear()
        try:
            hint_jobs_sync()
        except BlazrError as error:
            _outage.failed(error)
        else:
            _outage.succeeded()
