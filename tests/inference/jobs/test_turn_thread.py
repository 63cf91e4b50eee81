"""A thread that takes turns: when it is woken, after its pause, and again after an error."""

from __future__ import annotations

import logging
import threading

import pytest
from django.db import OperationalError

from inference.jobs import turn_thread
from inference.jobs.turn_thread import TurnThread
from tests.inference.worker.fakes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class Counting(TurnThread):
    def __init__(self, pause_s: float = 60.0) -> None:
        super().__init__("counting", "the rows of a test")
        self.pause_s = pause_s
        self.steps: list[str] = []
        self.errors: list[Exception] = []

    def turn(self) -> None:
        self.steps.append("turn")
        if self.errors:
            raise self.errors.pop()

    def _pause_s(self) -> float:
        return self.pause_s

    def _begin(self) -> None:
        self.steps.append("begin")

    def _end(self) -> None:
        self.steps.append("end")


@pytest.fixture
def thread():
    made = Counting()
    yield made
    made.stop()


def test_turns_come_when_it_is_woken_between_begin_and_end(thread):
    thread.start()
    wait_until(lambda: thread.steps == ["begin"])
    thread.wake()
    wait_until(lambda: thread.steps == ["begin", "turn"])
    thread.stop()
    assert thread.steps[0] == "begin"
    assert thread.steps[-1] == "end"
    assert not any(item.name == "counting" for item in threading.enumerate())


def test_turns_come_after_the_pause_anyway(thread):
    thread.pause_s = 0.01
    thread.start()
    wait_until(lambda: thread.steps.count("turn") >= 3)


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (OperationalError("the database is away"), "the rows of a test: the database can't be reached"),
        (ValueError("a bug"), "a turn over the rows of a test failed"),
    ],
)
def test_a_failed_turn_is_logged_and_tried_again_after_a_moment(thread, monkeypatch, caplog, error, logged):
    monkeypatch.setattr(turn_thread, "PAUSE_S", 0.05)
    thread.pause_s = 0.01
    thread.errors.append(error)
    with caplog.at_level(logging.WARNING):
        thread.start()
        wait_until(lambda: thread.steps.count("turn") >= 2)
    assert [record.getMessage() for record in caplog.records if logged in record.getMessage()]


def test_an_error_before_the_first_turn_does_not_keep_the_turns_from_coming(thread, monkeypatch):
    monkeypatch.setattr(turn_thread, "PAUSE_S", 0.0)

    def broken() -> None:
        raise OperationalError("away")

    monkeypatch.setattr(thread, "_begin", broken)
    thread.pause_s = 0.01
    thread.start()
    wait_until(lambda: thread.steps.count("turn") >= 1)


def test_a_thread_that_was_never_started_can_be_stopped(thread):
    thread.stop(timeout_s=0.1)
    assert thread.steps == []
