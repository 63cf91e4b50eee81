"""Published requests, Celery's own form of load requests, and a Redis that is away or forgets."""

from __future__ import annotations

import asyncio
import base64
import json
import time

import pytest

from inference.errors import GenerationCancelled, QueueFull
from inference.transport import hub as streams
from inference.transport import keys as redis_keys
from inference.transport import queue as broker
from inference.transport.hub import StreamHub
from inference.transport.open_requests import release_messages
from tests.inference.transport.collected import Collected
from tests.inference.transport.cut_connections import close_broker, cut_once
from tests.inference.transport.queued import queued_ids, take
from tests.inference.transport.test_subscription import delta
from tests.inference.worker.fakes import message


@pytest.fixture
async def hub(redis_urls_in_settings, monkeypatch):
    monkeypatch.setattr(redis_keys, "LOAD_REQUESTED_EXPIRE_S", 600)
    found = StreamHub(redis_urls_in_settings.client)
    streams.set_hub(found)
    yield found
    await found.close()
    streams.set_hub(None)


def test_envelope_is_what_kombu_writes(redis_urls_in_settings, client):
    """Compared member by member with a message that Celery published itself."""
    from blazr_site.celery import app
    from inference.tasks import load_model

    with app.connection_for_write(url=redis_urls_in_settings.celery) as connection:
        load_model.apply_async(args=["é"], task_id="t1", queue="q", connection=connection, ignore_result=True)
    theirs = json.loads(client.lpop("q"))
    ours = json.loads(broker.task_envelope(redis_keys.LOAD_TASK, ("é",), task_id="t1", queue="q"))
    assert json.loads(base64.b64decode(ours.pop("body"))) == json.loads(base64.b64decode(theirs.pop("body")))
    for envelope in (ours, theirs):
        assert envelope["properties"].pop("delivery_tag")
        envelope["properties"].pop("reply_to")
        # Celery copies the arguments into the headers.
        for name in ("argsrepr", "kwargsrepr"):
            envelope["headers"].pop(name)
        # None of the two is read by the worker.
        envelope["headers"].pop("origin")
    assert ours == theirs


async def test_publish_queues_and_asks_for_the_model_once(hub, client):
    subscription = hub.register("r1", print)
    await broker.publish_generation(message("r1"), subscription)
    await broker.publish_generation(message("r2"))
    assert (subscription.checkpoint_id, client.llen("m.a"), client.llen("default")) == ("a", 2, 1)
    assert client.zrange(redis_keys.OPEN_REQUESTS, 0, -1) == [b"r1", b"r2"]
    assert json.loads(client.hget(redis_keys.MESSAGES, "r1"))["prompt"] == message("r1")["prompt"]


async def test_publish_does_not_ask_for_a_model_that_is_held(hub, client):
    client.zadd(redis_keys.holders("a"), {"w": time.time() + 600})
    await broker.publish_generation(message("r1"))
    assert client.llen("default") == 0
    client.zadd(redis_keys.holders("a"), {"w": time.time() - 1})
    await broker.publish_generation(message("r2"))
    assert client.llen("default") == 1


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
async def test_a_clock_that_is_wrong_changes_neither_admission_nor_deadline(hub, client, monkeypatch, ahead_s):
    right, clock = time.time(), time.time
    await broker.publish_generation(message("open"))
    await broker.publish_generation(message("ended"))
    client.zadd(redis_keys.OPEN_REQUESTS, {"ended": right - 1})
    client.delete("default", redis_keys.load_requested("a"))
    client.zadd(redis_keys.holders("a"), {"w": right + 600})
    monkeypatch.setattr(time, "time", lambda: clock() + ahead_s)
    await broker.publish_generation(message("r1"))  # its deadline is in 60 s
    assert client.llen("default") == 0
    assert sorted(client.zrange(redis_keys.OPEN_REQUESTS, 0, -1)) == [b"open", b"r1"]
    assert client.zscore(redis_keys.OPEN_REQUESTS, "r1") == pytest.approx(right + 60, abs=600)
    sent = json.loads(client.hget(redis_keys.MESSAGES, "r1"))
    assert sent["deadline"] == pytest.approx(right + 60, abs=600)


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
async def test_a_clock_that_is_set_ends_no_open_request(hub, client, monkeypatch, ahead_s):
    clock = time.time
    early, late = Collected(hub, "early"), Collected(hub, "late")
    await broker.publish_generation(message("early"), early.subscription)
    await broker.publish_generation(message("late", deadline=time.time() - 60), late.subscription)
    monkeypatch.setattr(time, "time", lambda: clock() + ahead_s)
    hub._expire_waiting()
    assert early.events == []
    assert "deadline" in late.events[0]["error"]["message"]


async def test_admission_is_exact_and_forgets_expired_requests(hub, client, settings):
    settings.BLAZR_MAX_IN_FLIGHT = 3
    await broker.publish_generation(message("old"))
    client.zadd(redis_keys.OPEN_REQUESTS, {"old": time.time() - 1})
    for number in range(3):
        await broker.publish_generation(message(f"r{number}"))
    with pytest.raises(QueueFull, match=r"3 requests .* the limit is 3") as caught:
        await broker.publish_generation(message("r3"))
    assert caught.value.retry_after_s
    assert client.llen("m.a") == 3
    take(client, "w", max_messages=1)
    with client.pipeline() as pipe:
        release_messages(pipe, "w", ["r0"])
        pipe.execute()
    await broker.publish_generation(message("r4"))


async def test_requests_that_come_together_are_admitted_one_by_one(hub, client, settings):
    settings.BLAZR_MAX_IN_FLIGHT = 19
    subscriptions = {f"r{number}": hub.register(f"r{number}", print) for number in range(20)}
    found = await asyncio.gather(
        *(broker.publish_generation(message(name), item) for name, item in subscriptions.items()),
        return_exceptions=True,
    )
    refused = [name for name, answer in zip(subscriptions, found, strict=True) if isinstance(answer, QueueFull)]
    assert len(refused) == 1
    queued = [name for queue in redis_keys.model_queues("a") for name in queued_ids(client, queue)]
    assert sorted([*refused, *queued]) == sorted(subscriptions)
    for name, item in subscriptions.items():
        assert (item.published is None) == (name in refused)
        assert item.published is None or json.loads(item.published.body)["request_id"] == name


async def test_a_request_that_waits_again_after_its_worker_ended_can_be_ended(hub, client):
    """Its client has had tokens of the first attempt, and the second has been begun; a queued message knows neither."""
    await hub.start()
    collected = Collected(hub, "r1")
    collected.subscription.accept(delta(0))
    collected.subscription.begin_attempt(1)
    await broker.publish_generation(message("r1", web_id=hub.web_id), collected.subscription)
    await broker.fail_queued("r1", GenerationCancelled("The request was cancelled."))
    events = await collected.all()
    assert [event["type"] for event in events] == ["delta", "error"]
    assert events[1]["error"]["class"] == "GenerationCancelled"


async def test_requests_of_two_models_go_to_their_queues(client):
    await asyncio.gather(*(broker.publish_generation(message(name, model=name[0])) for name in ("a1", "b1", "a2")))
    assert (client.llen("m.a"), client.llen("m.b")) == (2, 1)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_a_cut_connection_neither_refuses_nor_doubles_a_request(hub, client, settings, before):
    async with cut_once(settings.BLAZR_REDIS_URL, b"holders:a", before=before) as (url, cuts):
        settings.BLAZR_REDIS_URL = url
        await broker.publish_generation(message("r1"))
        await close_broker()
    assert cuts == [b"holders:a"]
    assert (queued_ids(client, "m.a"), client.zrange(redis_keys.OPEN_REQUESTS, 0, -1)) == (["r1"], [b"r1"])


async def test_messages_that_redis_has_forgotten_are_published_again(hub, client, monkeypatch):
    """Those that are queued, held or past their deadline are not."""
    monkeypatch.setattr(streams, "HEARTBEAT_INTERVAL_S", 0.05)
    client.zadd(redis_keys.WORKERS, {"w": time.time() + 600})
    await hub.start()
    names = ("forgotten", "held", "queued", "late")
    subscriptions = {name: hub.register(name, print) for name in names}
    for name in names:
        await broker.publish_generation(message(name), subscriptions[name])
    assert [item.request_id for item in take(client, "w", max_messages=2)] == ["forgotten", "held"]
    subscriptions["late"].deadline = time.monotonic() - 1
    body = client.hget(redis_keys.MESSAGES, "forgotten")
    for name in ("forgotten", "late"):
        client.hdel(redis_keys.MESSAGES, name)
    client.lrem("m.a", 0, "late")
    async with asyncio.timeout(60):
        while not client.hexists(redis_keys.MESSAGES, "forgotten"):
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)
    assert [queued_ids(client, name) for name in redis_keys.model_queues("a")] == [["forgotten"], ["queued"], []]
    assert client.hget(redis_keys.MESSAGES, "forgotten") == body
    assert client.zscore(redis_keys.OPEN_REQUESTS, "forgotten") == pytest.approx(time.time() + 60, abs=50)
