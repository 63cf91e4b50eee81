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


def wake_workers() -> None:
    """Send the hint from a thread, as the caller must not wait for Redis."""
    fault_point("hint")
    threading.Thread(target=_send_hint, name="job-hint", daemon=True).start()


def _send_hint() -> None:
    try:
        hint_jobs_sync()
    except BlazrError as error:
        _outage.failed(error)
    else:
        _outage.succeeded()
