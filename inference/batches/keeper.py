"""BatchKeeper: the worker's thread for batches as a whole: validating, ending, sweeping, schedules."""

from __future__ import annotations

import time

from django.db.models.functions import Now

from inference.batches.lines import lines_sweep
from inference.batches.models import BatchLine, BatchSchedule, LineState
from inference.batches.schedules import schedules_run
from inference.batches.upkeep import OPEN_BATCHES, batches_sweep, batches_turn
from inference.files import files_sweep
from inference.row_watch import RowWatch
from inference.worker.turn_thread import TurnThread

POLL_S = 1.0
HOUSEKEEPING_S = 60.0

_RUNNING_LINES = RowWatch(lambda: BatchLine.objects.filter(state=LineState.RUNNING))
_DUE_SCHEDULES = RowWatch(lambda: BatchSchedule.objects.filter(is_enabled=True, next_run_at__lte=Now()))


class BatchKeeper(TurnThread):
    """Does what is due, each second and at every hint.

    Args:
        owner: The worker's id.
    """

    def __init__(self, *, owner: str) -> None:
        super().__init__("batch-keeper", "the batches")
        self._owner = owner
        self._cleaned_at = time.monotonic()

    def _pause_s(self) -> float:
        return POLL_S

    def turn(self) -> None:
        """One round."""
        if _RUNNING_LINES.exists():
            lines_sweep()
        if _DUE_SCHEDULES.exists():
            schedules_run()
        if OPEN_BATCHES.exists():
            batches_turn(owner=self._owner, stopping=lambda: self._closing)
        if time.monotonic() - self._cleaned_at >= HOUSEKEEPING_S:
            self._cleaned_at = time.monotonic()
            batches_sweep()
            files_sweep()
