"""What is done for batches in time: windows that end, and rows and files that are removed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import F
from django.utils import timezone

from inference.batches import upkeep
from inference.batches.batch_claims import BatchClaim
from inference.errors import StorageFull
from inference.models import Batch, BatchLine, BatchResult
from tests.inference.batches.fakes import contents, line, make_batch, make_runner, work
from tests.inference.row_locks import assert_in_order, on_postgresql, without_waiting


def test_the_window_is_a_limit(manager):
    manager.holds = lambda message: True
    batch = make_batch(line(str(number)) for number in range(20))
    item = make_runner(manager, window=4)
    work(batch, item, turns=3)
    assert (item.num_running, manager.most_held) == (4, 4)
    for _ in range(10):
        manager.answer_held()
        item.turn()
    assert work(batch, item).num_completed == 20
    assert manager.most_held == 4


def test_when_the_window_is_over_the_rest_expires(manager):
    manager.holds = lambda message: message["prompt"]["text"] != "done"
    batch = make_batch([line("a", "done"), line("b"), line("c")], completion_window="1m")
    item = make_runner(manager, window=2)
    work(batch, item, turns=3)
    Batch.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    batch = work(batch, item)
    assert batch.state == "expired"
    assert (batch.num_completed, batch.num_failed) == (1, 2)
    assert {item["error"]["code"] for item in contents(batch.error_file_id)} == {"batch_expired"}


def test_lines_and_expired_outputs_are_removed_in_time(manager):
    from inference.files.services import files_sweep
    from inference.models import StoredFile

    batch = work(make_batch([line("a")]), make_runner(manager))
    assert upkeep.batches_sweep() == 0
    Batch.objects.update(ended_at=timezone.now() - upkeep.LINES_KEPT - timedelta(seconds=1))
    assert upkeep.batches_sweep() > 0
    assert (BatchLine.objects.count(), BatchResult.objects.count()) == (0, 0)
    assert contents(batch.output_file_id)
    StoredFile.objects.update(expires_at=timezone.now())
    assert files_sweep() == 2


def test_a_full_disk_delays_one_batch_and_nothing_else(manager, monkeypatch, caplog):
    first, second = (make_batch([line(name)]) for name in "ab")
    Batch.objects.update(num_completed=F("num_total"), state="in_progress")
    finalise = upkeep.batch_finalise

    def full(claim: BatchClaim) -> None:
        if claim.row.pk == first.pk:
            raise StorageFull("no room")
        finalise(claim)

    monkeypatch.setattr(upkeep, "batch_finalise", full)
    upkeep.batches_turn(owner="w")
    states = dict(Batch.objects.values_list("pk", "state"))
    assert states == {first.pk: "finalizing", second.pk: "completed"}
    assert "can't be ended yet: no room" in caplog.text


@on_postgresql
@pytest.mark.parametrize("state", ["in_progress", "validating"])
def test_batches_that_expire_are_locked_in_the_order_of_their_keys(model, state):
    first, second = (make_batch([line(name)]) for name in "ab")
    Batch.objects.update(state=state, expires_at=timezone.now() - timedelta(seconds=1))
    Batch.objects.filter(pk=first.pk).update(priority=1)  # an index leads to the second one first
    assert_in_order(lambda: upkeep.batches_turn(owner="w", stopping=lambda: True), first, second)
    assert set(Batch.objects.values_list("ending", flat=True)) == {"expired"}


@on_postgresql
def test_lines_are_removed_without_waiting_for_those_that_others_have(manager):
    work(make_batch([line("a"), line("b")]), make_runner(manager))
    Batch.objects.update(ended_at=timezone.now() - upkeep.LINES_KEPT - timedelta(seconds=1))
    others, _ = BatchLine.objects.order_by("pk")
    assert without_waiting(upkeep.batches_sweep, others)
    assert BatchLine.objects.get() == others
