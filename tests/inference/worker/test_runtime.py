"""The worker's runtime and the web side's hub over a real Redis; without Celery."""

from __future__ import annotations

import asyncio
import threading
import time

import redis

from inference.errors import InvalidRequest
from inference.transport import keys as redis_keys
from inference.transport.held_messages import held_messages, release_dead_workers, release_worker
from inference.transport.worker_states import model_states, model_states_sync, worker_states
from inference.worker.runtime import EXIT_ENGINE_DEAD, EXIT_FENCED
from tests.inference.transport.collected import Collected
from tests.inference.transport.queued import enqueue, queued_ids
from tests.inference.worker.fakes import FakeLLM, message, wait_until
from tests.inference.worker.harness import collect, error, tokens


def returned(client) -> list[str]:
    """Ids of the returned requests."""
    return queued_ids(client, redis_keys.model_queues("a")[0])


async def test_one_stream_entry_per_step_not_per_token(hub, worker, client):
    gate = threading.Event()
    w = worker(make=lambda _: FakeLLM(gate=gate, step_s=0.01), max_num_seqs=32)
    subscriptions = [Collected(hub, f"r{number}") for number in range(16)]
    for number in range(16):
        w.deliver(message(f"r{number}", max_tokens=20))
    await asyncio.to_thread(wait_until, lambda: w.runtime.manager.num_active == 16)
    await asyncio.to_thread(wait_until, lambda: not any(w.runtime.manager._starts.num_preparations("a")))
    gate.set()
    await asyncio.gather(*(collect(item) for item in subscriptions))
    assert client.xlen(redis_keys.out("web-1")) <= 60  # 16 · 22 events


async def test_a_worker_holds_long_requests_and_a_dead_ones_return(worker, client):
    w = worker(make=lambda _: FakeLLM(step_s=0.05))
    w.deliver(message("r", max_tokens=100_000))
    await asyncio.to_thread(wait_until, lambda: held_messages(client, "w1") == {"r"})
    assert returned(client) == []
    await asyncio.to_thread(wait_until, lambda: b'"a"' in (client.get(redis_keys.worker("w1")) or b""))
    await asyncio.to_thread(w.crash)
    assert release_worker(client, "w1") == 1
    assert returned(client) == ["r"]
    assert client.zscore(redis_keys.WORKERS, "w1") is None
    assert client.zscore(redis_keys.holders("a"), "w1") is None  # its model is loaded elsewhere at once


async def test_a_worker_that_was_declared_dead_ends_and_takes_nothing(worker, client, monkeypatch):
    """A stopped process goes on after its peers have taken its messages."""
    codes: list[int] = []
    monkeypatch.setattr("inference.worker.runtime.os._exit", codes.append)
    w = worker(make=lambda _: FakeLLM(step_s=0.05))
    w.deliver(message("r", max_tokens=100_000))
    await asyncio.to_thread(wait_until, lambda: held_messages(client, "w1"))
    w.runtime.heartbeat._stopping = True
    w.runtime.heartbeat._thread.join()
    client.zadd(redis_keys.WORKERS, {"w1": time.time() - 60})
    release_dead_workers(client)  # what a peer does
    await asyncio.to_thread(wait_until, lambda: codes)
    assert codes[0] == EXIT_FENCED
    assert returned(client) == ["r"]
    assert held_messages(client, "w1") == set()


async def test_a_hung_step_makes_the_worker_unready_and_ends_it(hub, worker, client, monkeypatch):
    codes: list[int] = []
    late: list[bool] = []
    gate = threading.Event()
    gate.set()
    monkeypatch.setattr("inference.worker.runtime.os._exit", codes.append)
    monkeypatch.setattr("inference.worker.step_watch.HUNG_AFTER_S", 1.0)
    monkeypatch.setattr("inference.worker.step_watch.TICK_S", 0.05)
    monkeypatch.setattr("inference.worker.step_watch.MAX_SLOWDOWN", 2)
    w = worker(make=lambda _: FakeLLM(step_s=0.01, gate=gate))
    watch = w.runtime.step_watch
    tick = watch.tick

    def recorded_tick():
        late_s = tick()
        late.append(w.runtime.describe().is_late)
        return late_s

    monkeypatch.setattr(watch, "tick", recorded_tick)
    subscription = Collected(hub, "r")
    w.deliver(message("r", max_tokens=1000))
    await asyncio.to_thread(wait_until, lambda: subscription.num_delivered > 5)
    gate.clear()
    await asyncio.to_thread(wait_until, lambda: codes)
    assert codes == [EXIT_ENGINE_DEAD]
    assert late.count(True) > 5  # looks, before the last of which it had not ended
    assert returned(client) == ["r"]
    assert client.hget(redis_keys.attempt("r"), "crashes") == b"1"
    second = worker("w2")
    second.take()
    assert tokens(await collect(subscription)) == [300 + step for step in range(1000)]
    gate.set()


async def test_cancel_frees_the_slot(worker, client):
    w = worker(make=lambda _: FakeLLM(step_s=0.01))
    w.deliver(message("r", max_tokens=100_000))  # 1,000 s and more
    await asyncio.to_thread(wait_until, lambda: "a" in w.plans.llms and w.plans.llms["a"].running)
    client.xadd(redis_keys.CONTROL_STREAM, {"cancel": "r"})
    await asyncio.to_thread(wait_until, lambda: not w.plans.llms["a"].running)
    await asyncio.to_thread(wait_until, lambda: w.acked == ["r"])


async def test_load_error_reaches_the_client_with_its_class(hub, worker):
    w = worker(fail={"a": InvalidRequest("no such shard.", param="file")})
    subscription = Collected(hub, "r")
    w.deliver(message("r"))
    found = error(await collect(subscription))
    assert (type(found), found.message, found.param) == (InvalidRequest, "no such shard.", "file")


async def test_stop_hands_unfinished_requests_back_without_suspicion(hub, worker, client):
    w = worker(make=lambda _: FakeLLM(step_s=0.02))
    subscription = Collected(hub, "long")
    w.deliver(message("long", max_tokens=1000))
    await asyncio.to_thread(wait_until, lambda: subscription.num_delivered > 3)
    await asyncio.to_thread(w.runtime.stop, 0.2)
    assert w.acked == []
    assert returned(client) == ["long"]
    assert not client.exists(redis_keys.attempt("long"))
    assert not client.exists(redis_keys.worker("w1"))
    second = worker("w2")
    second.take()
    assert tokens(await collect(subscription)) == [300 + step for step in range(1000)]


async def test_events_survive_a_redis_that_is_away(hub, worker, client, monkeypatch):
    w = worker(make=lambda _: FakeLLM(step_s=0.005))
    send, failures = w.runtime.publisher._send_once, iter(range(5))

    def flaky(batch):
        if next(failures, None) is not None:
            raise redis.ConnectionError("away")
        send(batch)

    monkeypatch.setattr(w.runtime.publisher, "_send_once", flaky)
    subscription = Collected(hub, "r")
    w.deliver(message("r", max_tokens=50))
    assert tokens(await collect(subscription)) == [300 + step for step in range(50)]


async def test_connections_that_are_cut_lose_nothing(hub, worker, client):
    w = worker(make=lambda _: FakeLLM(step_s=0.01))
    subscriptions = [Collected(hub, f"r{number}") for number in range(4)]
    for number in range(4):
        w.deliver(message(f"r{number}", max_tokens=100))
    collecting = asyncio.gather(*(collect(item) for item in subscriptions))
    for _ in range(5):
        await asyncio.sleep(0.15)
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    for events in await collecting:
        assert tokens(events) == [300 + step for step in range(100)]


async def test_heartbeat_tells_what_the_worker_does(worker, client, redis_urls_in_settings):

    w = worker(make=lambda _: FakeLLM(step_s=0.01))
    w.deliver(message("r", max_tokens=100_000))
    await asyncio.to_thread(wait_until, lambda: "a" in w.plans.llms and w.plans.llms["a"].running)
    async with asyncio.timeout(60):
        while (models := await model_states()).get("a") is None or not models["a"].tokens_per_s:
            await asyncio.sleep(0.05)
    state = models["a"]
    assert (state.status, state.num_running, state.workers, state.max_model_len) == ("ready", 1, ("w1",), 1000)
    (found,) = (await worker_states()).values()
    assert (found.num_active, found.device, found.draining) == (1, "cpu", False)
    assert model_states_sync()["a"].status == "ready"


async def test_dead_engine_hands_its_requests_over_and_leaves(hub, worker, client, monkeypatch):
    codes: list[int] = []
    monkeypatch.setattr("inference.worker.runtime.os._exit", codes.append)
    w = worker(make=lambda _: FakeLLM(step_s=0.01))
    subscription = Collected(hub, "r")
    w.deliver(message("r", max_tokens=1000))
    await asyncio.to_thread(wait_until, lambda: subscription.num_delivered > 5)
    w.plans.llms["a"].die = True
    await asyncio.to_thread(wait_until, lambda: codes)
    assert codes == [70]
    assert w.acked == []
    assert returned(client) == ["r"]
    second = worker("w2")
    second.take()
    assert tokens(await collect(subscription)) == [300 + step for step in range(1000)]
    assert client.hget(redis_keys.attempt("r"), "crashes") == b"1"


async def test_models_that_load_leave_the_worker_to_its_ready_models(hub, worker, client):
    w = worker()
    first = Collected(hub, "first")
    w.deliver(message("first"))
    assert tokens(await collect(first)) == [300, 301, 302, 303, 304]
    w.plans.gate = threading.Event()
    for model in ("b", "c", "d"):
        for number in range(40):
            enqueue(client, message(f"{model}{number}", model=model))
        w.runtime.manager.ensure(model)
    await asyncio.to_thread(wait_until, lambda: not {"b", "c", "d"} & set(w.runtime.intake.models))
    later = Collected(hub, "later")
    w.deliver(message("later"))
    assert tokens(await collect(later)) == [300, 301, 302, 303, 304]
    w.plans.gate.set()
    await asyncio.to_thread(wait_until, lambda: len(w.acked) == 122)
