"""Define the worker's thread that keeps batches and runs schedules, which make some of them."""

from __future__ import annotations

from inference.batches.keeper import BatchKeeper
from inference.schedules.runs import schedules_turn


class ScheduleKeeper(BatchKeeper):
    """A ``BatchKeeper`` that runs what is due of the schedules in each turn.

    It is a class of its own because ``inference.batches`` can't import ``inference.schedules``, which makes batches.
    """

    def turn(self) -> None:
        super().turn()
        schedules_turn()
