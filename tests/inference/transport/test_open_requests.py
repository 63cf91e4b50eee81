"""Admission to the queues: bytes, shares of callers, the deferred queue, and what an end gives back."""

from __future__ import annotations

import time

import pytest
import redis.asyncio
from django.conf import settings

from inference.errors import QueueFull, RequestTooLarge, Unavailable
from inference.transport import keys as redis_keys
from inference.transport import open_requests, queue, redis_memory
from inference.transport.held_messages import release_dead_workers
from inference.transport.redis_time import redis_now_sync
from tests.inference.transport.queued import queued_ids, take
from tests.inference.worker.fakes import message


async def publish(request_id, caller="a", **members):
    await queue.publish_generation(message(request_id, **members) | {"owner": caller})


def end(client, *request_ids):
    """Record the end of requests, which the worker has taken or not."""
    for name in request_ids:
        for queue_name in redis_keys.model_queues("a"):
            client.lrem(queue_name, 0, name)
        client.hset(redis_keys.MESSAGE_WORKERS, name, "w1")
    release(client, *request_ids)


def release(client, *request_ids, worker_id="w1"):
    with client.pipeline(transaction=True) as pipe:
        open_requests.release_messages(pipe, worker_id, request_ids)
        pipe.execute()


TEXT = "x" * 42_000


@pytest.mark.parametrize(
    ("limit", "second", "error", "named"),
    [
        ("MAX_CALLER_BYTES", {}, QueueFull, r"your open requests take 4\d\.\d KiB of 58\.6 KiB"),
        ("MAX_MODEL_BYTES", {"caller": "b"}, QueueFull, r"open requests of this model take 4\d\.\d KiB of 58\.6 KiB"),
        ("MAX_BYTES", {"caller": "b", "model": "m2"}, Unavailable, r"of this server take 4\d\.\d KiB of 58\.6 KiB"),
    ],
)
async def test_bytes_of_open_requests_are_limited(client, monkeypatch, limit, second, error, named):
    monkeypatch.setattr(open_requests, limit, 60_000)
    await publish("r1", text=TEXT)
    with pytest.raises(error, match=named) as caught:
        await publish("r2", text=TEXT, **second)
    assert (type(caught.value), caught.value.retry_after_s) == (error, 2)
    await publish("small", **second)
    end(client, "r1")
    await publish("r2", text=TEXT, **second)
    assert not client.hexists(redis_keys.MESSAGES, "r1")


async def test_a_message_that_never_fits_is_too_large(client, monkeypatch):
    monkeypatch.setattr(open_requests, "MAX_CALLER_BYTES", 30_000)
    with pytest.raises(RequestTooLarge, match=r"one caller may have 29\.3 KiB"):
        await publish("r1", text=TEXT)


async def test_requests_past_their_deadline_give_back_all_that_they_held(client):
    for model in ("a", "b"):
        await publish(f"r-{model}", model=model, deadline=time.time() + 0.05)
    time.sleep(0.1)
    await publish("new", model="b")
    end(client, "new")
    assert not client.exists(
        redis_keys.MESSAGES, redis_keys.OPEN_REQUESTS, redis_keys.OPEN_ORIGINS, redis_keys.OPEN_TOTALS
    )


async def test_messages_past_their_deadline_leave_queues_that_nobody_reads(client):
    for number in range(open_requests.DEFERRED_FROM + 2):
        await publish(f"a{number}", deadline=time.time() + 0.5)
    await publish("b", "other")
    time.sleep(0.6)
    await publish("new", model="another")
    assert [queued_ids(client, name) for name in redis_keys.model_queues("a")] == [[], ["b"], []]


async def test_a_request_counts_once_and_ends_once(client):
    for _ in range(2):
        await publish("r1")
    assert client.hget(redis_keys.OPEN_TOTALS, "requests:a:a") == b"1"
    await publish("r2")
    for _ in range(2):
        end(client, "r1")
    assert client.hget(redis_keys.OPEN_TOTALS, "requests:a:a") == b"1"


async def test_only_the_worker_that_holds_a_request_ends_it(client):
    """A worker that was declared dead ends no request that another one runs."""
    await publish("r1")
    take(client, "w2")
    release(client, "r1", worker_id="w1")
    assert client.hexists(redis_keys.MESSAGES, "r1")
    release(client, "r1", worker_id="w2")
    assert not client.exists(redis_keys.MESSAGES, redis_keys.MESSAGE_WORKERS, redis_keys.OPEN_TOTALS)


async def test_a_message_that_redis_forgot_is_admitted_again_without_a_limit(client):
    new = open_requests.NewMessage("r1", "a", "a", 60.0, b"{}")
    reader = redis.asyncio.Redis.from_url(settings.BLAZR_REDIS_URL, protocol=2)
    for _ in range(2):
        await open_requests.admit_message(reader, new, max_requests=0, is_again=True)
    await reader.aclose()
    (found,) = take(client, "w1")
    assert (found.request_id, found.had_before) == ("r1", True)
    assert client.hget(redis_keys.OPEN_TOTALS, "requests:a") == b"1"


async def test_the_last_places_are_for_callers_with_few_requests(client, settings):
    settings.BLAZR_MAX_IN_FLIGHT = 16
    for number in range(12):
        await publish(f"a{number}", "flood")
    with pytest.raises(QueueFull, match=r"12 of your requests .* its 16 are for callers with fewer"):
        await publish("a12", "flood")
    for number in range(4):
        await publish(f"b{number}", f"caller {number % 2}")
    with pytest.raises(QueueFull, match="16 requests of this model"):
        await publish("c", "late")
    end(client, "b0")
    with pytest.raises(QueueFull, match="12 of your requests"):
        await publish("a12", "flood")
    await publish("c", "late")


async def test_one_caller_alone_gets_a_model_of_one_place(client, settings):
    settings.BLAZR_MAX_IN_FLIGHT = 1
    await publish("r1")
    with pytest.raises(QueueFull):
        await publish("r2")


async def test_further_requests_of_a_caller_are_deferred(client):
    for number in range(open_requests.DEFERRED_FROM + 2):
        await publish(f"a{number}", "flood")
    await publish("b", "other")
    _, first, deferred = (queued_ids(client, name) for name in redis_keys.model_queues("a"))
    assert first == [*(f"a{number}" for number in range(open_requests.DEFERRED_FROM)), "b"]
    assert deferred == ["a16", "a17"]


async def test_deferred_requests_advance_although_others_come(client):
    for number in range(open_requests.DEFERRED_FROM + 2):
        await publish(f"a{number}", "flood")
    for number in range(open_requests.PROMOTED_EVERY):
        await publish(f"b{number}", "other")
    for number in range(open_requests.PROMOTED_EVERY):
        end(client, f"b{number}")
    _, first, deferred = (queued_ids(client, name) for name in redis_keys.model_queues("a"))
    assert (first[-1], deferred) == ("a16", ["a17"])


async def test_a_full_redis_is_named(client):
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(Unavailable, match="memory limit") as caught:
            await publish("r1")
    finally:
        client.config_set("maxmemory", 0)
    assert caught.value.retry_after_s
    # A script is refused before its first write only, and not before a deletion.
    assert not client.exists(*redis_keys.model_queues("a"), redis_keys.OPEN_REQUESTS)


@pytest.fixture
def fill(client):
    """Let Redis refuse writes that take memory, as at its limit."""
    yield lambda: client.config_set("maxmemory", 1)
    client.config_set("maxmemory", 0)


async def test_a_full_redis_releases_what_is_past_its_deadline(client, fill):
    await publish("old", deadline=time.time() + 0.05)
    time.sleep(0.1)
    fill()
    with pytest.raises(Unavailable, match="memory limit"):
        await publish("new")
    assert not client.exists(redis_keys.MESSAGES, redis_keys.OPEN_REQUESTS, *redis_keys.model_queues("a"))


async def test_a_full_redis_gives_its_messages_to_workers_and_takes_back_those_of_dead_ones(client, fill):
    await publish("r1")
    client.zadd(redis_keys.WORKERS, {"w1": time.time() - 60})
    fill()
    assert [item.request_id for item in take(client, "w1")] == ["r1"]
    release_dead_workers(client)
    assert [(item.request_id, item.had_before) for item in take(client, "w2")] == [("r1", True)]
    release(client, "r1", worker_id="w2")
    assert not client.exists(redis_keys.MESSAGES, redis_keys.MESSAGE_WORKERS)


async def test_messages_past_their_deadline_are_released_without_an_admission(client):
    await publish("young")
    await publish("old", deadline=time.time() + 0.05)
    time.sleep(0.1)
    assert open_requests.expire_messages(client, redis_now_sync(client)) == 1
    assert client.hkeys(redis_keys.MESSAGES) == [b"young"]
    assert queued_ids(client, redis_keys.model_queue("a")) == ["young"]


def test_the_queues_take_half_of_a_small_redis():
    whole = (open_requests.MAX_CALLER_BYTES, open_requests.MAX_MODEL_BYTES, open_requests.MAX_BYTES)
    assert open_requests.byte_limits(0) == open_requests.byte_limits(1 << 40) == whole
    assert open_requests.byte_limits(256 << 20) == (32 << 20, 64 << 20, 128 << 20)
    assert open_requests.byte_limits(1)[2] == open_requests.MIN_BYTES


async def test_a_small_redis_is_not_filled_with_messages(client, monkeypatch):
    monkeypatch.setattr(redis_memory, "_read", None)
    monkeypatch.setattr(open_requests, "MIN_BYTES", 1 << 20)
    used = client.info("memory")["used_memory"]
    client.config_set("maxmemory", used + (8 << 20))
    try:
        with pytest.raises(Unavailable, match="open requests of this server take"):
            for number in range(100):
                await publish(f"r{number}", caller=f"c{number}", text="x" * 200_000, model=f"m{number}")
        assert take(client, "w1", "m0", "m1")
        client.set("event", "x" * 1000)  # there is memory for events and ends
    finally:
        client.config_set("maxmemory", 0)
        redis_memory._read = None
