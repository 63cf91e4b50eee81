"""Admission to the queues: bytes, shares of callers, the deferred queue, and what an end gives back."""

from __future__ import annotations

import time

import pytest

from inference.errors import QueueFull, RequestTooLarge, Unavailable
from inference.transport import keys as redis_keys
from inference.transport import open_requests, queue
from tests.inference.transport.queued import queued_ids
from tests.inference.worker.fakes import message


async def publish(request_id, caller="a", **members):
    await queue.publish_generation(message(request_id, **members) | {"owner": caller})


def release(client, *request_ids, model="a"):
    with client.pipeline(transaction=True) as pipe:
        open_requests.release_messages(pipe, model, request_ids)
        pipe.execute()


TEXT = "x" * 30_000  # more than 40,000 bytes in the queue


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
    release(client, "r1")
    await publish("r2", text=TEXT, **second)
    assert not client.hexists(redis_keys.OPEN_DETAILS, "r1")


async def test_a_message_that_never_fits_is_too_large(client, monkeypatch):
    monkeypatch.setattr(open_requests, "MAX_CALLER_BYTES", 30_000)
    with pytest.raises(RequestTooLarge, match=r"one caller may have 29\.3 KiB"):
        await publish("r1", text=TEXT)


async def test_requests_past_their_deadline_give_back_all_that_they_held(client):
    for model in ("a", "b"):
        await publish(f"r-{model}", model=model, deadline=time.time() + 0.05)
    time.sleep(0.1)
    await publish("new", model="b")
    release(client, "new", model="b")
    assert not client.exists(redis_keys.OPEN_REQUESTS, redis_keys.OPEN_DETAILS, redis_keys.OPEN_TOTALS)
    assert not client.exists(redis_keys.flight("a"), redis_keys.flight("b"))


async def test_messages_past_their_deadline_leave_queues_that_nobody_reads(client):
    for number in range(open_requests.DEFERRED_FROM + 2):
        await publish(f"a{number}", deadline=time.time() + 0.5)
    await publish("b", "other")
    time.sleep(0.6)
    await publish("new", model="another")
    first, deferred = (queued_ids(client, name) for name in redis_keys.model_queues("a"))
    assert (first, deferred) == (["b"], [])


async def test_a_request_counts_once_and_ends_once(client):
    for _ in range(2):
        await publish("r1")
    assert client.hget(redis_keys.OPEN_TOTALS, "requests:a:a") == b"1"
    await publish("r2")
    for _ in range(2):
        release(client, "r1")
    assert client.hget(redis_keys.OPEN_TOTALS, "requests:a:a") == b"1"


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
    release(client, "b0")
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
    first, deferred = (queued_ids(client, name) for name in redis_keys.model_queues("a"))
    assert first == [*(f"a{number}" for number in range(open_requests.DEFERRED_FROM)), "b"]
    assert deferred == ["a16", "a17"]


async def test_deferred_requests_advance_although_others_come(client):
    for number in range(open_requests.DEFERRED_FROM + 2):
        await publish(f"a{number}", "flood")
    for number in range(open_requests.PROMOTED_EVERY):
        await publish(f"b{number}", "other")
    for number in range(open_requests.PROMOTED_EVERY):
        release(client, f"b{number}")
    first, deferred = (queued_ids(client, name) for name in redis_keys.model_queues("a"))
    assert (first[-1], deferred) == ("a16", ["a17"])


def test_celery_reads_the_deferred_queue_after_the_other_one(redis_urls_in_settings):
    from blazr_site.celery import app

    with app.connection_for_read(url=redis_urls_in_settings.celery) as connection:
        channel = connection.default_channel
        names = [channel._q_for_pri("m.a", priority) for priority in channel.priority_steps]
    assert tuple(names) == redis_keys.model_queues("a")


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
