"""Deltas that wait for each other: which may, how long, and that merging them changes nothing that a reader gets."""

from __future__ import annotations

import threading
import time

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from inference.transport import delivery_pace
from inference.transport import keys as redis_keys
from inference.transport import publisher as publisher_module
from inference.transport.delivery_pace import MIN_STREAMS, DeliveryPace, can_wait, merge_deltas
from inference.transport.publisher import EventPublisher, Settlement
from inference.transport.subscription import Subscription
from inference.values.messages import GenerationEvent
from tests.inference.worker.fakes import wait_until

STREAMS = 20
"""Enough for the interval of most tests here, 50 ms."""


def delta(request: int, index: int, text: str = " w", **more) -> GenerationEvent:
    found: GenerationEvent = {
        "request_id": f"r{request}",
        "attempt": 0,
        "index": index,
        "type": "delta",
        "choice": 0,
        "text": text,
        "token_ids": [index],
    }
    return {**found, **more}


def step(index: int, streams: int = STREAMS) -> list[GenerationEvent]:
    return [delta(number, index) for number in range(streams)]


def start(request: int) -> GenerationEvent:
    return {"request_id": f"r{request}", "attempt": 0, "index": 0, "type": "start", "prompt_tokens": 3}


def delivered_at_1(interval_s: float) -> DeliveryPace:
    """One that has delivered a step's deltas at 1.0, the moment when they came."""
    pace = DeliveryPace(interval_s)
    pace.keep_until(STREAMS, 1.0)
    pace.delivered(1.0)
    return pace


# --- which may wait, and how long


def test_steps_wait_while_another_fits_in_before_the_interval_is_over():
    pace = DeliveryPace(0.050)
    pace.keep_until(STREAMS, 0.984)
    pace.delivered(1.0)
    assert pace.keep_until(STREAMS, 1.0) == 1.05
    assert pace.keep_until(STREAMS, 1.016) == 1.05
    assert pace.keep_until(STREAMS, 1.032) == 1.05
    assert pace.keep_until(STREAMS, 1.048) == 1.048


@pytest.mark.parametrize(("streams", "wait_s"), [(MIN_STREAMS, 0.024), (16, 0.048), (32, 0.096), (64, 0.1)])
def test_deltas_wait_three_milliseconds_for_each_stream_at_most(streams, wait_s):
    pace = DeliveryPace(0.1)
    pace.keep_until(streams, 0.99)
    pace.delivered(1.0)
    assert pace.keep_until(streams, 1.0) == pytest.approx(1.0 + wait_s)


def test_steps_longer_than_half_the_interval_do_not_wait():
    assert delivered_at_1(0.050).keep_until(STREAMS, 1.026) == 1.026


def test_deltas_of_few_streams_do_not_wait():
    pace = delivered_at_1(0.050)
    assert pace.keep_until(MIN_STREAMS - 1, 1.005) == 1.005
    assert pace.keep_until(STREAMS, 1.010) == 1.05


def test_without_an_interval_nothing_waits():
    assert delivered_at_1(0.0).keep_until(STREAMS, 1.001) == 1.001


@pytest.mark.parametrize(
    "event",
    [
        start(99),
        delta(99, 1),
        delta(99, 3, finish_reason="stop"),
        {"request_id": "r99", "attempt": 0, "index": 9, "type": "error", "error": {}},
    ],
    ids=["start", "first token", "end of a choice", "error"],
)
def test_what_somebody_waits_for_can_not_wait(event):
    assert not can_wait(event)
    assert can_wait(delta(99, 3))


# --- merging


class _Hub:
    def forget(self, request_id: str) -> None:
        pass

    def cancel_soon(self, request_id: str) -> None:
        raise AssertionError(f"{request_id} was given up")


def _read(deliveries: list[list[GenerationEvent]], request: str) -> tuple[str, list[int], list[str], list[str | None]]:
    """Text, tokens, log-probabilities and ends that a reader of ``request`` gets, in order."""
    subscription = Subscription(_Hub(), request)
    for events in deliveries:
        for event in events:
            if event["request_id"] == request:
                subscription.accept(event)
    taken = [event for event in subscription.take() if event["type"] == "delta"]
    return (
        "".join(event["text"] for event in taken),
        [token for event in taken for token in event["token_ids"]],
        [entry["token"] for event in taken for entry in event.get("logprobs", ())],
        [event["finish_reason"] for event in taken if event.get("finish_reason")],
    )


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    cuts=st.lists(st.booleans(), min_size=8, max_size=8),
    again=st.integers(0, 7),
    with_logprobs=st.booleans(),
)
def test_a_reader_gets_the_same_from_merged_deltas(lengths, cuts, again, with_logprobs):
    """Whatever steps go out together, and also if a delivery comes twice."""
    deliveries: list[list[GenerationEvent]] = [[start(number) for number in range(len(lengths))]]
    plain = [deliveries[0]]
    for index in range(1, max(lengths) + 1):
        events = []
        for number, length in enumerate(lengths):
            more: dict = {"logprobs": [{"token": f"{number}.{index}"}]} if with_logprobs else {}
            if index == length:
                more["finish_reason"] = "length"
            if index <= length:
                events.append(delta(number, index, f" {number}.{index}", **more))
        plain.append(events)
        if cuts[index]:
            deliveries.append([])
        deliveries[-1] = deliveries[-1] + events
    merged = [merge_deltas(events) for events in deliveries]
    repeated = min(again, len(merged) - 1)
    merged.insert(repeated, merged[repeated])
    for number, length in enumerate(lengths):
        found = _read(merged, f"r{number}")
        assert found == _read(plain, f"r{number}")
        assert len(found[1]) == length
    assert sum(event.get("span", 1) for event in merge_deltas(deliveries[-1])) == len(deliveries[-1])


def test_choices_attempts_vectors_and_ends_are_not_merged():
    events = [
        delta(1, 1),
        delta(1, 2, choice=1),
        delta(1, 3, choice=1, finish_reason="stop"),
        delta(1, 4, choice=1),
        delta(1, 0, attempt=1),
        {"request_id": "r1", "attempt": 1, "index": 1, "type": "done", "usage": {}},
    ]
    assert [(event["index"], event.get("span", 1)) for event in merge_deltas(events)] == [
        (1, 1),
        (2, 2),
        (4, 1),
        (0, 1),
        (1, 1),
    ]


# --- the publisher


@pytest.fixture
def client(redis_urls_in_settings):
    found = redis.Redis.from_url(redis_urls_in_settings.client, protocol=2)
    yield found
    found.delete(redis_keys.out("pace"))
    found.close()


@pytest.fixture
def sent(client, monkeypatch):
    """Start a publisher; call what comes to get its deliveries so far."""
    monkeypatch.setattr(delivery_pace, "WAIT_PER_STREAM_S", 60.0)  # the interval alone counts
    publishers = []

    def begin(interval_s: float):
        publisher = EventPublisher(client, interval_s=interval_s)
        publisher.start()
        publishers.append(publisher)
        return publisher, lambda: [
            redis_keys.unpack(fields[b"e"]) for _, fields in client.xrange(redis_keys.out("pace"))
        ]

    yield begin
    for publisher in publishers:
        publisher.stop()


def _publish(publisher: EventPublisher, events: list[GenerationEvent], settlements=()) -> None:
    publisher.publish([("pace", event) for event in events], settlements)


def _begun(sent, interval_s: float):
    """A publisher that has delivered the first tokens of ``STREAMS`` requests, and its deliveries."""
    publisher, deliveries = sent(interval_s)
    _publish(publisher, step(1))
    assert publisher.flush(5)
    return publisher, deliveries


def test_what_waits_goes_out_without_another_step(sent):
    publisher, deliveries = _begun(sent, 0.2)
    _publish(publisher, step(2))
    _publish(publisher, step(3))
    assert len(deliveries()) == 1
    wait_until(lambda: len(deliveries()) == 2)
    assert [(event["index"], event["span"]) for event in deliveries()[1]] == [(2, 2)] * STREAMS
    # The thread slept without anything to do: what comes next wakes it.
    time.sleep(0.5)
    _publish(publisher, step(4))
    wait_until(lambda: len(deliveries()) == 3)
    assert deliveries()[2] == step(4)


def test_an_end_takes_along_what_waits_of_its_request_and_settles_behind_it(sent):
    publisher, deliveries = _begun(sent, 60.0)
    settled = threading.Event()
    _publish(publisher, step(2))
    ends = [delta(0, 3, finish_reason="length"), {"request_id": "r0", "attempt": 0, "index": 4, "type": "done"}]
    _publish(publisher, [*ends, *step(3)[1:]], [Settlement("r0", "a", then=settled.set)])
    assert settled.wait(5)
    assert [(event["request_id"], event["index"], event.get("span")) for event in deliveries()[1]] == [
        ("r0", 2, 2),
        ("r0", 4, None),
    ]
    assert publisher.flush(5)
    assert [(event["request_id"], event["index"], event["span"]) for event in deliveries()[2]] == [
        (f"r{number}", 2, 2) for number in range(1, STREAMS)
    ]


def test_a_settlement_without_events_takes_along_what_waits_of_its_request(sent):
    publisher, deliveries = _begun(sent, 60.0)
    settled = threading.Event()
    _publish(publisher, step(2))
    _publish(publisher, [], [Settlement("r3", "a", then=settled.set)])
    assert settled.wait(5)
    assert deliveries()[1:] == [[delta(3, 2)]]


def test_what_waits_goes_out_in_time_although_others_end_meanwhile(sent):
    publisher, deliveries = _begun(sent, 0.2)
    before = time.monotonic()
    _publish(publisher, step(2))
    for number in range(3):
        _publish(publisher, [delta(number, 3, finish_reason="length")])
        time.sleep(0.03)
    wait_until(lambda: len(deliveries()) == 5)
    assert 0.1 < time.monotonic() - before < 2.0
    assert [event["request_id"] for event in deliveries()[4]] == [f"r{number}" for number in range(3, STREAMS)]


def test_deltas_of_fewer_streams_than_may_wait_take_along_what_waits(sent):
    publisher, deliveries = _begun(sent, 60.0)
    _publish(publisher, step(2))
    _publish(publisher, step(3, MIN_STREAMS - 1))
    wait_until(lambda: len(deliveries()) == 2)
    assert sum(event.get("span", 1) for event in deliveries()[1]) == STREAMS + MIN_STREAMS - 1


def test_a_flush_does_not_wait_for_the_interval(sent):
    publisher, deliveries = _begun(sent, 60.0)
    _publish(publisher, step(2))
    assert publisher.flush(5)
    assert [delivery[0]["index"] for delivery in deliveries()] == [1, 2]


def test_a_first_token_has_been_taken_by_the_sending_thread_when_publish_returns(sent, monkeypatch):
    monkeypatch.setattr(publisher_module, "HANDED_OVER_S", 5.0)
    publisher, _ = sent(0.0)
    for number in range(20):
        _publish(publisher, [delta(number, 1)])
        assert publisher._waiting.num_events == 0


def test_a_first_token_does_not_hold_up_the_engine_while_redis_is_away(sent, monkeypatch):
    publisher, deliveries = sent(0.0)
    is_back = threading.Event()
    send_once = publisher._send_once

    def wait_for_redis(batch) -> None:
        is_back.wait(10)
        send_once(batch)

    monkeypatch.setattr(publisher, "_send_once", wait_for_redis)
    _publish(publisher, [delta(0, 1)])
    wait_until(lambda: publisher._sending)
    for number in (1, 2):
        _publish(publisher, [delta(number, 1)])
    assert publisher._waiting.num_events == 2
    is_back.set()
    wait_until(lambda: len(deliveries()) == 2)
    assert [[event["request_id"] for event in delivery] for delivery in deliveries()] == [["r0"], ["r1", "r2"]]


@pytest.fixture
def writers(sent, monkeypatch):
    """A publisher that has sent something, its deliveries, and the threads that have written since."""
    publisher, deliveries = sent(0.0)
    _publish(publisher, [delta(0, 1)])
    assert publisher.flush(5)
    found, send = [], publisher._connection.send_packed_command

    def note(command, **options):
        found.append(threading.current_thread().name)
        send(command, **options)

    monkeypatch.setattr(publisher._connection, "send_packed_command", note)
    return publisher, deliveries, found


def test_a_first_token_is_written_by_its_engines_thread(writers):
    publisher, deliveries, found = writers
    for number in range(1, 4):
        _publish(publisher, [delta(number, 1)])
        assert publisher.flush(5)
    _publish(publisher, [delta(1, 2)])
    assert publisher.flush(5)
    assert found == [threading.current_thread().name] * 3 + ["publisher"]
    assert deliveries()[1:] == [[delta(1, 1)], [delta(2, 1)], [delta(3, 1)], [delta(1, 2)]]


def test_a_first_token_goes_out_alone_while_others_wait(sent):
    publisher, deliveries = _begun(sent, 60.0)
    _publish(publisher, step(2))
    _publish(publisher, [*step(3), start(STREAMS), delta(STREAMS, 1)])
    wait_until(lambda: len(deliveries()) == 2)
    assert deliveries()[1] == [start(STREAMS), delta(STREAMS, 1)]
    assert publisher.flush(5)
    assert [(event["index"], event["span"]) for event in deliveries()[2]] == [(2, 2)] * STREAMS


def test_a_first_token_that_ends_its_request_or_is_large_is_left_to_the_thread(writers):
    publisher, deliveries, found = writers
    settled = threading.Event()
    _publish(publisher, [delta(1, 1)], [Settlement("r1", "a", then=settled.set)])
    assert settled.wait(5)
    _publish(publisher, [delta(2, 1, text="w" * 100_000)])
    assert publisher.flush(5)
    assert found == ["publisher"] * 2
    assert len(deliveries()) == 3


def test_an_end_and_its_settlements_are_one_transaction(sent, client):
    publisher, deliveries = sent(0.0)
    settled = [threading.Event(), threading.Event()]
    flight = redis_keys.flight("a")
    try:
        for number in range(3):
            client.zadd(flight, {f"r{number}": 1})
            client.zadd(redis_keys.UNACKED_INDEX, {f"t{number}": 1})
            client.hset(redis_keys.UNACKED, f"t{number}", "message")
        ends = [{"request_id": f"r{number}", "attempt": 0, "index": 2, "type": "done"} for number in range(2)]
        _publish(publisher, ends, [Settlement(f"r{n}", "a", (f"t{n}",), settled[n].set) for n in range(2)])
        assert all(event.wait(5) for event in settled)
        assert deliveries() == [ends]
        assert client.zrange(flight, 0, -1) == [b"r2"]
        assert client.zrange(redis_keys.UNACKED_INDEX, 0, -1) == [b"t2"]
        assert client.hkeys(redis_keys.UNACKED) == [b"t2"]
    finally:
        client.delete(flight, redis_keys.UNACKED_INDEX, redis_keys.UNACKED)


def test_a_settlement_that_redis_refuses_is_tried_again(sent, client):
    publisher, _ = sent(0.0)
    settled = threading.Event()
    flight = redis_keys.flight("a")
    try:
        client.set(flight, "not a sorted set")
        _publish(
            publisher,
            [{"request_id": "r1", "attempt": 0, "index": 2, "type": "done"}],
            [Settlement("r1", "a", (), settled.set)],
        )
        assert not settled.wait(0.3)
        client.delete(flight)
        client.zadd(flight, {"r1": 1})
        assert settled.wait(5)
        assert not client.exists(flight)
    finally:
        client.delete(flight)


@pytest.mark.parametrize("is_lost_before", [True, False], ids=["the token", "the answer"])
def test_a_first_token_is_sent_again_when_its_connection_is_cut(writers, client, is_lost_before):
    publisher, deliveries, _ = writers
    if is_lost_before:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    else:
        connection = publisher._connection

        def cut() -> None:
            del connection.read_response  # once
            wait_until(lambda: len(deliveries()) == 2)
            raise redis.ConnectionError("cut")

        connection.read_response = cut
    _publish(publisher, [delta(1, 1)])
    _publish(publisher, [delta(1, 2)])
    assert publisher.flush(5)
    # What may have arrived comes twice rather than never; readers tell by its index.
    assert deliveries()[1:] == [[delta(1, 1)]] * (1 if is_lost_before else 2) + [[delta(1, 2)]]
