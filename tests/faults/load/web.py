"""A web process whose tasks can be counted: ``python -m tests.faults.load.web``, in place of ``blazr_site.web``.

SIGUSR1 writes the names of its asyncio tasks to ``tasks-<pid>.json`` in the data directory. ``FAULTS_STALL_S`` replaces
the seconds after which a client that reads nothing is disconnected, ``FAULTS_SLOW_S`` those for headers and for a body.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import django

from blazr_site import http_protocol, stalled_readers, web
from blazr_site.process_environment import use_settings
from blazr_site.settings.storage import prepare_data_dir


def _write_tasks(*_: object) -> None:
    names = sorted(getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks())
    path = Path(os.environ["BLAZR_DATA_DIR"]) / f"tasks-{os.getpid()}.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps(names))
    new.rename(path)


def _shorten_limits() -> None:
    """Replace the limits of stalled readers and of slow writers."""
    use_settings()
    prepare_data_dir()
    django.setup()
    from blazr_site import body_limit  # this one, and the next, need Django's models
    from inference.api import event_stream

    stall_s = float(os.environ.get("FAULTS_STALL_S", stalled_readers.STALL_S))
    event_stream.STALL_S = stalled_readers.STALL_S = stall_s
    slow_s = float(os.environ.get("FAULTS_SLOW_S", body_limit.BODY_TIMEOUT_S))
    body_limit.BODY_TIMEOUT_S = http_protocol.HEADERS_TIMEOUT_S = slow_s


if __name__ == "__main__":
    _shorten_limits()
    signal.signal(signal.SIGUSR1, _write_tasks)
    sys.exit(web.main(sys.argv[1:]))
