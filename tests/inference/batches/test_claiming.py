"""Which lines a worker claims, and which of them go back."""

from __future__ import annotations

import pytest
from django.utils import timezone

from inference.batches import lines, upkeep
from inference.batches.services import batch_cancel, batch_pause, batch_resume
from inference.errors import Conflict
from inference.models import Batch, BatchLine
from inference.values.principal import LOCAL
from tests.inference.batches.fakes import line, make_batch, make_runner, work
from tests.inference.batches.test_runner import die


def test_lines_that_were_claimed_and_never_started_go_back(manager, monkeypatch):
    """The database goes away while lines of a second batch are claimed: those of the first are nowhere here."""
    for _ in range(2):
        make_batch([line("a"), line("b")], priority=len(Batch.objects.all()))
    upkeep.batches_turn(owner="keeper")
    first = Batch.objects.order_by("pk")[0]
    lines.lines_claim(batch=first, owner="w", limit=1)
    manager.holds = lambda message: True
    item = make_runner(manager)
    for _ in range(3):
        item.turn()
    assert len(manager.held) == 4
    assert set(BatchLine.objects.values_list("state", "attempts")) == {("running", 1)}


def test_suspects_run_after_the_rest_in_small_groups(manager):
    manager.holds = lambda message: True
    batch = make_batch(line(str(number)) for number in range(40))
    work(batch, make_runner(manager, "first", window=20), turns=2)
    assert len(manager.held) == 20
    die("first")
    manager.held.clear()
    manager.messages.clear()
    item = make_runner(manager, "second", window=20)
    sizes = []
    for _ in range(30):
        upkeep.batches_turn(owner="keeper")
        item.turn()
        if manager.held:
            sizes.append(len(manager.held))
            manager.answer_held()
    batch.refresh_from_db()
    assert batch.num_completed == 40
    assert sizes == [20, 8, 8, 4]


def test_a_draining_worker_hands_its_lines_back_without_counting_the_attempt(manager):
    manager.holds = lambda message: True
    batch = make_batch([line("a")])
    item = make_runner(manager)
    work(batch, item, turns=2)
    item._hand_back()
    row = BatchLine.objects.get()
    assert (row.state, row.attempts, row.owner) == ("queued", 0, "")


def test_a_paused_batch_claims_nothing_and_its_running_lines_end(manager):
    manager.holds = lambda message: True
    batch = make_batch(line(str(number)) for number in range(8))
    work(batch, make_runner(manager, window=3), turns=2)
    running = make_runner(manager, "other", window=3)
    batch_pause(batch_id=batch.batch_id, principal=LOCAL)
    batch_pause(batch_id=batch.batch_id, principal=LOCAL)
    held = set(manager.held)
    work(batch, running, turns=3)
    assert set(manager.held) == held and len(held) == 3
    assert lines.lines_claim(batch=batch, owner="late", limit=3) == []  # its row was read before the pause
    batch_resume(batch_id=batch.batch_id, principal=LOCAL)
    work(batch, running, turns=2)
    assert len(manager.held) == 6


def test_a_paused_batch_expires_and_is_cancelled_like_any_other(manager):
    expiring, cancelled = (make_batch([line("a")]) for _ in range(2))
    for batch in (expiring, cancelled):
        batch_pause(batch_id=batch.batch_id, principal=LOCAL)  # before it is validated
    for batch in (expiring, cancelled):
        work(batch, make_runner(manager), turns=2)
        assert (batch.state, batch.num_open, batch.is_paused) == ("in_progress", 1, True)
    batch_cancel(batch_id=cancelled.batch_id, principal=LOCAL)
    assert work(cancelled).state == "cancelled" and not cancelled.is_paused
    Batch.objects.filter(pk=expiring.pk).update(expires_at=timezone.now())
    assert work(expiring).state == "expired"
    for change in (batch_pause, batch_resume):
        with pytest.raises(Conflict, match="any more"):
            change(batch_id=expiring.batch_id, principal=LOCAL)
