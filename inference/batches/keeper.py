"""Define the worker's thread that validates, ends and sweeps batches, files and finished jobs, and runs schedules."""

from __future__ import annotations

import time

from inference.batches.lines import RUNNING_LINES, lines_sweep
from inference.batches.schedules import DUE_SCHEDULES, schedules_run
from inference.batches.services import OPEN_BATCHES
from inference.batches.upkeep import batches_sweep, batches_turn
from inference.files.services import files_sweep
from inference.jobs.sweep import finished_jobs_sweep
from inference.jobs.turn_thread import TurnThread

POLL_S = 1.0
HOUSEKEEPING_S = 60.0


class BatchKeeper(TurnThread):
    """Does the due work each second and at every hint.

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
        """Do one round of work."""
        if RUNNING_LINES.exists():
            lines_sweep()
        if DUE_SCHEDULES.exists():
            schedules_run()
        if OPEN_BATCHES.exists():
            batches_turn(owner=self._owner, stopping=lambda: self._closing)
        if time.monotonic() - self._cleaned_at >= HOUSEKEEPING_S:
            self._cleaned_at = time.monotonic()
            batches_sweep()
            files_sweep()
            finished_jobs_sweep()
