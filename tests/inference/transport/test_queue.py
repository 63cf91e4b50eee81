"""The broker: Celery's own message form, admission, loads, and a Redis that is away."""

from __future__ import annotations

import asyncio
import base64
import json
import time

import pytest

from inference.errors import QueueFull
from inference.transport import hub as streams
from inference.transport import keys as redis_keys
from inference.transport import queue as broker
from inference.transport.hub import StreamHub
from tests.inference.transport.cut_connections import close_broker, cut_once
from tests.inference.worker.fakes import message


@pytest.fixture
async def hub(redis_urls_in_settings):
    found = StreamHub(redis_urls_in_settings.client)
    streams.set_hub(found)
    yield found
    await found.close()
    streams.set_hub(None)


def test_envelope_is_what_kombu_writes(redis_urls_in_settings, client):
    """Compared member by member with a message that Celery published itself."""
    from blazr_site.celery import app
    from inference.tasks import generate

    item = message("r1", text="é \u2028")
    with app.connection_for_write(url=redis_urls_in_settings.celery) as connection:
        generate.apply_async(args=[item], task_id="r1", queue="m.a", connection=connection, ignore_result=True)
    theirs = json.loads(client.lpop("m.a"))
    ours = json.loads(broker.task_envelope(redis_keys.GENERATE_TASK, (item,), task_id="r1", queue="m.a"))
    assert json.loads(base64.b64decode(ours.pop("body"))) == json.loads(base64.b64decode(theirs.pop("body")))
    for envelope in (ours, theirs):
        assert envelope["properties"].pop("delivery_tag")
        envelope["properties"].pop("reply_to")
        # The prompt must not show up in the headers; Celery's own copy has it there.
        for name in ("argsrepr", "kwargsrepr"):
            envelope["headers"].pop(name)
        # None of the two is read by the worker.
        envelope["headers"].pop("origin")
    assert ours == theirs


def test_prompts_do_not_show_in_headers():
    envelope = json.loads(broker.task_envelope("t", ("canary-prompt",), task_id="x", queue="q"))
    assert "canary-prompt" not in json.dumps(envelope["headers"])


async def test_publish_queues_and_asks_for_the_model_once(hub, client):
    subscription = hub.register("r1", print)
    await broker.publish_generation(message("r1"), subscription)
    await broker.publish_generation(message("r2"))
    assert (subscription.checkpoint_id, client.llen("m.a"), client.llen("default")) == ("a", 2, 1)
    assert client.zcard(redis_keys.flight("a")) == 2


async def test_publish_does_not_ask_for_a_model_that_is_held(hub, client):
    client.zadd(redis_keys.holders("a"), {"w": time.time() + 10})
    await broker.publish_generation(message("r1"))
    assert client.llen("default") == 0
    client.zadd(redis_keys.holders("a"), {"w": time.time() - 1})
    await broker.publish_generation(message("r2"))
    assert client.llen("default") == 1


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
async def test_a_clock_that_is_wrong_changes_neither_admission_nor_deadline(hub, client, monkeypatch, ahead_s):
    right, clock = time.time(), time.time
    client.zadd(redis_keys.flight("a"), {"ended": right - 1, "open": right + 60})
    client.zadd(redis_keys.holders("a"), {"w": right + 10})
    monkeypatch.setattr(time, "time", lambda: clock() + ahead_s)
    await broker.publish_generation(message("r1"))  # its deadline is in 60 s
    assert client.llen("default") == 0
    assert sorted(client.zrange(redis_keys.flight("a"), 0, -1)) == [b"open", b"r1"]
    assert client.zscore(redis_keys.flight("a"), "r1") == pytest.approx(right + 60, abs=5)
    (sent,), _, _ = json.loads(base64.b64decode(json.loads(client.lpop("m.a"))["body"]))
    assert sent["deadline"] == pytest.approx(right + 60, abs=5)


async def test_admission_is_exact_and_forgets_expired_requests(hub, client, settings):
    settings.BLAZR_MAX_IN_FLIGHT = 3
    client.zadd(redis_keys.flight("a"), {"old": time.time() - 1})
    for number in range(3):
        await broker.publish_generation(message(f"r{number}"))
    with pytest.raises(QueueFull, match=r"3 requests .* the limit is 3") as caught:
        await broker.publish_generation(message("r3"))
    assert caught.value.retry_after_s
    assert client.llen("m.a") == 3
    client.zrem(redis_keys.flight("a"), "r0")
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
    queued = [json.loads(item)["headers"] for item in client.lrange("m.a", 0, -1)]
    assert sorted([*refused, *(item["id"] for item in queued)]) == sorted(subscriptions)
    assert all(item["id"] == item["root_id"] for item in queued)
    for name, item in subscriptions.items():
        assert (item.published is None) == (name in refused)
        assert item.published is None or json.loads(item.published.envelope)["headers"]["id"] == name


async def test_requests_of_two_models_go_to_their_queues(client):
    await asyncio.gather(*(broker.publish_generation(message(name, model=name[0])) for name in ("a1", "b1", "a2")))
    assert (client.llen("m.a"), client.llen("m.b")) == (2, 1)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_a_cut_connection_neither_refuses_nor_doubles_a_request(hub, client, settings, before):
    async with cut_once(settings.BLAZR_REDIS_URL, b"m.a", before=before) as (url, cuts):
        settings.BLAZR_REDIS_URL = url
        await broker.publish_generation(message("r1"))
        await close_broker()
    assert cuts == [b"m.a"]
    assert (client.llen("m.a"), client.zrange(redis_keys.flight("a"), 0, -1)) == (1, [b"r1"])


async def test_message_that_was_lost_on_its_way_is_published_again(hub, client, monkeypatch):
    """A worker that is killed right after BRPOP takes the message along; so does a Redis that forgets everything."""
    monkeypatch.setattr(streams, "HEARTBEAT_INTERVAL_S", 0.05)
    client.zadd(redis_keys.WORKERS, {"w": time.time()})
    await hub.start()
    for name in ("lost", "held", "queued"):
        await broker.publish_generation(message(name), hub.register(name, print))
    lost, held = client.rpop("m.a"), client.rpop("m.a")
    tag = json.loads(held)["properties"]["delivery_tag"]
    client.hset(redis_keys.UNACKED, tag, "x")
    async with asyncio.timeout(15):
        while client.llen("m.a") < 2:
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)
    queued = [json.loads(item) for item in client.lrange("m.a", 0, -1)]
    assert sorted(item["headers"]["id"] for item in queued) == ["lost", "queued"]
    again = next(item for item in queued if item["headers"]["id"] == "lost")
    assert again["properties"]["delivery_info"]["redelivered"] is True
    assert again["body"] == json.loads(lost)["body"]
