"""Claims of lines: each line is one worker's, its result is written once, and a lapsed lease loses nothing."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from inference.batches import lines, upkeep
from inference.batches.services import batch_cancel, batch_pause
from inference.jobs.claims import LEASE_S, seconds_from_now
from inference.models import BatchLine, BatchResult, LineState
from inference.values.principal import LOCAL
from tests.inference.batches.fakes import contents, line, make_batch, make_runner, work
from tests.inference.batches.test_runner import die


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


@pytest.mark.skipif(connection.vendor != "postgresql", reason="a transaction of SQLite locks the whole database")
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

    def in_thread(work):
        try:
            return work()
        finally:
            connection.close()

    def pause():
        end(batch_id=batch.batch_id, principal=LOCAL)
        return running.count()

    running = BatchLine.objects.filter(state=LineState.RUNNING)
    with ThreadPoolExecutor(2) as threads:
        claiming = threads.submit(in_thread, lambda: lines.lines_claim(batch=batch, owner="w", limit=1))
        assert has_checked.wait(60)
        pausing = threads.submit(in_thread, pause)
        until = time.monotonic() + 60
        while not pausing.done() and not waits_for_a_lock():
            assert time.monotonic() < until
            time.sleep(0.01)
        may_commit.set()
        assert len(claiming.result(60)) == 1
        assert pausing.result(60) == running.count() == 1
    assert lines.lines_claim(batch=batch, owner="w", limit=1) == []


def waits_for_a_lock() -> bool:
    """Whether another connection to this database waits for a row's lock."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
        return bool(cursor.fetchone()[0])
