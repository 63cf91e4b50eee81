"""The worker's thread runs what is due of the schedules."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from inference.models import Batch, BatchState
from inference.schedules.keeper import ScheduleKeeper
from tests.inference.schedules.fakes import make_due, make_schedule


def test_a_turn_runs_schedules_and_the_next_one_takes_their_batches(model):
    make_due(make_schedule(), timezone.now() - timedelta(minutes=1))
    keeper = ScheduleKeeper(owner="worker")
    keeper.turn()
    assert Batch.objects.get().state == BatchState.VALIDATING
    keeper.turn()
    assert Batch.objects.get().state == BatchState.IN_PROGRESS
