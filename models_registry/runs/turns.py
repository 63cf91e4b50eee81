"""Watch the runs from a worker: beat starts a turn every few seconds, each in one thread of the process."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from django.db import OperationalError, close_old_connections, connection

from inference.models.readable_rows import readable_rows
from models_registry.models import TrainingRun
from models_registry.runs.allowed import is_allowed
from models_registry.runs.measuring import measure_next
from models_registry.runs.promoted_copies import copy_promoted
from models_registry.runs.watching import run_look

logger = logging.getLogger(__name__)

_turn = threading.Lock()
"""Held by the thread of a turn: a slow turn makes the next ones do nothing."""


def start_turn() -> bool:
    """Start a turn in a thread of its own; False: there is nothing to watch, or the last turn hasn't ended."""
    if not TrainingRun.objects.exclude(state=TrainingRun.State.STOPPED).exists():
        return False
    if not _turn.acquire(blocking=False):
        return False
    try:
        threading.Thread(target=_run_turn, name="watch-runs", daemon=True).start()
    except BaseException:
        _turn.release()
        raise
    return True


def take_turn() -> None:
    """Look at each directory that the settings allow, copy what was promoted, then start a measurement.

    Runs that only ``blazr watch`` may look at are left alone, and so are their checkpoints' measurements: until one of
    them is allowed, nothing of it is read here.
    """
    runs = [
        run
        for run in readable_rows(TrainingRun.objects.exclude(state=TrainingRun.State.STOPPED).order_by("created_at"))
        if is_allowed(Path(run.directory))
    ]
    # A copy may take minutes, in which other trainers delete what isn't registered: all looks come first.
    for act in (run_look, copy_promoted, measure_next):
        for run in runs:
            try:
                act(run)
            except OperationalError:
                raise
            except Exception:  # one run must not keep the others from being watched
                logger.exception("the look at the training run %s failed", run.name)


def _run_turn() -> None:
    close_old_connections()
    try:
        take_turn()
    except OperationalError as error:  # an outage: the rows are as they were, the next turn goes on
        logger.warning("training runs can't be watched now: %s", error)
    finally:
        connection.close()
        _turn.release()
