"""The hub: requests that nobody can serve, deadlines, its end, and garbage on its stream."""

from __future__ import annotations

import time

import pytest

from inference.errors import BlazrError
from inference.transport import hub as streams
from inference.transport import keys as redis_keys
from inference.transport.hub import StreamHub
from tests.inference.transport.collected import Collected
from tests.inference.transport.test_subscription import delta


async def test_a_closed_subscription_passes_nothing_on(redis_urls_in_settings):
    hub = StreamHub(redis_urls_in_settings.client)
    collected = Collected(hub, "r")
    with pytest.raises(ValueError, match="registered already"):
        Collected(hub, "r")
    collected.subscription.close()
    collected.subscription.accept(delta(0))
    collected.subscription.fail(BlazrError("late"))
    assert collected.events == []
    assert hub.num_streams == 0


async def test_without_any_worker_requests_end_with_an_error(redis_urls_in_settings, monkeypatch):
    monkeypatch.setattr(streams, "HEARTBEAT_INTERVAL_S", 0.1)
    asked: list[str] = []

    async def ask(checkpoint_id: str) -> None:
        asked.append(checkpoint_id)

    hub = StreamHub(redis_urls_in_settings.client, worker_lost_timeout_s=0.5, request_load=ask)
    await hub.start()
    collected = Collected(hub, "r")
    collected.subscription.checkpoint_id = "a"
    started = time.monotonic()
    events = await collected.all()
    assert time.monotonic() - started > 0.3
    assert "No worker" in events[0]["error"]["message"]
    assert set(asked) == {"a"}
    await hub.close()


async def test_deadline_ends_a_request(redis_urls_in_settings, monkeypatch):
    monkeypatch.setattr(streams, "HEARTBEAT_INTERVAL_S", 0.05)
    monkeypatch.setattr(streams, "DEADLINE_GRACE_S", 0.0)
    hub = StreamHub(redis_urls_in_settings.client)
    await hub.start()
    collected = Collected(hub, "r")
    collected.subscription.deadline = time.monotonic() + 0.1
    events = await collected.all()
    assert "deadline" in events[0]["error"]["message"]
    await hub.close()


async def test_close_ends_open_requests_and_leaves_nothing_in_redis(redis_urls_in_settings):
    import redis.asyncio

    # A database of its own: the hub of the API tests' server lives all session and beats into the common one.
    url = redis_urls_in_settings.client.replace("db=0", "db=1")
    assert url != redis_urls_in_settings.client
    hub = StreamHub(url)
    await hub.start()
    client = redis.asyncio.Redis.from_url(url)
    await client.xadd(redis_keys.out(hub.web_id), redis_keys.pack_events([delta(0)]))
    assert await client.exists(redis_keys.web(hub.web_id))
    collected = Collected(hub, "open")
    await hub.close()
    assert collected.events[0]["type"] == "error"
    assert await client.keys("blazr:*") == []
    await client.aclose()


BAD = redis_keys.pack(
    [{"request_id": "other", "attempt": 0, "index": 0, "type": "delta", "choice": 0, "token_ids": [-1]}]
)
"""An event whose tokens no array takes (OverflowError)."""


async def test_hub_outlives_garbage_on_its_stream(redis_urls_in_settings):
    import redis.asyncio

    hub = StreamHub(redis_urls_in_settings.client)
    await hub.start()
    collected, _ = Collected(hub, "r"), Collected(hub, "other")
    client = redis.asyncio.Redis.from_url(redis_urls_in_settings.client)
    for fields in ({"e": b"\xc1"}, {"q": b"\x01"}, {"x": b"y"}, {"e": redis_keys.pack([{"no": "id"}])}, {"e": BAD}):
        await client.xadd(redis_keys.out(hub.web_id), fields)
    end = {"request_id": "r", "attempt": 0, "index": 0, "type": "done"}
    await client.xadd(redis_keys.out(hub.web_id), redis_keys.pack_events([end]))
    assert (await collected.all())[0]["type"] == "done"
    await client.aclose()
    await hub.close()


async def test_an_event_that_cannot_be_passed_on_stops_no_other_of_its_entry(redis_urls_in_settings):
    import redis.asyncio

    hub = StreamHub(redis_urls_in_settings.client)
    await hub.start()
    collected, _ = Collected(hub, "r"), Collected(hub, "other")
    client = redis.asyncio.Redis.from_url(redis_urls_in_settings.client)
    end = {"request_id": "r", "attempt": 0, "index": 0, "type": "done"}
    events = [*redis_keys.unpack(BAD), {"no": "id"}, 5, end]
    await client.xadd(redis_keys.out(hub.web_id), {"e": redis_keys.pack(events)})
    assert (await collected.all())[0]["type"] == "done"
    await client.aclose()
    await hub.close()
