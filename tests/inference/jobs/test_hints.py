"""Hints to the workers: each is sent, and they don't pile up while Redis hangs."""

from __future__ import annotations

import threading

from inference.errors import Unavailable
from inference.jobs import hints
from tests.inference.worker.fakes import wait_until


def num_senders() -> int:
    return sum(thread.name == "job-hint" for thread in threading.enumerate())


def test_hints_do_not_pile_up_and_the_last_one_is_sent(monkeypatch):
    wait_until(lambda: num_senders() == 0)
    gate, sent = threading.Event(), []

    def hang() -> None:
        sent.append(1)
        gate.wait(60)

    monkeypatch.setattr(hints, "hint_jobs_sync", hang)
    for _ in range(20):
        hints.wake_workers()
        wait_until(lambda: len(sent) == 1)
    assert num_senders() == 1
    gate.set()
    wait_until(lambda: num_senders() == 0)
    assert len(sent) == 2


def test_hints_are_sent_again_after_an_outage(monkeypatch):
    wait_until(lambda: num_senders() == 0)
    sent: list[int] = []

    def fail() -> None:
        sent.append(1)
        raise Unavailable("Redis is away.")

    monkeypatch.setattr(hints, "hint_jobs_sync", fail)
    for number in range(1, 3):
        hints.wake_workers()
        wait_until(lambda: num_senders() == 0)
        assert len(sent) == number
