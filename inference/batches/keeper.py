"""Define the worker's thread that validates, ends and sweeps batches, and sweeps files and finished jobs."""

from __future__ import annotations

import time

from inference.batches.batch_claims import batches_abandon
from inference.batches.lines import RUNNING_LINES, lines_sweep
from inference.batches.services import OPEN_BATCHES
from inference.batches.upkeep import batches_sweep, batches_turn
from inference.files.services import files_sweep, stray_files_sweep
from inference.jobs.sweep import finished_jobs_sweep
from inference.jobs.turn_thread import TurnThread

POLL_S = 1.0
HOUSEKEEPING_S = 60.0
STRAYS_S = 3600.0


class BatchKeeper(TurnThread):
    """Does the due work each second and at every hint.

    Args:
        owner: The worker's id. Batches that an earlier process of this id worked on are free at the start.
    """

    def __init__(self, *, owner: str) -> None:
        super().__init__("batch-keeper", "the batches")
        self._owner = owner
        self._cleaned_at = self._strays_at = time.monotonic()

    def _begin(self) -> None:
        batches_abandon(owner=self._owner)

    def _pause_s(self) -> float:
        return POLL_S

    def turn(self) -> None:
        if RUNNING_LINES.exists():
            lines_sweep()
        if OPEN_BATCHES.exists():
            batches_turn(owner=self._owner, stopping=lambda: self._closing)
        if time.monotonic() - self._cleaned_at >= HOUSEKEEPING_S:
            self._cleaned_at = time.monotonic()
            batches_sweep()
            files_sweep()
            finished_jobs_sweep()
        if time.monotonic() - self._strays_at >= STRAYS_S:
            self._strays_at = time.monotonic()
            stray_files_sweep()
