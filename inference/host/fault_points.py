"""Named points at which tests end, stop or fail a process: ``_BLAZR_FAULTS=name:action:nth``, several with commas.

Actions, at the nth time that the process gets to the point:

    kill     the process ends at once, as by ``kill -9``
    stop     the process stops until it gets SIGCONT
    sleep    the thread sleeps for ``SLEEP_S``
    raise    the code at the point raises ``FaultInjected``

Nothing is armed unless the variable is set, and a server that others can reach refuses it. Standard library only.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

SLEEP_S = 3.0

POINTS = {
    "jobs.store": "in the transaction that stores submitted jobs",
    "hint": "behind a commit, before workers are told of it",
    "file.stored": "behind the transaction that stores an uploaded file",
    "job.claimed": "behind the claim of jobs, before their start",
    "job.started": "behind the start of a job, before its first event",
    "job.flush": "in the transaction that stores events",
    "job.flushed": "behind that transaction",
    "job.finish": "in the transaction that ends a job, before its usage",
    "job.finished": "behind that transaction",
    "jobs.requeue": "in the transaction that queues jobs of lost workers again",
    "lines.claimed": "behind the claim of lines, before their start",
    "lines.started": "behind the start of lines, before their results",
    "lines.finish": "in the transaction that stores results of lines",
    "lines.finished": "behind that transaction",
    "lines.requeue": "in the transaction that queues lines of lost workers again",
    "batch.stored_lines": "behind the transaction that stores lines of an input file",
    "batch.validated": "behind the transaction that ends the validation of a batch",
    "batch.rendered": "behind the writing of both files of a batch, before they have names",
    "file.publish": "before a file gets its name",
    "file.published": "behind that, before a row has the name",
    "batch.end": "in the transaction that ends a batch, before its usage and its webhook message",
    "batch.ended": "behind that transaction",
}
"""Points by name, each with its place."""


class FaultInjected(RuntimeError):
    """A point was armed with ``raise``."""


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _raise() -> None:
    raise FaultInjected("a test has armed this point (_BLAZR_FAULTS)")


ACTIONS: dict[str, Callable[[], None]] = {
    "kill": _kill,
    "stop": _stop,
    "sleep": lambda: time.sleep(SLEEP_S),
    "raise": _raise,
}


@dataclass(slots=True)
class _Armed:
    act: Callable[[], None]
    times_left: int


_armed: dict[str, _Armed] = {}
_lock = threading.Lock()


def arm(text: str) -> None:
    """Arm the points of ``name:action:nth,…`` instead of those armed before; an empty text arms none.

    Raises:
        ValueError: A point, an action or a number is wrong; the message names what is allowed.
    """
    found: dict[str, _Armed] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, rest = item.partition(":")
        action, _, nth = rest.partition(":")
        if name not in POINTS:
            raise ValueError(f"{name!r} is no fault point; there are {', '.join(POINTS)}.")
        if action not in ACTIONS:
            raise ValueError(f"{item!r}: the action is one of {', '.join(ACTIONS)}.")
        if not (nth.isascii() and nth.isdigit() and int(nth) > 0):
            raise ValueError(f"{item!r} needs a number from 1 at its end: the time at which the point acts.")
        found[name] = _Armed(ACTIONS[action], int(nth))
    with _lock:
        _armed.clear()
        _armed.update(found)


def fault_point(name: str) -> None:
    """Act if this point is armed and this is the time; costs one look into an empty dictionary otherwise."""
    if not _armed:
        return
    with _lock:
        armed = _armed.get(name)
        if armed is None:
            return
        armed.times_left -= 1
        is_due = armed.times_left == 0
    if is_due:
        armed.act()
