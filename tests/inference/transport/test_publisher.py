"""The publisher over a real Redis: what is sent at once, what waits for the interval, and nothing is lost."""

from __future__ import annotations

import threading
import time

import pytest

from inference.transport import keys as redis_keys
from inference.transport.held_messages import held_messages
from inference.transport.publisher import EventPublisher
from inference.values.messages import GenerationEvent
from tests.inference.standing_clock import StandingClock
from tests.inference.transport.queued import enqueue, take
from tests.inference.transport.test_deltas import delta, start
from tests.inference.worker.fakes import message, wait_until

STREAMS = 20
WORKER = "w1"


def step(index: int) -> list[GenerationEvent]:
    return [delta(number, index) for number in range(STREAMS)]


@pytest.fixture
def begin(client):
    """Start a publisher that has sent the first tokens of ``STREAMS`` requests, and flushed one delta."""
    publishers = []
    ended: list[str] = []

    def begin(interval_s: float):
        publisher = EventPublisher(client, WORKER, on_ended=ended.extend, interval_s=interval_s)
        publisher.ended = ended
        publisher.start()
        publishers.append(publisher)
        for number, events in enumerate((step(1), [delta(99, 2)])):
            publish(publisher, events)
            wait_until(lambda number=number: client.xlen(redis_keys.out("web")) == number + 1)
        assert publisher.flush(60)
        return publisher, lambda: [
            redis_keys.unpack(fields[b"e"]) for _, fields in client.xrange(redis_keys.out("web"))[2:]
        ]

    yield begin
    for publisher in publishers:
        publisher.stop()


def publish(publisher: EventPublisher, events: list[GenerationEvent], ended=()) -> None:
    publisher.publish([("web", event) for event in events], ended)


@pytest.fixture
def clock(monkeypatch):
    found = StandingClock()
    monkeypatch.setattr("inference.transport.publisher.time", found)
    return found


def test_deltas_of_one_interval_are_sent_together(begin, clock):
    publisher, deliveries = begin(0.5)
    publish(publisher, step(2))
    publish(publisher, step(3))
    time.sleep(0.6)
    assert deliveries() == []
    clock.now += 0.5
    wait_until(lambda: len(deliveries()) == 1)
    assert [(event["index"], event["span"]) for event in deliveries()[0]] == [(2, 2)] * STREAMS
    # The interval is over, and nothing waits: what comes next is sent at once.
    clock.now += 0.5
    publish(publisher, step(4))
    wait_until(lambda: len(deliveries()) == 2)
    assert deliveries()[1] == step(4)


def test_without_an_interval_every_step_is_sent_at_once(begin):
    publisher, deliveries = begin(0.0)
    for index in (2, 3):
        publish(publisher, step(index))
        wait_until(lambda index=index: len(deliveries()) == index - 1)
    assert deliveries() == [step(2), step(3)]


def test_an_end_takes_along_the_deltas_of_its_request_only(begin):
    publisher, deliveries = begin(60.0)
    publish(publisher, step(2))
    ends = [delta(0, 3, finish_reason="length"), {"request_id": "r0", "attempt": 0, "index": 4, "type": "done"}]
    publish(publisher, [*ends, *step(3)[1:]], ["r0"])
    wait_until(lambda: publisher.ended == ["r0"])
    assert [(event["request_id"], event["index"], event.get("span")) for event in deliveries()[0]] == [
        ("r0", 2, 2),
        ("r0", 4, None),
    ]
    assert publisher.flush(60)
    assert [(event["request_id"], event["index"], event["span"]) for event in deliveries()[1]] == [
        (f"r{number}", 2, 2) for number in range(1, STREAMS)
    ]


def test_an_end_without_events_takes_along_the_deltas_of_its_request(begin):
    publisher, deliveries = begin(60.0)
    publish(publisher, step(2))
    publish(publisher, [], ["r3"])
    wait_until(lambda: publisher.ended == ["r3"])
    assert deliveries() == [[delta(3, 2)]]


def test_deltas_are_sent_in_time_although_other_requests_end_meanwhile(begin, clock):
    publisher, deliveries = begin(0.5)
    publish(publisher, step(2))
    for number in range(3):
        clock.now += 0.15
        publish(publisher, [delta(number, 3, finish_reason="length")])
        wait_until(lambda number=number: len(deliveries()) == number + 1)
    clock.now += 0.06  # 0.05 may be rounded to less than the rest of the interval, by when the machine was started
    wait_until(lambda: len(deliveries()) == 4)
    assert [event["request_id"] for event in deliveries()[3]] == [f"r{number}" for number in range(3, STREAMS)]


def test_a_first_token_is_sent_alone_while_others_wait(begin):
    publisher, deliveries = begin(60.0)
    publish(publisher, step(2))
    publish(publisher, [*step(3), start(STREAMS), delta(STREAMS, 1)])
    wait_until(lambda: len(deliveries()) == 1)
    assert deliveries()[0] == [start(STREAMS), delta(STREAMS, 1)]
    assert publisher.flush(60)
    assert [(event["index"], event["span"]) for event in deliveries()[1]] == [(2, 2)] * STREAMS


def test_deltas_that_come_with_a_first_token_are_sent_in_time(begin, clock):
    """Without another publish: the next step may be a long one."""
    publisher, deliveries = begin(0.5)
    publish(publisher, [*step(2), start(STREAMS), delta(STREAMS, 1)])
    wait_until(lambda: len(deliveries()) == 1)
    assert deliveries()[0] == [start(STREAMS), delta(STREAMS, 1)]
    clock.now += 0.5
    wait_until(lambda: len(deliveries()) == 2)
    assert deliveries()[1] == step(2)


def test_a_flush_does_not_wait_for_the_interval(begin):
    publisher, deliveries = begin(60.0)
    publish(publisher, step(2))
    assert publisher.flush(60)
    assert [delivery[0]["index"] for delivery in deliveries()] == [2]


def test_a_first_token_does_not_hold_up_the_engine_while_redis_is_away(begin, monkeypatch):
    publisher, deliveries = begin(0.0)
    is_back = threading.Event()
    send_once = publisher._send_once

    def wait_for_redis(batch) -> None:
        is_back.wait(60)
        send_once(batch)

    monkeypatch.setattr(publisher, "_send_once", wait_for_redis)
    publish(publisher, [delta(0, 1)])
    wait_until(lambda: publisher._sending)
    for number in (1, 2):
        publish(publisher, [delta(number, 1)])
    is_back.set()
    wait_until(lambda: len(deliveries()) == 2)
    assert [[event["request_id"] for event in delivery] for delivery in deliveries()] == [["r0"], ["r1", "r2"]]


def test_an_end_and_its_record_are_one_transaction(begin, client):
    publisher, deliveries = begin(0.0)
    for number in range(3):
        enqueue(client, message(f"r{number}"))
    take(client, WORKER)
    client.config_resetstat()
    ends = [{"request_id": f"r{number}", "attempt": 0, "index": 2, "type": "done"} for number in range(2)]
    publish(publisher, ends, ["r0", "r1"])
    wait_until(lambda: publisher.ended == ["r0", "r1"])
    assert deliveries() == [ends]
    assert client.info("commandstats")["cmdstat_exec"]["calls"] == 1
    assert held_messages(client, WORKER) == {"r2"}
    assert client.hkeys(redis_keys.MESSAGES) == client.zrange(redis_keys.OPEN_REQUESTS, 0, -1) == [b"r2"]


def test_an_end_that_redis_refuses_is_tried_again(begin, client):
    publisher, _ = begin(0.0)
    enqueue(client, message("r1"))
    client.set(redis_keys.MESSAGE_WORKERS, "no hash")
    publish(publisher, [{"request_id": "r1", "attempt": 0, "index": 2, "type": "done"}], ["r1"])
    time.sleep(0.3)
    assert publisher.ended == []
    client.delete(redis_keys.MESSAGE_WORKERS)
    take(client, WORKER)
    wait_until(lambda: publisher.ended == ["r1"])


def test_events_are_sent_although_the_connection_was_cut(begin, client):
    publisher, deliveries = begin(0.0)
    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    publish(publisher, [delta(1, 2)])
    publish(publisher, [delta(1, 3)])
    assert publisher.flush(60)
    sent = [event for delivery in deliveries() for event in delivery]
    assert sum(event.get("span", 1) for event in sent) == 2
