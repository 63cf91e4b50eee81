"""Claims of lines: each line is one worker's, its result is written once, and a lapsed lease loses nothing."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inference.batches import lines, upkeep
from inference.batches.services import batch_cancel, batch_pause
from inference.jobs.claims import LEASE_S, MAX_ATTEMPTS, leases_shorten, seconds_from_now
from inference.models import BatchLine, BatchResult, LineState
from inference.values.principal import LOCAL
from tests.inference.batches.fakes import contents, line, make_batch, make_runner, work
from tests.inference.batches.test_runner import die
from tests.inference.row_locks import assert_in_order, in_thread, on_postgresql, wait_for_a_lock


def test_a_dead_worker_costs_only_its_running_lines(manager):
    manager.holds = lambda message: message["prompt"]["text"] in ("3", "4")
    batch = make_batch(line(str(number), str(number)) for number in range(8))
    work(batch, make_runner(manager, "first"), turns=6)
    done = set(BatchLine.objects.filter(state=LineState.COMPLETED).values_list("custom_id", flat=True))
    assert BatchLine.objects.filter(state=LineState.RUNNING).count() == 2
    manager.holds = lambda message: False
    manager.messages.clear()
    die("first")
    batch = work(batch, make_runner(manager, "second"))
    assert batch.num_completed == 8
    again = [message["prompt"]["text"] for message in manager.messages]
    assert not done & set(again)
    assert {"3", "4"} <= set(again)
    assert [item["custom_id"] for item in contents(batch.output_file_id)] == [str(number) for number in range(8)]


def test_a_worker_that_only_slept_writes_nothing_any_more(manager):
    manager.holds = lambda message: True
    batch = make_batch([line("a")])
    slow = make_runner(manager, "slow")
    work(batch, slow, turns=2)
    asleep = dict(manager.held)
    manager.held.clear()
    die("slow")
    manager.holds = lambda message: False
    batch = work(batch, make_runner(manager, "quick"))
    assert batch.num_completed == 1
    for message, on_events in asleep.values():
        manager._answer(message, on_events)
    slow.turn()
    batch.refresh_from_db()
    assert batch.num_completed == 1
    assert BatchResult.objects.count() == 1


def test_a_databases_clock_that_is_set_back_delays_no_line(manager):
    """The times of its rows are then in the future: a dead worker's line waited for an hour."""
    manager.holds = lambda message: True
    batch = make_batch([line("a"), line("b")])
    work(batch, make_runner(manager, "dead"), turns=3)
    hour = timezone.now() + timedelta(hours=1)
    held, waiting = BatchLine.objects.order_by("number")
    BatchLine.objects.filter(pk=held.pk).update(lease_until=hour)
    BatchLine.objects.filter(pk=waiting.pk).update(
        state=LineState.QUEUED, lease_until=None, not_before=hour, owner="", attempts=0
    )
    lines.lines_sweep()
    held.refresh_from_db()
    assert held.state == LineState.RUNNING, "its worker may be alive, and has the time of a lease to say so"
    assert held.lease_until < timezone.now() + timedelta(seconds=LEASE_S + 1)
    assert [claimed.number for claimed in lines.lines_claim(batch=batch, owner="w", limit=2)] == [waiting.number]


def test_poison_is_set_aside_after_three_attempts_and_harms_nobody(manager):
    """The line 'p' kills its worker each time; the others were there and are innocent."""
    prompts = ["p" if number == 5 else f"t{number}" for number in range(12)]
    batch = make_batch(line(prompt, prompt) for prompt in prompts)
    starts = 0
    for life in range(10):
        # Nobody gets an answer out of a worker that has the poison line: it dies at once.
        manager.held.clear()
        manager.holds = lambda message: bool(manager.held) or message["prompt"]["text"] == "p"
        owner = f"life {life}"
        item = make_runner(manager, owner, window=12)
        work(batch, item, turns=20)
        if batch.is_finished:
            break
        starts += 1
        die(owner)
    assert batch.state == "completed"
    assert (batch.num_completed, batch.num_failed) == (11, 1)
    assert starts == 3
    (error,) = contents(batch.error_file_id)
    assert error["custom_id"] == "p"
    assert error["response"]["status_code"] == 500
    assert "died 3 times" in error["response"]["body"]["error"]["message"]


def test_workers_that_claim_at_once_never_get_the_same_line(manager):
    batch = make_batch(line(str(number)) for number in range(120))
    upkeep.batches_turn(owner="keeper")
    batch.refresh_from_db()
    claimed: list[int] = []

    def claim(owner: str) -> None:
        try:
            while found := lines.lines_claim(batch=batch, owner=owner, limit=7):
                claimed.extend(item.key for item in found)
        finally:
            connection.close()

    threads = [threading.Thread(target=claim, args=(f"w{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(claimed) == len(set(claimed))
    # SKIP LOCKED: a worker may see nothing while others hold the last lines, but nothing is left over.
    assert len(claimed) + BatchLine.objects.filter(state=LineState.QUEUED).count() == 120


def test_results_that_come_twice_count_once(manager):
    manager.holds = lambda message: True
    batch = make_batch([line("a"), line("b")])
    upkeep.batches_turn(owner="keeper")
    batch.refresh_from_db()
    held = lines.lines_claim(batch=batch, owner="w", limit=2)
    finished = [lines.FinishedLine(line=item, payload="{}", completion_tokens=5) for item in held]
    assert lines.lines_finish(finished=finished) == set()
    assert lines.lines_finish(finished=finished) == {(item.key, item.fence) for item in held}
    batch.refresh_from_db()
    assert (batch.num_completed, batch.completion_tokens, BatchResult.objects.count()) == (2, 10, 2)


def test_a_sweep_changes_lines_before_it_changes_batches(manager):
    """Who has the row of a batch must wait for no line: its end has the line, and waits for the batch."""
    batch = make_batch([line("a"), line("poison")])
    upkeep.batches_turn(owner="keeper")
    batch.refresh_from_db()
    _, poison = lines.lines_claim(batch=batch, owner="w", limit=2)
    BatchLine.objects.filter(pk=poison.key).update(attempts=MAX_ATTEMPTS)
    lines.lines_abandon(owner="w")
    with CaptureQueriesContext(connection) as captured:
        assert lines.lines_sweep() == 2
    tables = [found[1] for query in captured if (found := re.match(r'UPDATE "inference_(\w+)"', query["sql"]))]
    assert tables.index("batch") > max(at for at, table in enumerate(tables) if table == "batchline")


@on_postgresql
def test_a_sweep_waits_for_no_line_that_ends_late(manager, monkeypatch):
    """Each waited for the other: the sweep had the batch, the line's end had the line."""
    batch = make_batch([line("late"), line("poison")])
    upkeep.batches_turn(owner="keeper")
    batch.refresh_from_db()
    late, poison = lines.lines_claim(batch=batch, owner="w", limit=2)
    BatchLine.objects.filter(pk=poison.key).update(attempts=MAX_ATTEMPTS)
    lines.lines_abandon(owner="w")
    has_locked, may_end, write = threading.Event(), threading.Event(), lines.results_write

    def write_late(results):
        if [item.line_id for item in results] == [late.key]:
            has_locked.set()
            assert may_end.wait(60)
        write(results)

    monkeypatch.setattr(lines, "results_write", write_late)
    finished = [lines.FinishedLine(line=late, payload="{}")]
    with ThreadPoolExecutor(2) as threads:
        ending = threads.submit(in_thread, lambda: lines.lines_finish(finished=finished))
        try:
            assert has_locked.wait(60)
            sweeping = threads.submit(in_thread, lines.lines_sweep)
            wait_for_a_lock(sweeping)
        finally:
            may_end.set()
        assert (ending.result(60), sweeping.result(60)) == (set(), 1)
    batch.refresh_from_db()
    assert (batch.num_completed, batch.num_failed) == (1, 1)


@on_postgresql
@pytest.mark.parametrize(
    "renew",
    [
        lambda: lines.lines_heartbeat(owner="w"),
        lambda: lines.lines_abandon(owner="w"),
        lambda: leases_shorten(BatchLine.objects.filter(state=LineState.RUNNING), 0),
    ],
    ids=["heartbeat", "abandon", "shorten"],
)
def test_lines_are_locked_in_the_order_of_their_keys(manager, renew):
    batch = make_batch([line("a"), line("b")])
    upkeep.batches_turn(owner="keeper")
    batch.refresh_from_db()
    lines.lines_claim(batch=batch, owner="w", limit=2)
    assert_in_order(renew, *BatchLine.objects.order_by("pk"))


@on_postgresql
@pytest.mark.parametrize("end", [batch_pause, batch_cancel])
def test_no_line_starts_once_a_pause_has_answered(manager, monkeypatch, end):
    """A claim that had seen the batch unpaused committed after the pause's answer."""
    batch = make_batch([line("a"), line("b")])
    upkeep.batches_turn(owner="w")
    batch.refresh_from_db()
    has_checked, may_commit = threading.Event(), threading.Event()

    def wait(seconds):
        """Between the look at the batch and the start of its lines."""
        has_checked.set()
        assert may_commit.wait(60)
        return seconds_from_now(seconds)

    monkeypatch.setattr(lines, "seconds_from_now", wait)

    def pause():
        end(batch_id=batch.batch_id, principal=LOCAL)
        return running.count()

    running = BatchLine.objects.filter(state=LineState.RUNNING)
    with ThreadPoolExecutor(2) as threads:
        claiming = threads.submit(in_thread, lambda: lines.lines_claim(batch=batch, owner="w", limit=1))
        assert has_checked.wait(60)
        pausing = threads.submit(in_thread, pause)
        wait_for_a_lock(pausing)
        may_commit.set()
        assert len(claiming.result(60)) == 1
        assert pausing.result(60) == running.count() == 1
    assert lines.lines_claim(batch=batch, owner="w", limit=1) == []
