"""Each message is begun at most once, and ends once, with its request."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

import orjson
import pytest
import redis

from inference.errors import EngineDead
from inference.transport import keys as redis_keys
from inference.transport.crash_record import MARGIN_TOKENS
from inference.transport.held_messages import held_messages, release_worker, return_messages
from tests.inference.transport.collected import Collected
from tests.inference.transport.queued import enqueue, queued_ids
from tests.inference.worker.fakes import FakeLLM, message, wait_until
from tests.inference.worker.harness import collect, error, tokens


async def test_events_reach_their_readers_and_messages_are_settled(hub, worker, client):
    w = worker()
    subscriptions = [Collected(hub, f"r{number}") for number in range(8)]
    for number in range(8):
        w.deliver(message(f"r{number}", text="x" * (number + 1)))
    for number, events in enumerate(await asyncio.gather(*(collect(item) for item in subscriptions))):
        assert tokens(events) == [100 * (number + 1) + step for step in range(5)]
        kinds = [event["type"] for event in events]
        assert (kinds[0], set(kinds[1:-1]), kinds[-1]) == ("start", {"delta"}, "done")
    wait_until(lambda: len(w.acked) == 8)
    assert not client.exists(redis_keys.MESSAGE_WORKERS, redis_keys.MESSAGES, redis_keys.OPEN_REQUESTS)
    assert hub.num_streams == 0
    assert w.runtime.intake.held == set()


async def test_next_worker_goes_on_behind_what_the_client_has(hub, worker, client):
    """kill -9 in the middle: no gap, no repetition, and the dead attempt's late events are dropped."""
    first = worker("w1", make=lambda _: FakeLLM(step_s=0.01))
    subscription = Collected(hub, "r")
    item = message("r", max_tokens=1000)
    first.deliver(item)
    await asyncio.to_thread(wait_until, lambda: subscription.num_delivered > 10)
    await asyncio.to_thread(first.crash)
    release_worker(client, "w1")
    gate = threading.Event()
    second = worker("w2", make=lambda _: FakeLLM(gate=gate))
    second.take()
    collecting = asyncio.create_task(collect(subscription))
    await asyncio.to_thread(wait_until, lambda: "a" in second.plans.llms and second.plans.llms["a"].running)
    late = {"request_id": "r", "attempt": 0, "index": 30, "type": "delta", "choice": 0, "text": "?", "token_ids": [9]}
    client.xadd(redis_keys.out("web-1"), redis_keys.pack_events([late]))
    gate.set()
    events = await collecting
    assert tokens(events) == [300 + step for step in range(1000)]
    assert [event["type"] for event in events].count("start") == 1
    assert len(second.plans.llms["a"].seen[0]["delivered"][0]) > 10
    assert second.plans.llms["a"].seen[0]["attempt"] == 1


def test_ended_messages_do_not_come_back(client):
    client.hset(redis_keys.MESSAGE_WORKERS, "held", "w2")
    return_messages(client, "w1", ["gone", "held"])
    assert not client.exists(*redis_keys.model_queues("a"))
    assert client.hgetall(redis_keys.MESSAGE_WORKERS) == {b"held": b"w2"}


async def test_a_request_fails_after_three_crashes_that_count(hub, worker, client):
    w = worker()
    client.hset(redis_keys.attempt("r"), mapping={"n": 2, "crashes": 3, "seen": 2})
    subscription = Collected(hub, "r")
    w.deliver(message("r"), had_before=True)
    assert "failed: 3 workers" in error(await collect(subscription)).message
    wait_until(lambda: w.acked == ["r"])


async def test_deliveries_without_a_crash_do_not_count(hub, worker, client):
    """A drained worker, or a message that came while its model was unloaded: both come from the returned ones."""
    w = worker()
    client.hset(redis_keys.attempt("r"), "n", 7)
    subscription = Collected(hub, "r")
    w.deliver(message("r"), had_before=True)
    assert tokens(await collect(subscription)) == [300 + step for step in range(5)]
    assert "alone_tokens" not in w.plans.llms["a"].seen[0]


async def test_a_suspect_runs_alone_and_its_neighbours_afterwards(hub, worker, client):
    gate = threading.Event()
    w = worker(make=lambda _: FakeLLM(gate=gate))
    client.hset(redis_keys.attempt("suspect"), mapping={"n": 2, "crashes": 2, "seen": 1})
    subscriptions = {name: Collected(hub, name) for name in ("before", "suspect", "after")}
    w.deliver(message("before", max_tokens=10))
    await asyncio.to_thread(wait_until, lambda: w.plans.llms.get("a") and w.plans.llms["a"].running)
    w.deliver(message("suspect", max_tokens=200), had_before=True)
    await asyncio.to_thread(wait_until, lambda: w.runtime.manager.runs_alone)
    w.deliver(message("after", max_tokens=10))
    assert [item["request_id"] for item in w.plans.llms["a"].seen] == ["before"]
    together: list[tuple[set[str], bytes | None]] = []
    llm = w.plans.llms["a"]
    step = llm.step

    def recorded_step():
        together.append((set(llm.running), client.get(redis_keys.alone("w1"))))
        if len(together) > MARGIN_TOKENS + 20 and {item["request_id"] for item in llm.seen} < set(subscriptions):
            time.sleep(0.05)  # so that the others have time to begin beside it
        return step()

    llm.step = recorded_step
    gate.set()
    for name, subscription in subscriptions.items():
        assert len(tokens(await collect(subscription))) == {"suspect": 200}.get(name, 10)
    alone = [names for names, mark in together if mark == b"suspect"]
    assert len(alone) >= MARGIN_TOKENS
    assert all(names == {"suspect"} for names in alone)
    assert {"suspect", "after"} in [names for names, _ in together]  # it has shown that it harms nobody
    await asyncio.to_thread(wait_until, lambda: not client.exists(redis_keys.alone("w1")))


async def test_a_poison_takes_no_neighbour_along(hub, worker, client, monkeypatch):
    """Three workers die with it, and never does a request fail that was beside it."""
    exits: list[int] = []
    monkeypatch.setattr("inference.worker.runtime.os._exit", exits.append)

    class Poisoned(FakeLLM):
        def step(self):
            if "poison" in self.running:
                raise EngineDead("poisoned.")
            return super().step()

    subscriptions = {name: Collected(hub, name) for name in ("poison", *(f"r{number}" for number in range(8)))}
    for name in subscriptions:
        enqueue(client, message(name, max_tokens=60))
    left = list(subscriptions)

    def has_ended(deaths: int) -> bool:
        return len(exits) > deaths or all(item.subscription.is_ended for item in subscriptions.values())

    while left:
        deaths = len(exits)
        w = worker(f"w{deaths}", make=lambda _: Poisoned(), max_num_seqs=16)
        w.take()
        await asyncio.to_thread(wait_until, partial(has_ended, deaths))
        left = [name for name, item in subscriptions.items() if not item.subscription.is_ended]
        assert len(exits) <= 3
    assert len(exits) == 3
    for name, subscription in subscriptions.items():
        events = await collect(subscription)
        if name == "poison":
            assert "3 workers" in error(events).message
        else:
            assert tokens(events) == [300 + step for step in range(60)]


async def test_a_message_that_redis_forgot_and_got_again_runs_once(hub, worker, client):
    gate = threading.Event()
    gate.set()
    w = worker(make=lambda _: FakeLLM(step_s=0.01, gate=gate))
    subscription = Collected(hub, "r")
    w.deliver(message("r", max_tokens=1000))
    await asyncio.to_thread(wait_until, lambda: subscription.num_delivered)
    gate.clear()
    client.delete(redis_keys.MESSAGES, redis_keys.OPEN_ORIGINS, redis_keys.MESSAGE_WORKERS)
    w.deliver(message("r", max_tokens=1000), had_before=True)
    await asyncio.to_thread(wait_until, lambda: held_messages(client, "w1") == {"r"})
    w.plans.llms["a"].step_s = 0.0
    gate.set()
    assert tokens(await collect(subscription)) == [300 + step for step in range(1000)]
    wait_until(lambda: w.acked == ["r"])
    assert len(w.plans.llms["a"].seen) == 1
    assert not client.exists(redis_keys.MESSAGE_WORKERS, redis_keys.MESSAGES)


@pytest.mark.parametrize(
    "body",
    [
        b"no JSON",
        b'["web-1"]',
        b'{"request_id": "r", "web_id": "web-1"}',
        orjson.dumps(message("r") | {"deadline": "soon", "web_id": "web-1"}),
    ],
    ids=["no JSON", "no object", "members missing", "wrong type"],
)
async def test_a_message_of_another_version_is_refused(hub, worker, client, caplog, body):
    w = worker()
    subscription = Collected(hub, "r")
    enqueue(client, message("r"))
    client.hset(redis_keys.MESSAGES, "r", body)
    w.take()
    await asyncio.to_thread(wait_until, lambda: w.acked == ["r"])
    assert "isn't of this version" in caplog.text
    assert not client.exists(redis_keys.MESSAGE_WORKERS, redis_keys.MESSAGES)
    if b"web_id" in body:
        assert "another version" in error(await collect(subscription)).message
    w.deliver(message("next"))
    await asyncio.to_thread(wait_until, lambda: w.acked == ["r", "next"])


async def test_returned_message_that_nobody_waits_for_is_dropped(hub, worker, client):
    w = worker()
    w.deliver(message("unknown"), had_before=True)
    await asyncio.to_thread(wait_until, lambda: w.acked == ["unknown"])
    assert w.plans.loads == []


async def test_queued_request_that_was_cancelled_is_never_started(worker, client):
    client.xadd(redis_keys.CONTROL_STREAM, {"cancel": "early"})
    w = worker()
    client.xadd(redis_keys.CONTROL_STREAM, {"cancel": "late"})
    await asyncio.to_thread(wait_until, lambda: "late" in w.runtime.cancelled)
    w.deliver(message("early"))
    w.deliver(message("late"))
    await asyncio.to_thread(wait_until, lambda: sorted(w.acked) == ["early", "late"])
    assert w.plans.loads == []


async def test_cancel_that_comes_just_before_the_submit_counts(worker, client, monkeypatch):
    w = worker(make=lambda _: FakeLLM(step_s=0.01))
    submit = w.runtime.manager.submit

    def submit_late(*args) -> None:
        w.runtime.cancelled.add("r")
        assert not w.runtime.manager.cancel("r")
        submit(*args)

    monkeypatch.setattr(w.runtime.manager, "submit", submit_late)
    w.deliver(message("r", max_tokens=100_000))
    await asyncio.to_thread(wait_until, lambda: w.acked == ["r"])
    assert w.runtime.manager.num_active == 0


async def test_deadline_in_the_queue_gives_an_error(hub, worker):
    w = worker()
    subscription = Collected(hub, "r")
    w.deliver(message("r", deadline=time.time() - 1))
    assert error(await collect(subscription)).http_status == 503


async def test_requests_of_a_lost_web_process_are_cancelled(worker, client, monkeypatch):
    monkeypatch.setattr("inference.worker.heartbeat.WEB_CHECK_INTERVAL_S", 0.2)
    w = worker(make=lambda _: FakeLLM(step_s=0.01))
    w.deliver(message("r", max_tokens=100_000, web_id="gone"))
    await asyncio.to_thread(wait_until, lambda: w.acked == ["r"])


async def test_request_that_can_not_be_submitted_ends_with_an_error(hub, worker, monkeypatch):
    w = worker()

    def broken(*args) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(w.runtime.manager, "submit", broken)
    subscription = Collected(hub, "r")
    w.deliver(message("r"))
    found = error(await collect(subscription))
    assert (found.http_status, "secret" in found.message) == (500, False)
    await asyncio.to_thread(wait_until, lambda: w.acked == ["r"])


async def test_events_of_a_message_that_was_handed_back_are_dropped(worker, client):
    """The next worker ends it: a second last event would reach a client that reads the next attempt."""
    gate = threading.Event()
    w = worker(make=lambda _: FakeLLM(step_s=0.01, gate=gate))
    w.deliver(message("r", max_tokens=20))
    await asyncio.to_thread(wait_until, lambda: "a" in w.plans.llms and w.plans.llms["a"].running)
    w.runtime.intake.stop()
    w.runtime.deliveries.return_messages()
    num_sent = client.xlen(redis_keys.out("web-1"))
    gate.set()
    await asyncio.to_thread(wait_until, lambda: w.runtime.manager.num_active == 0)
    assert w.runtime.publisher.flush(60)
    assert client.xlen(redis_keys.out("web-1")) <= num_sent + 1  # what was on its way
    assert w.acked == []
    assert w.runtime.deliveries.web_ids() == []
    assert held_messages(client, "w1") == set()
    assert queued_ids(client, redis_keys.model_queues("a")[0]) == ["r"]


async def test_a_request_that_is_resumed_while_its_worker_stops_goes_back(worker, client):
    """The worker still waits for its running requests when the reply of the web process comes."""
    w = worker(make=lambda _: FakeLLM(step_s=0.01))
    w.deliver(message("running", max_tokens=100_000))
    await asyncio.to_thread(wait_until, lambda: "a" in w.plans.llms and w.plans.llms["a"].running)
    client.set(redis_keys.web("web-2"), b"1")
    w.deliver(message("r", web_id="web-2"), had_before=True)
    await asyncio.to_thread(wait_until, lambda: client.xlen(redis_keys.out("web-2")) == 1)
    stopping = threading.Thread(target=w.runtime.stop, args=(1.0,))
    stopping.start()
    await asyncio.to_thread(wait_until, lambda: w.runtime.manager._residents._closing)
    client.lpush(redis_keys.resume("r", 1), redis_keys.pack([[300]]))
    await asyncio.to_thread(stopping.join, 60)
    assert w.acked == []
    assert client.xlen(redis_keys.out("web-2")) == 1, "the question, and no error"
    assert sorted(queued_ids(client, redis_keys.model_queues("a")[0])) == ["r", "running"]


@pytest.mark.parametrize("had_before", [False, True])
async def test_a_message_that_comes_after_the_stop_is_handed_back(worker, client, had_before):
    """The intake waits for a slow Redis while the worker stops."""
    w = worker()
    client.set(redis_keys.web("web-1"), b"1")
    w.runtime.deliveries.stop()
    w.deliver(message("r"), had_before=had_before)
    await asyncio.to_thread(wait_until, lambda: w.runtime.deliveries.web_ids() == ["web-1"])
    await asyncio.to_thread(w.runtime.stop, 0)
    assert (w.plans.loads, w.acked) == ([], [])
    assert queued_ids(client, redis_keys.model_queues("a")[0]) == ["r"]


async def test_a_request_waits_for_a_redis_that_is_away_when_it_should_resume(hub, worker, client, monkeypatch):
    w = worker()
    pipeline, failures = w.runtime._client.pipeline, iter(range(3))

    def away(*args, **kwargs):
        if next(failures, None) is not None:
            raise redis.ConnectionError("away")
        return pipeline(*args, **kwargs)

    monkeypatch.setattr(w.runtime.deliveries._resumer._client, "pipeline", away)
    monkeypatch.setattr("inference.worker.resume.RETRY_S", 0.05)
    subscription = Collected(hub, "r")
    w.deliver(message("r"), had_before=True)
    assert tokens(await collect(subscription)) == [300 + step for step in range(5)]
    await asyncio.to_thread(wait_until, lambda: w.acked == ["r"])
    assert next(failures, None) is None
