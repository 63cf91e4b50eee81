"""Queries of the web process: sent to all workers, answered by those that can, within a time limit."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from inference.errors import Conflict, PromptTooLong, Unavailable
from inference.transport import keys as redis_keys
from inference.transport import questions
from inference.transport.questions import (
    adapter_order,
    fits_somewhere,
    model_fit,
    query_workers,
    running_requests,
)
from inference.values.states import ResidentAdapter, ResidentModel, WorkerState


@pytest.fixture(autouse=True)
def short_polls(monkeypatch):
    monkeypatch.setattr(questions, "POLL_TIMEOUT_S", 0.05)
    monkeypatch.setattr(questions, "REPLY_TIMEOUT_S", 60.0)


@pytest.fixture
def workers(client):
    """Two live workers."""
    for name in ("a", "b"):
        client.zadd(redis_keys.WORKERS, {name: time.time() + 600})
        client.set(redis_keys.worker(name), WorkerState(name, models=(ResidentModel("c", "ready"),)).to_json())


async def replied(client, query: Any, *replies: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The result of a query to which workers send the given replies, and the query as it reached them."""
    task = asyncio.create_task(query)
    async with asyncio.timeout(60):
        while not (found := client.xrevrange(redis_keys.CONTROL_STREAM, count=1)):
            await asyncio.sleep(0.01)
    sent = json.loads(found[0][1][b"query"])
    for reply in replies:
        client.rpush(redis_keys.replies(sent["id"]), json.dumps(reply))
    return await task, sent


async def test_without_a_worker_nobody_is_asked(client):
    with pytest.raises(Unavailable, match="No worker is running"):
        await query_workers("requests")
    assert not client.exists(redis_keys.CONTROL_STREAM)


async def test_the_requests_of_all_workers_are_listed(client, workers):
    found, sent = await replied(
        client,
        running_requests(),
        {"worker_id": "a", "requests": [{"id": "1"}, {"id": "2"}]},
        {"worker_id": "b", "requests": []},
    )
    assert found == [{"id": "1", "worker_id": "a"}, {"id": "2", "worker_id": "a"}]
    assert sent == {"id": sent["id"], "kind": "requests"}


@pytest.mark.parametrize("timeout_s", [0.3, 0.0], ids=["in time", "read too late"])
async def test_a_worker_that_does_not_reply_is_left_out(client, workers, monkeypatch, timeout_s):
    """A reply that has arrived counts, although this process was too busy to read it in time."""
    monkeypatch.setattr(questions, "REPLY_TIMEOUT_S", timeout_s)
    monkeypatch.setattr(questions.secrets, "token_hex", lambda num_bytes: "the-query")
    client.rpush(redis_keys.replies("the-query"), json.dumps({"worker_id": "b", "requests": []}))
    assert [reply["worker_id"] for reply in await query_workers("requests")] == ["b"]


async def test_no_reply_at_all_is_an_error_that_passes(client, workers, monkeypatch):
    monkeypatch.setattr(questions, "REPLY_TIMEOUT_S", 0.2)
    with pytest.raises(Unavailable, match="No worker replied") as refused:
        await query_workers("requests")
    assert refused.value.retry_after_s == 2


async def test_one_worker_that_can_hold_the_model_is_enough(client, workers):
    error = PromptTooLong("too long").to_dict()
    fit = {"verdict": "fits_after_eviction", "needed_bytes": 7}
    found, sent = await replied(
        client, model_fit("id"), {"worker_id": "a", "error": error}, {"worker_id": "b", "fit": fit}
    )
    assert found == [{"worker_id": "b", **fit}]
    assert sent["checkpoint_id"] == "id"
    assert fits_somewhere(found)


async def test_where_no_worker_can_look_the_first_ones_error_is_raised(client, workers):
    error = PromptTooLong("too long").to_dict()
    with pytest.raises(PromptTooLong, match="too long"):
        await replied(client, model_fit("id"), {"worker_id": "a", "error": error}, {"worker_id": "b", "error": error})


@pytest.mark.parametrize(
    ("verdicts", "fits"),
    [((), False), (("too_large",), False), (("too_large", "fits"), True), (("resident",), True)],
)
def test_fits_somewhere(verdicts, fits):
    assert fits_somewhere([{"verdict": verdict} for verdict in verdicts]) is fits


async def test_an_order_for_an_adapter_gives_what_the_workers_have(client, workers):
    found, sent = await replied(
        client,
        adapter_order("load-adapter", "c", "k"),
        {"worker_id": "a", "adapter": {"adapter_id": "k", "memory_bytes": 5, "newer": 1}},
        {"worker_id": "b", "adapter": None},
    )
    assert found == [ResidentAdapter("k", 5)]
    assert time.time() < sent.pop("expires_at") <= time.time() + 60
    assert sent == {"id": sent["id"], "kind": "load-adapter", "checkpoint_id": "c", "adapter_id": "k"}


@pytest.mark.parametrize("has_one", [False, True])
async def test_an_order_fails_if_no_worker_could_carry_it_out(client, workers, has_one: bool):
    replies = [
        {"worker_id": "a", "error": Conflict("leave no place").to_dict()},
        {"worker_id": "b", "adapter": {"adapter_id": "k"} if has_one else None},
    ]
    if has_one:
        assert (await replied(client, adapter_order("load-adapter", "c", "k"), *replies))[0] == [ResidentAdapter("k")]
        return
    with pytest.raises(Conflict, match="leave no place"):
        await replied(client, adapter_order("load-adapter", "c", "k"), *replies)


async def test_without_a_worker_nothing_is_in_memory(client):
    assert await adapter_order("unload-adapter", "c", "k") == []
    with pytest.raises(Unavailable, match="No worker is running"):
        await adapter_order("load-adapter", "c", "k")


@pytest.mark.parametrize("kind", ["load-adapter", "unload-adapter"])
async def test_only_workers_that_hold_the_model_are_waited_for(client, workers, kind):
    async with asyncio.timeout(20):
        assert await adapter_order(kind, "another model", "k") == []
        assert client.exists(redis_keys.CONTROL_STREAM)  # one may have loaded it since
        client.delete(redis_keys.CONTROL_STREAM)
        client.set(redis_keys.worker("b"), WorkerState("b").to_json())
        found = await replied(client, adapter_order(kind, "c", "k"), {"worker_id": "a", "adapter": {"adapter_id": "k"}})
    assert found[0] == [ResidentAdapter("k")]


async def test_a_worker_that_dies_is_waited_for_no_longer(client, workers):
    task = asyncio.create_task(
        replied(client, adapter_order("load-adapter", "c", "k"), {"worker_id": "a", "adapter": {"adapter_id": "k"}})
    )
    async with asyncio.timeout(20):
        while not client.exists(redis_keys.CONTROL_STREAM):
            await asyncio.sleep(0.01)
        client.zadd(redis_keys.WORKERS, {"b": time.time() - 600})
        assert (await task)[0] == [ResidentAdapter("k")]


@pytest.mark.parametrize("kind", ["load-adapter", "unload-adapter"])
async def test_a_holder_that_does_not_reply_may_have_it(client, workers, monkeypatch, kind):
    monkeypatch.setitem(questions.ADAPTER_TIMEOUT_S, kind, 0.3)
    with pytest.raises(Unavailable, match=r"hasn't replied in 0\.3 s"):
        await replied(client, adapter_order(kind, "c", "k"), {"worker_id": "a", "adapter": None})


async def test_an_unload_fails_if_any_worker_could_not(client, workers):
    replies = [
        {"worker_id": "a", "error": Unavailable("no step").to_dict()},
        {"worker_id": "b", "adapter": {"adapter_id": "k"}},
    ]
    with pytest.raises(Unavailable, match="no step"):
        await replied(client, adapter_order("unload-adapter", "c", "k"), *replies)
