"""The hub: order, repetitions, gaps, attempts, and requests that nobody can serve."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.errors import BlazrError
from inference.transport import hub as streams
from inference.transport import keys as redis_keys
from inference.transport.hub import StreamHub
from inference.transport.subscription import Subscription
from tests.inference.transport.collected import Collected


def delta(index: int, *, attempt: int = 0, token: int = 0, request_id: str = "r", **more):
    return {
        "request_id": request_id, "attempt": attempt, "index": index, "type": "delta", "choice": 0, "text": "t",
        "token_ids": [token], **more,
    }  # fmt: skip


class _Hub:
    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def forget(self, request_id: str) -> None:
        pass

    def cancel_soon(self, request_id: str) -> None:
        self.cancelled.append(request_id)


def subscribed(hub=None) -> tuple[Subscription, list[dict]]:
    """A subscription, and the events that it has passed on."""
    events: list[dict] = []
    return Subscription(hub or _Hub(), "r", events.append), events


async def test_repeated_events_are_dropped_and_a_gap_fails_the_request():
    hub = _Hub()
    subscription, events = subscribed(hub)
    for index in (0, 1, 1, 0, 2):
        subscription.accept(delta(index, token=index))
    subscription.accept(delta(4))
    subscription.accept(delta(5))
    assert [event.get("token_ids") for event in events] == [[0], [1], [2], None]
    assert BlazrError.from_dict(events[-1]["error"]).code == "generation_failed"
    assert hub.cancelled == ["r"]


@settings(max_examples=300, deadline=None)
@given(
    total=st.integers(1, 30),
    crashes=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3)), max_size=4),
    chance=st.randoms(use_true_random=False),
)
def test_any_mix_of_attempts_gives_the_undisturbed_tokens(total, crashes, chance):
    """Workers die at any point and the dead ones' events come late or twice; the client sees 0 … n-1 once each."""
    hub = _Hub()
    subscription, passed = subscribed(hub)
    stale: list[dict] = []
    attempt = 0
    for survived, step_on in [*crashes, (total, 1)]:
        done = subscription.num_delivered
        events = [
            {"request_id": "r", "attempt": attempt, "index": 0, "type": "start"},
            *(delta(1 + step, attempt=attempt, token=done + step) for step in range(total - done)),
        ]
        for event in events[: 1 + survived]:
            subscription.accept(event)
            if stale and chance.random() < 0.5:
                subscription.accept(chance.choice(stale))
            if chance.random() < 0.2:
                subscription.accept(event)
        stale += events
        attempt += step_on
        subscription.begin_attempt(attempt)
    seen = [token for event in passed for token in event.get("token_ids", ())]
    assert seen == list(range(total))
    assert [event["type"] for event in passed].count("start") == 1
    assert hub.cancelled == []


async def test_finished_choices_are_not_repeated_by_a_later_attempt():
    subscription, _ = subscribed()
    subscription.accept(delta(0, token=1, finish_reason="stop"))
    subscription.accept(delta(1, token=2, choice=1))
    subscription.begin_attempt(1)
    subscription.accept(delta(0, attempt=1, token=5, finish_reason="stop"))
    subscription.accept(delta(1, attempt=1, token=3, choice=1))
    assert subscription.delivered() == [[1], [2, 3]]


async def test_nothing_follows_the_terminal_event():
    subscription, events = subscribed()
    subscription.accept({"request_id": "r", "attempt": 0, "index": 0, "type": "done", "usage": {}})
    subscription.accept(delta(1))
    subscription.fail(BlazrError("late"))
    assert [event["type"] for event in events] == ["done"]


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

    hub = StreamHub(redis_urls_in_settings.client, worker_lost_timeout_s=0.5, ask_load=ask)
    await hub.start()
    collected = Collected(hub, "r")
    collected.subscription.checkpoint_id = "a"
    started = time.monotonic()
    events = await collected.all(15)
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
    collected.subscription.deadline = time.time() + 0.1
    events = await collected.all(5)
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


async def test_hub_outlives_garbage_on_its_stream(redis_urls_in_settings):
    import redis.asyncio

    hub = StreamHub(redis_urls_in_settings.client)
    await hub.start()
    collected = Collected(hub, "r")
    client = redis.asyncio.Redis.from_url(redis_urls_in_settings.client)
    for fields in ({"e": b"\xc1"}, {"q": b"\x01"}, {"x": b"y"}, {"e": redis_keys.pack([{"no": "id"}])}):
        await client.xadd(redis_keys.out(hub.web_id), fields)
    end = {"request_id": "r", "attempt": 0, "index": 0, "type": "done"}
    await client.xadd(redis_keys.out(hub.web_id), redis_keys.pack_events([end]))
    assert (await collected.all(3))[0]["type"] == "done"
    await client.aclose()
    await hub.close()
