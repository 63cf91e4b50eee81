"""A generation over a real Redis: events are held back until every prompt has started, then one reader gets them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
import redis.asyncio

from inference.errors import BlazrError, GenerationFailed, InvalidRequest, ModelLoading
from inference.serving import full_queues as full_queues_module
from inference.serving import generation as generation_module
from inference.serving import queue_watch as queue_watch_module
from inference.serving.full_queues import full_queues
from inference.serving.generation import ApiName, Generation
from inference.transport import hub as streams
from inference.transport import keys as redis_keys
from inference.transport.hub import StreamHub
from inference.transport.open_requests import NoPlace
from inference.values.plan import GenerationPlan
from inference.values.principal import LOCAL
from inference.values.queue_place import QueuePlace
from inference.values.sampling_params import SamplingParams
from inference.values.served_model import ServedModel
from inference.values.tokenizer_spec import TokenizerSpec

SERVED = ServedModel("a", "tiny", 0, 100, 100, TokenizerSpec("none", 100), "1")


class Reader:
    """Keeps (prompt number, text or kind of event)."""

    def __init__(self):
        self.taken: list[tuple[int, str]] = []
        self._end = asyncio.Event()

    def take(self, number, event):
        self.taken.append((number, event.get("text", event["type"])))

    def end(self):
        self._end.set()

    async def write(self):
        await self._end.wait()


class Worker:
    """Writes events of a generation's prompts to its hub's stream."""

    def __init__(self, client, hub):
        self.client = client
        self.hub = hub
        self.indexes: dict[str, int] = {}

    async def send(self, request_id, kind, **members):
        index = self.indexes[request_id] = self.indexes.get(request_id, -1) + 1
        event = {"request_id": request_id, "attempt": 0, "index": index, "type": kind, **members}
        await self.client.xadd(redis_keys.out(self.hub.web_id), redis_keys.pack_events([event]))

    async def delta(self, request_id, text):
        await self.send(request_id, "delta", choice=0, text=text, token_ids=[1])

    async def published(self, count):
        while await self.client.llen(redis_keys.model_queue("a")) < count:
            await asyncio.sleep(0.01)
        items = await self.client.lrange(redis_keys.model_queue("a"), 0, -1)
        return {item.decode() for item in items}

    async def cancelled(self):
        return {fields.get(b"cancel") for _, fields in await self.client.xrange(redis_keys.CONTROL_STREAM)}


@pytest.fixture
async def worker(redis_urls_in_settings, usages):
    hub = StreamHub(redis_urls_in_settings.client)
    streams.set_hub(hub)
    client = redis.asyncio.Redis.from_url(redis_urls_in_settings.client, protocol=2)
    yield Worker(client, hub)
    await hub.close()
    streams.set_hub(None)
    await client.aclose()


def generation(num_prompts=1, model="tiny"):
    prompts = ({"token_ids": [1, 2]},) * num_prompts
    plan = GenerationPlan("completion", model, prompts, SamplingParams(seed=1), stream=True)
    return Generation(plan, LOCAL, SERVED, ApiName("completion", "cmpl-"))


async def until_cancelled(worker, names):
    async with asyncio.timeout(60):
        while not {name.encode() for name in names} <= await worker.cancelled():
            await asyncio.sleep(0.01)


async def test_a_reader_gets_what_was_held_back_then_each_event_as_it_comes(worker):
    found, reader = generation(2), Reader()
    opening = asyncio.create_task(found.open())
    first, second = sorted(await worker.published(2))
    await worker.send(first, "start", prompt_tokens=2)
    await worker.delta(first, "early")
    await asyncio.sleep(0.1)
    assert not opening.done()
    await worker.send(second, "start", prompt_tokens=2)
    await asyncio.wait_for(opening, 60)
    reading = asyncio.create_task(found.deliver(reader))
    await asyncio.sleep(0)
    assert reader.taken == [(0, "start"), (0, "early"), (1, "start")]
    await worker.delta(second, "late")
    for name in (first, second):
        await worker.send(name, "done", usage={"completion_tokens": 1, "cached_tokens": 0})
    await asyncio.wait_for(reading, 60)
    assert reader.taken[3:] == [(1, "late"), (0, "done"), (1, "done")]
    assert (found.outcome, found.builder.completion_tokens, worker.hub.num_streams) == ("completed", 2, 0)


async def test_the_wait_ends_when_the_engines_have_accepted_the_prompts_not_when_they_are_scored(worker):
    """With log-probabilities of the prompt its start comes behind its prefill, which the trace called queue."""
    found = generation(2)
    opening = asyncio.create_task(found.open())
    first, second = sorted(await worker.published(2))
    begun = time.monotonic()
    found._accounting._arrived = begun - 60.0
    await worker.send(first, "start", prompt_tokens=2, accepted_ago_s=50.0)
    await worker.send(second, "start", prompt_tokens=2, accepted_ago_s=20.0)
    await asyncio.wait_for(opening, 60)
    assert 0 <= found.waited[0] - 40.0 <= time.monotonic() - begun
    await found.close("cancelled")


async def test_an_error_before_every_prompt_has_started_is_raised_by_open(worker):
    found = generation(2)
    opening = asyncio.create_task(found.open())
    first, second = sorted(await worker.published(2))
    await worker.send(first, "start", prompt_tokens=2)
    await worker.send(second, "error", error=InvalidRequest("no.").to_dict())
    with pytest.raises(InvalidRequest, match="no"):
        await asyncio.wait_for(opening, 60)
    await found.close("invalid_request")
    await until_cancelled(worker, [first])
    assert second.encode() not in await worker.cancelled()


async def begun(worker, num_prompts=1):
    found = generation(num_prompts)
    opening = asyncio.create_task(found.open())
    names = sorted(await worker.published(num_prompts))
    for name in names:
        await worker.send(name, "start", prompt_tokens=2)
    await asyncio.wait_for(opening, 60)
    return found, names


async def test_the_error_of_one_prompt_ends_and_cancels_the_others(worker):
    found, (first, second) = await begun(worker, 2)
    reading = asyncio.create_task(found.deliver(Reader()))
    await worker.send(first, "error", error=GenerationFailed("broken.").to_dict())
    with pytest.raises(GenerationFailed, match="broken"):
        await asyncio.wait_for(reading, 60)
    await until_cancelled(worker, [second])
    assert found.outcome == "generation_failed"


async def test_a_reader_that_raises_ends_its_own_request_only(worker):
    found, (name,) = await begun(worker)
    other, (_, other_name) = generation(), (None, None)
    opening = asyncio.create_task(other.open())
    (other_name,) = await worker.published(2) - {name}
    reader = Reader()
    reading = asyncio.create_task(found.deliver(reader))
    await asyncio.sleep(0)
    reader.take = lambda number, event: 1 / 0
    await worker.delta(name, "x")
    with pytest.raises(BlazrError, match="internal error"):
        await asyncio.wait_for(reading, 60)
    await until_cancelled(worker, [name])
    await worker.send(other_name, "start", prompt_tokens=2)
    await asyncio.wait_for(opening, 60)
    await other.close()


async def test_a_task_that_is_cancelled_cancels_the_generation(worker):
    found, (name,) = await begun(worker)
    reading = asyncio.create_task(found.wait())
    await asyncio.sleep(0.05)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await until_cancelled(worker, [name])
    assert found.outcome == "cancelled"


@pytest.mark.parametrize("name", ["tiny", "an-alias-of-tiny"])
async def test_a_refused_request_is_cancelled_nowhere_and_refuses_the_next_until_one_ends(
    worker, settings, monkeypatch, name
):
    monkeypatch.setattr(full_queues_module, "REMEMBERED_S", 60)
    settings.BLAZR_MAX_IN_FLIGHT = 1
    running, _ = await begun(worker)
    refused = generation(model=name)
    with pytest.raises(NoPlace):
        await refused.open()
    await refused.close("queue_full")
    assert await worker.cancelled() == set()
    assert worker.hub.num_streams == 1
    with pytest.raises(NoPlace):
        full_queues().check(name, LOCAL, endpoint="completion")
    await running.close()
    full_queues().check(name, LOCAL, endpoint="completion")


@pytest.mark.parametrize(("starts", "error"), [(False, ModelLoading), (True, GenerationFailed)])
async def test_a_request_that_takes_too_long_fails(worker, settings, starts, error):
    settings.BLAZR_REQUEST_TIMEOUT_S = 1
    found = generation()
    opening = asyncio.create_task(found.open())
    (name,) = await worker.published(1)
    if starts:
        await worker.send(name, "start", prompt_tokens=2)
        await asyncio.wait_for(opening, 60)
    with pytest.raises(error):
        await asyncio.wait_for(found.wait() if starts else opening, 60)
    await found.close("late")
    await until_cancelled(worker, [name])


def queued_generation(principal=LOCAL):
    params = SamplingParams(seed=1)
    plan = GenerationPlan("completion", "tiny", ({"token_ids": [1]},), params, stream=True, include_queue=True)
    return Generation(plan, principal, SERVED, ApiName("completion", "cmpl-"))


@pytest.fixture
def quickly(monkeypatch):
    monkeypatch.setattr(generation_module, "UNREPORTED_S", 0.05)
    monkeypatch.setattr(queue_watch_module, "PERIOD_S", 0.05)


async def test_a_waiting_request_reports_where_it_stands_until_it_starts(worker, quickly):
    found, places = queued_generation(), []
    await asyncio.wait_for(found.open(), 60)
    assert found.is_waiting
    (name,) = await worker.published(1)

    async def report(place):
        places.append(place)
        if len(places) == 2:
            await worker.send(name, "start", prompt_tokens=1)

    await asyncio.wait_for(found.wait_for_start(report), 60)
    assert not found.is_waiting and len(places) >= 2
    assert {(place.position, place.waits_for) for place in places} == {(1, "worker")}
    await worker.delta(name, "text")
    await worker.send(name, "done", usage={"completion_tokens": 1, "cached_tokens": 0})
    await asyncio.wait_for(found.wait(), 60)
    assert found.outcome == "completed" and found.waited[0] > 0.05


@pytest.mark.parametrize(
    ("models", "shown"), [(None, "other"), (frozenset({"tiny", "other"}), "other"), (frozenset({"tiny"}), "")]
)
async def test_a_place_names_only_models_that_the_key_is_for(worker, quickly, monkeypatch, models, shown):
    class OneModel:
        def place_of(self, request_id: str, checkpoint_id: str) -> QueuePlace:
            return QueuePlace(1, "swap", 2.0, 2.0, "other")

    async def read_queues(checkpoint_ids) -> OneModel:
        return OneModel()

    monkeypatch.setattr(queue_watch_module, "read_queues", read_queues)
    found, places = queued_generation(replace(LOCAL, models=models)), []
    await asyncio.wait_for(found.open(), 60)
    (name,) = await worker.published(1)

    async def report(place):
        places.append(place)
        await worker.send(name, "start", prompt_tokens=1)

    await asyncio.wait_for(found.wait_for_start(report), 60)
    assert places[0] == QueuePlace(1, "swap", 2.0, 2.0, shown)
    await found.close("cancelled")


async def test_a_request_that_fails_while_it_reports_raises_and_is_closed(worker, quickly):
    found = queued_generation()
    await asyncio.wait_for(found.open(), 60)
    (name,) = await worker.published(1)

    async def report(place):
        await worker.send(name, "error", error=InvalidRequest("no.").to_dict())

    with pytest.raises(InvalidRequest, match="no"):
        await asyncio.wait_for(found.wait_for_start(report), 60)
    assert found.is_closed and found.outcome == InvalidRequest("no.").code


async def test_a_client_that_leaves_the_queue_cancels_its_request(worker, quickly):
    found = queued_generation()
    await asyncio.wait_for(found.open(), 60)
    reported = asyncio.Event()

    async def report(place):
        reported.set()

    waiting = asyncio.create_task(found.wait_for_start(report))
    await asyncio.wait_for(reported.wait(), 60)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until_cancelled(worker, [found.request_id])
    assert found.outcome == "cancelled"
