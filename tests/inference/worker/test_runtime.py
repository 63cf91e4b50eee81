"""The worker's runtime and the web side's hub over a real Redis; Celery is replaced by direct deliveries."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator

import pytest
import redis

from inference.errors import BlazrError, InvalidRequest
from inference.transport import control
from inference.transport import keys as redis_keys
from inference.transport.hub import StreamHub
from inference.transport.subscription import Subscription
from inference.transport.worker_states import model_states, model_states_sync, worker_states
from inference.values.messages import GenerationEvent
from inference.worker.lease import hand_back, release_worker
from inference.worker.runtime import WorkerConfig, WorkerRuntime
from tests.inference.worker.fakes import FakeLLM, FakePlans, message, wait_until


class Worker:
    """A runtime, and what Celery would do with its messages."""

    def __init__(self, url: str, client: redis.Redis, plans: FakePlans, name: str, **config: object) -> None:
        self.client = client
        self.plans = plans
        self.acked: list[str] = []
        self.runtime = WorkerRuntime(
            WorkerConfig(
                **{
                    "worker_id": name,
                    "redis_url": url,
                    "device": "cpu",
                    "budget_bytes": 1000,
                    "max_active": 64,
                    "visibility_timeout_s": 2,
                    "drain_grace_s": 5,
                    **config,
                }
            ),
            plans,
        )
        self.runtime.start()
        self.runtime.heartbeat.start()

    def deliver(self, item, *, tag: str | None = None, redelivered: bool = False) -> str:
        tag = tag or uuid.uuid4().hex
        self.client.zadd(redis_keys.UNACKED_INDEX, {tag: time.time()})
        self.client.hset(redis_keys.UNACKED, tag, "x")
        self.runtime.deliver(item, tag=tag, redelivered=redelivered, done=lambda: self.acked.append(item["request_id"]))
        return tag

    def crash(self) -> None:
        """Stop everything without a word, as kill -9 would."""
        self.runtime.publisher.publish = lambda events, settlements=(): None
        self.runtime.leases.stop()
        self.runtime.heartbeat._stopping = True
        self.runtime.control.stop()
        self.runtime.manager.drain(0)


@pytest.fixture
def client(redis_urls_in_settings) -> Iterator[redis.Redis]:
    found = redis.Redis.from_url(redis_urls_in_settings.client, protocol=2)
    yield found
    found.close()


@pytest.fixture
def worker(redis_urls_in_settings, client, monkeypatch):
    monkeypatch.setattr(control, "BLOCK_MS", 50)  # the end of a worker waits for it
    made: list[Worker] = []

    def make(name: str = "w1", *, config: dict[str, object] | None = None, **plans: object) -> Worker:
        made.append(Worker(redis_urls_in_settings.client, client, FakePlans(**plans), name, **(config or {})))
        return made[-1]

    yield make
    for item in made:
        item.runtime.stop(grace_s=0)


@pytest.fixture
async def hub(redis_urls_in_settings):
    cancelled: list[str] = []

    async def cancel(request_id: str) -> None:
        cancelled.append(request_id)

    found = StreamHub(redis_urls_in_settings.client, web_id="web-1", cancel=cancel)
    found.cancelled = cancelled  # type: ignore[attr-defined]
    await found.start()
    yield found
    await found.close()


async def collect(subscription: Subscription, timeout_s: float = 15) -> list[GenerationEvent]:
    async with asyncio.timeout(timeout_s):
        return [event async for events in subscription for event in events]


def tokens(events: list[GenerationEvent]) -> list[int]:
    return [token for event in events for token in event.get("token_ids", ())]


def error(events: list[GenerationEvent]) -> BlazrError:
    assert events[-1]["type"] == "error", events[-1]
    return BlazrError.from_dict(events[-1]["error"])


async def test_events_reach_their_readers_and_messages_are_settled(hub, worker, client):
    w = worker()
    client.zadd(redis_keys.flight("a"), {f"r{number}": time.time() + 60 for number in range(8)})
    subscriptions = [hub.register(f"r{number}") for number in range(8)]
    for number in range(8):
        w.deliver(message(f"r{number}", text="x" * (number + 1)))
    for number, events in enumerate(await asyncio.gather(*(collect(item) for item in subscriptions))):
        assert tokens(events) == [100 * (number + 1) + step for step in range(5)]
        assert [event["type"] for event in events] == ["start", *["delta"] * 5, "done"]
    wait_until(lambda: len(w.acked) == 8)
    assert client.zcard(redis_keys.UNACKED_INDEX) == client.hlen(redis_keys.UNACKED) == 0
    assert client.zcard(redis_keys.flight("a")) == 0
    assert hub.num_streams == 0
    assert w.runtime.leases.held() == []


async def test_one_stream_entry_per_step_not_per_token(hub, worker, client):
    gate = threading.Event()
    w = worker(make=lambda _: FakeLLM(gate=gate, step_s=0.01), max_num_seqs=32)
    subscriptions = [hub.register(f"r{number}") for number in range(16)]
    for number in range(16):
        w.deliver(message(f"r{number}", max_tokens=20))
    await asyncio.to_thread(wait_until, lambda: "a" in w.plans.llms and w.plans.llms["a"].running)
    await asyncio.sleep(0.1)
    gate.set()
    await asyncio.gather(*(collect(item) for item in subscriptions))
    assert client.xlen(redis_keys.out("web-1")) <= 60  # 16 · 22 events


async def test_next_worker_goes_on_behind_what_the_client_has(hub, worker, client):
    """kill -9 in the middle: no gap, no repetition, and the dead attempt's late events are dropped."""
    first = worker("w1", make=lambda _: FakeLLM(step_s=0.01))
    subscription = hub.register("r")
    item = message("r", max_tokens=60)
    tag = first.deliver(item)
    await asyncio.to_thread(wait_until, lambda: subscription.num_delivered > 10)
    await asyncio.to_thread(first.crash)
    second = worker("w2")
    second.deliver(message("r", max_tokens=60), tag=tag, redelivered=True)
    collecting = asyncio.create_task(collect(subscription))
    await asyncio.sleep(0.3)
    late = {"request_id": "r", "attempt": 0, "index": 30, "type": "delta", "choice": 0, "text": "?", "token_ids": [9]}
    client.xadd(redis_keys.out("web-1"), redis_keys.pack_events([late]))
    events = await collecting
    assert tokens(events) == [300 + step for step in range(60)]
    assert [event["type"] for event in events].count("start") == 1
    assert len(second.plans.llms["a"].seen[0]["delivered"][0]) > 10
    assert second.plans.llms["a"].seen[0]["attempt"] == 1


async def test_lease_keeps_long_requests_and_a_dead_workers_tags_become_overdue(worker, client):
    w = worker(make=lambda _: FakeLLM(step_s=0.05), config={"visibility_timeout_s": 1})
    tag = w.deliver(message("r", max_tokens=1000))
    await asyncio.sleep(1.5)
    assert time.time() - client.zscore(redis_keys.UNACKED_INDEX, tag) < 0.8
    assert client.smembers(redis_keys.tags("w1")) == {tag.encode()}
    await asyncio.to_thread(w.crash)
    assert release_worker(client, "w1") == 1
    assert client.zscore(redis_keys.UNACKED_INDEX, tag) == 1.0
    assert client.zscore(redis_keys.WORKERS, "w1") is None


def test_acknowledged_tags_do_not_come_back(client):
    hand_back(client, ["gone"])
    assert client.zcard(redis_keys.UNACKED_INDEX) == 0


async def test_poison_is_given_up_after_two_lost_workers(hub, worker, client):
    w = worker()
    client.hset(redis_keys.attempt("r"), mapping={"n": 2, "suspects": 2})
    subscription = hub.register("r")
    w.deliver(message("r"), redelivered=True)
    assert "given up: 3 workers" in error(await collect(subscription)).message
    wait_until(lambda: w.acked == ["r"])


async def test_same_message_twice_runs_once_and_ends_both(hub, worker, client):
    w = worker(make=lambda _: FakeLLM(step_s=0.01))
    subscription = hub.register("r")
    w.deliver(message("r", max_tokens=30), tag="one")
    await asyncio.sleep(0.05)
    w.deliver(message("r", max_tokens=30), tag="two", redelivered=True)
    assert tokens(await collect(subscription)) == [300 + step for step in range(30)]
    wait_until(lambda: w.acked == ["r", "r"])
    assert len(w.plans.llms["a"].seen) == 1
    assert client.hlen(redis_keys.UNACKED) == 0


async def test_redelivered_message_that_nobody_waits_for_is_dropped(hub, worker, client):
    w = worker()
    w.deliver(message("unknown"), redelivered=True)
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


async def test_cancel_frees_the_slot_quickly(worker, client):
    w = worker(make=lambda _: FakeLLM(step_s=0.01))
    w.deliver(message("r", max_tokens=10_000))  # 100 s and more
    await asyncio.to_thread(wait_until, lambda: "a" in w.plans.llms and w.plans.llms["a"].running)
    started = time.monotonic()
    client.xadd(redis_keys.CONTROL_STREAM, {"cancel": "r"})
    await asyncio.to_thread(wait_until, lambda: not w.plans.llms["a"].running)
    assert time.monotonic() - started < 5
    await asyncio.to_thread(wait_until, lambda: w.acked == ["r"])


async def test_deadline_in_the_queue_gives_an_error(hub, worker):
    w = worker()
    subscription = hub.register("r")
    w.deliver(message("r", deadline=time.time() - 1))
    assert error(await collect(subscription)).http_status == 503


async def test_load_error_reaches_the_client_with_its_class(hub, worker):
    w = worker(fail={"a": InvalidRequest("no such shard.", param="file")})
    subscription = hub.register("r")
    w.deliver(message("r"))
    found = error(await collect(subscription))
    assert (type(found), found.message, found.param) == (InvalidRequest, "no such shard.", "file")


async def test_requests_of_a_lost_web_process_are_cancelled(worker, client, monkeypatch):
    monkeypatch.setattr("inference.worker.heartbeat.WEB_CHECK_INTERVAL_S", 0.2)
    w = worker(make=lambda _: FakeLLM(step_s=0.01))
    w.deliver(message("r", max_tokens=10_000, web_id="gone"))
    await asyncio.to_thread(wait_until, lambda: w.acked == ["r"], 10)


async def test_stop_hands_unfinished_requests_back_without_suspicion(hub, worker, client):
    w = worker(make=lambda _: FakeLLM(step_s=0.02))
    subscription = hub.register("long")
    tag = w.deliver(message("long", max_tokens=300))
    await asyncio.to_thread(wait_until, lambda: subscription.num_delivered > 3)
    await asyncio.to_thread(w.runtime.stop, 0.2)
    assert w.acked == []
    assert client.zscore(redis_keys.UNACKED_INDEX, tag) == 1.0
    assert client.hget(redis_keys.attempt("long"), "suspects") == b"-1"
    assert not client.exists(redis_keys.worker("w1"))
    second = worker("w2")
    second.deliver(message("long", max_tokens=300), tag=tag, redelivered=True)
    assert tokens(await collect(subscription)) == [300 + step for step in range(300)]


async def test_events_survive_a_redis_that_is_away(hub, worker, client, monkeypatch):
    w = worker(make=lambda _: FakeLLM(step_s=0.005))
    send, failures = w.runtime.publisher._send_once, iter(range(5))

    def flaky(batch):
        if next(failures, None) is not None:
            raise redis.ConnectionError("away")
        send(batch)

    monkeypatch.setattr(w.runtime.publisher, "_send_once", flaky)
    subscription = hub.register("r")
    w.deliver(message("r", max_tokens=50))
    assert tokens(await collect(subscription)) == [300 + step for step in range(50)]


async def test_connections_that_are_cut_lose_nothing(hub, worker, client):
    w = worker(make=lambda _: FakeLLM(step_s=0.01))
    subscriptions = [hub.register(f"r{number}") for number in range(4)]
    for number in range(4):
        w.deliver(message(f"r{number}", max_tokens=100))
    collecting = asyncio.gather(*(collect(item, 30) for item in subscriptions))
    for _ in range(5):
        await asyncio.sleep(0.15)
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    for events in await collecting:
        assert tokens(events) == [300 + step for step in range(100)]


async def test_heartbeat_tells_what_the_worker_does(worker, client, redis_urls_in_settings):

    w = worker(make=lambda _: FakeLLM(step_s=0.01))
    w.deliver(message("r", max_tokens=500))
    await asyncio.to_thread(wait_until, lambda: "a" in w.plans.llms and w.plans.llms["a"].running)
    async with asyncio.timeout(15):
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
    subscription = hub.register("r")
    tag = w.deliver(message("r", max_tokens=100))
    await asyncio.to_thread(wait_until, lambda: subscription.num_delivered > 5)
    w.plans.llms["a"].die = True
    await asyncio.to_thread(wait_until, lambda: codes)
    assert codes == [70]
    assert w.acked == []
    assert client.zscore(redis_keys.UNACKED_INDEX, tag) == 1.0
    second = worker("w2")
    second.deliver(message("r", max_tokens=100), tag=tag, redelivered=True)
    assert tokens(await collect(subscription)) == [300 + step for step in range(100)]
    assert client.hget(redis_keys.attempt("r"), "suspects") == b"1"
