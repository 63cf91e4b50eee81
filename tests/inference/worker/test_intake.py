"""A worker's intake over a real Redis: what it takes, when it waits, and what a cut connection loses."""

from __future__ import annotations

import threading
import time

import pytest
import redis

from inference.transport import keys as redis_keys
from inference.transport.held_messages import held_messages, release_dead_workers, wake_worker
from inference.worker import intake as module
from inference.worker.intake import Intake
from tests.inference.transport.queued import enqueue, queued_ids
from tests.inference.worker.fakes import message, wait_until

WORKER = "intake-test"


class Taking:
    """An intake, and the messages that it passed on."""

    def __init__(self, client: redis.Redis, url: str, max_held: int) -> None:
        self.client = client
        self.ids: list[str] = []
        self.had_before: set[str] = set()
        self.fenced = threading.Event()
        self.name = f"intake-{id(self)}"
        self.own = redis.Redis.from_url(url, protocol=2, socket_timeout=120, client_name=self.name)
        self.intake = Intake(
            self.own, WORKER, max_held=max_held, deliver=self.deliver, on_fenced=lambda: self.fenced.set()
        )

    def is_waiting(self) -> bool:
        """Whether the intake waits in Redis; other clients may wait there too."""
        return any(one["name"] == self.name and "b" in one["flags"] for one in self.client.client_list())

    def deliver(self, request_id: str, body: bytes, had_before: bool) -> None:
        self.ids.append(request_id)
        if had_before:
            self.had_before.add(request_id)
        if request_id == "broken":
            raise RuntimeError("broken")

    def add(self, checkpoint_id: str = "a") -> None:
        self.intake.add(checkpoint_id)
        wake_worker(self.client, WORKER)


@pytest.fixture
def start(client, redis_urls_in_settings):
    made: list[Taking] = []

    def start(max_held: int = 64) -> Taking:
        made.append(Taking(client, redis_urls_in_settings.client, max_held))
        made[-1].intake.start()
        return made[-1]

    yield start
    for item in made:
        item.intake.stop()
        assert not item.intake._thread.is_alive()


def queue(client, *names, **members):
    for name in names:
        enqueue(client, message(name, **members))


def test_messages_come_without_a_poll(start, client, monkeypatch):
    monkeypatch.setattr(module, "POLL_S", 100.0)
    taking = start()
    taking.add()
    for number in range(3):
        wait_until(taking.is_waiting)
        queue(client, f"r{number}")
        wait_until(lambda number=number: taking.ids == [f"r{index}" for index in range(number + 1)])


def test_nothing_is_taken_of_a_model_that_was_not_added_or_was_removed(start, client):
    taking = start()
    queue(client, "b1", model="b")
    taking.add("a")
    queue(client, "a1")
    wait_until(lambda: taking.ids == ["a1"] and taking.is_waiting())
    taking.intake.remove("a")
    queue(client, "a2")
    time.sleep(0.2)
    assert taking.ids == ["a1"]
    assert queued_ids(client, redis_keys.model_queue("b")) == ["b1"]
    taking.add("a")
    taking.add("b")
    wait_until(lambda: sorted(taking.ids) == ["a1", "a2", "b1"])
    assert sorted(taking.intake.models) == ["a", "b"]


def test_a_wake_up_for_a_model_that_was_removed_meanwhile_goes_to_another_worker(start, client):
    taking = start()
    taking.add()
    wait_until(taking.is_waiting)
    taking.intake.remove("a")
    queue(client, "r")
    assert client.blpop(redis_keys.arrived("a"), timeout=60) is not None
    assert taking.ids == []


def test_a_worker_that_holds_enough_takes_the_rest_when_requests_have_ended(start, client):
    taking = start(max_held=3)
    queue(client, *(f"r{number}" for number in range(5)))
    taking.add()
    wait_until(lambda: len(taking.ids) == 3)
    time.sleep(0.1)
    assert taking.ids == ["r0", "r1", "r2"]
    taking.intake.release(["r0", "r1"])
    wait_until(lambda: len(taking.ids) == 5)
    assert taking.intake.held == {"r2", "r3", "r4"}


def test_a_message_that_breaks_its_receiver_does_not_end_the_intake(start, client, caplog):
    taking = start()
    client.rpush(redis_keys.model_queue("a"), b'{"body": "of an earlier version"}')
    queue(client, "broken", "next")
    taking.add()
    wait_until(lambda: taking.ids == ["broken", "next"])
    assert "1 entries of the queues are no requests of this version" in caplog.text
    assert "request broken could not be delivered" in caplog.text


def test_messages_whose_reply_was_lost_are_taken_again(start, client, monkeypatch):
    """Redis has recorded them as taken, the worker doesn't know it."""
    taking = start()
    take, lost = module.take_messages, []

    def lose_first(*args, **limits):
        taken = take(*args, **limits)
        if taken.messages and not lost:
            lost.extend(item.request_id for item in taken.messages)
            raise redis.ConnectionError("cut")
        return taken

    monkeypatch.setattr(module, "take_messages", lose_first)
    queue(client, "before")
    lost.append("nothing yet")
    taking.add()
    wait_until(lambda: taking.ids == ["before"])
    lost.clear()
    queue(client, "r1", "r2")
    wait_until(lambda: sorted(taking.ids) == ["before", "r1", "r2"])
    assert taking.had_before == set(lost) <= {"r1", "r2"}
    assert held_messages(client, WORKER) == {"before", "r1", "r2"}


def test_a_worker_that_was_declared_dead_learns_it_and_takes_nothing(start, client):
    taking = start()
    client.zadd(redis_keys.WORKERS, {WORKER: 1.0})
    release_dead_workers(client)
    queue(client, "r")
    taking.add()
    assert taking.fenced.wait(60)
    assert (taking.ids, queued_ids(client, redis_keys.model_queue("a"))) == ([], ["r"])
