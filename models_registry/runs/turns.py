"""Watch the runs from a worker: beat starts a turn every few seconds, each in one thread of the process.

Promoted checkpoints are copied in another thread, one at a time: a copy may take minutes, in which trainers go on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from django.db import OperationalError, close_old_connections, connection

from inference.models.readable_rows import readable_rows
from models_registry.models import TrainingRun
from models_registry.runs.allowed import is_allowed
from models_registry.runs.measuring import measure_next
from models_registry.runs.promoted_copies import copy_promoted, uncopied_steps
from models_registry.runs.watching import run_look

logger = logging.getLogger(__name__)


class SingleThread:
    """A function that runs in one thread of this process at a time.

    Args:
        name: Of the thread.
        work: The function. An outage of the database ends it: the rows are as they were, the next turn goes on.
    """

    def __init__(self, name: str, work: Callable[..., None]) -> None:
        self._name = name
        self._work = work
        self._lock = threading.Lock()

    @property
    def is_running(self) -> bool:
        """Whether its thread runs."""
        return self._lock.locked()

    def start(self, *args: object) -> bool:
        """Start the function; False: it runs already."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            threading.Thread(target=self._run, args=args, name=self._name, daemon=True).start()
        except BaseException:
            self._lock.release()
            raise
        return True

    def wait(self) -> None:
        """Wait until the function doesn't run."""
        with self._lock:
            pass

    def _run(self, *args: object) -> None:
        close_old_connections()
        try:
            self._work(*args)
        except OperationalError as error:
            logger.warning("training runs can't be watched now: %s", error)
        finally:
            connection.close()
            self._lock.release()


def start_turn() -> bool:
    """Start a turn in a thread of its own; False: there is nothing to watch, or the last turn hasn't ended."""
    return TrainingRun.objects.exclude(state=TrainingRun.State.STOPPED).exists() and TURNS.start()


def take_turn() -> None:
    """Look at each directory that the settings allow, start copies of what was promoted, then a measurement.

    Runs that only ``blazr watch`` may look at are left alone, and so are their checkpoints' measurements: until one of
    them is allowed, nothing of it is read here.
    """
    runs = [
        run
        for run in readable_rows(TrainingRun.objects.exclude(state=TrainingRun.State.STOPPED).order_by("created_at"))
        if is_allowed(Path(run.directory))
    ]
    _for_each(runs, run_look)
    start_copies(runs)
    _for_each(runs, measure_next)


def start_copies(runs: Iterable[TrainingRun]) -> None:
    """Copy what was promoted of the runs in a thread of its own, unless copies are being made in this process."""
    if COPIES.is_running:
        return
    waiting: list[TrainingRun] = []
    _for_each(runs, lambda run: waiting.append(run) if uncopied_steps(run) else None)
    if waiting:
        COPIES.start(waiting)


def _copy(runs: Iterable[TrainingRun]) -> None:
    _for_each(runs, copy_promoted)


def _for_each(runs: Iterable[TrainingRun], act: Callable[[TrainingRun], object]) -> None:
    for run in runs:
        try:
            act(run)
        except OperationalError:
            raise
        except Exception:  # one run must not keep the others from being watched
            logger.exception("the look at the training run %s failed", run.name)


TURNS, COPIES = SingleThread("watch-runs", take_turn), SingleThread("copy-promoted", _copy)
"""A slow turn makes the next ones do nothing; a slow copy delays the next copies alone."""
