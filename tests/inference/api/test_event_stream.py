"""Streams: parts are sent as they come, wait for a slow client, and what failed ends the stream."""

from __future__ import annotations

import asyncio
import threading
import time

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.api import event_stream as sse
from inference.api.event_stream import StreamReader, parts_of
from inference.errors import BlazrError, InvalidRequest
from inference.serving import queue_watch
from inference.transport.queue_places import Queues
from inference.values.output_builder import OutputBuilder
from inference.values.plan import GenerationPlan
from inference.values.sampling_params import SamplingParams
from tests.inference.api.openai.test_views_openai_client import wait_for
from tests.inference.api.scripted_worker import Reply, say
from tests.inference.api.sent_parts import SentParts
from tests.inference.api.slow_reader import slow_chat


class Reader(StreamReader):
    """A reader whose client takes parts while ``may_send`` is set."""

    def __init__(self):
        super().__init__(self)
        self.pieces: list[list[bytes]] = []
        self.errors: list[BlazrError] = []
        self.may_send = asyncio.Event()
        self.may_send.set()

    def give_up(self, error):
        self.errors.append(error)
        self.end()

    def take(self, number, event):
        self.put(event)

    async def send(self, parts):
        await self.may_send.wait()
        self.pieces.append(parts)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


async def test_a_part_is_sent_at_once_while_the_client_keeps_up():
    reader = Reader()
    writing = asyncio.create_task(reader.write())
    for part in (b"a", b"b"):
        reader.take(0, part)
        await until(lambda part=part: reader.pieces and reader.pieces[-1] == [part])
    reader.end()
    await writing
    assert reader.pieces == [[b"a"], [b"b"]]


async def test_parts_that_come_together_or_wait_for_the_client_are_sent_together():
    reader = Reader()
    writing = asyncio.create_task(reader.write())
    reader.may_send.clear()
    for part in (b"a", b"b"):
        reader.take(0, part)
    await until(lambda: reader.is_sending)
    for part in (b"c", b"", b"d"):
        reader.take(0, part)
    reader.end()
    reader.may_send.set()
    await writing
    assert reader.pieces == [[b"a", b"b"], [b"c", b"d"]]


async def test_a_client_that_falls_a_megabyte_behind_gets_an_error_in_place_of_it():
    reader = Reader()
    for _ in range(3):
        reader.take(0, bytes(1 << 20))  # nothing is being sent: what comes at the start is not the client's fault
    writing = asyncio.create_task(reader.write())
    reader.may_send.clear()
    await asyncio.sleep(0)
    assert reader.errors == []
    for _ in range(3):
        reader.take(0, bytes(600_000))
    assert ["too slowly" in error.message for error in reader.errors] == [True]
    reader.may_send.set()
    await writing
    assert [len(parts) for parts in reader.pieces] == [3]


async def test_parts_of_a_writer_come_one_by_one_and_its_error_behind_them():
    sent = []

    async def write_to(send):
        for part in (b"a", b"b"):
            await send(part)
            sent.append(part)
        raise ValueError("broken")

    taken = []
    with pytest.raises(ValueError, match="broken"):
        async for part in parts_of(write_to):
            taken.append((part, list(sent)))
    assert taken == [(b"a", []), (b"b", [b"a"])]


async def test_closing_the_parts_cancels_the_writer():
    cancelled = asyncio.Event()

    async def write_to(send):
        try:
            await send(b"a")
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    parts = parts_of(write_to)
    assert await anext(parts) == b"a"
    await parts.aclose()
    assert cancelled.is_set()


# --- chunks ------------------------------------------------------------------------------------------

EVENT = {"request_id": "r", "attempt": 0, "index": 1, "type": "delta", "choice": 0, "token_ids": [7]}


def _plan(endpoint, params=None, **values):
    return GenerationPlan(endpoint, "tiny", ({"text": "x"},), params or SamplingParams(), stream=True, **values)


class _Served:
    name = 'a "model" é'


class _Generation:
    request_id, created, served = "r", 1, _Served()

    def __init__(self, plan):
        self.plan = plan
        self.builder = OutputBuilder(plan)


@pytest.mark.parametrize("endpoint", ["completion", "chat"])
@pytest.mark.parametrize("include_usage", [False, True])
@given(texts=st.lists(st.text(), min_size=1, max_size=4))
def test_chunks_of_plain_text_are_those_of_the_format(endpoint, include_usage, texts):
    plan = GenerationPlan(
        endpoint=endpoint,
        model="tiny",
        prompts=({"text": "x"},),
        params=SamplingParams(),
        stream=True,
        include_usage=include_usage,
    )
    stream = sse.ChunkStream(_Generation(plan))
    reference = sse.output_format(_Generation(plan))
    for text in texts:
        event = {**EVENT, "text": text}
        assert reference.plain_text(0, event) == text
        assert stream.parts(0, event) == b"".join(sse.sse_data(chunk) for chunk in reference.chunks(0, event))


@pytest.mark.parametrize(
    "event",
    [
        {**EVENT, "text": "x", "choice": 1},
        {**EVENT, "text": "x", "finish_reason": "stop"},
        {**EVENT, "type": "done"},
    ],
)
@pytest.mark.parametrize("endpoint", ["completion", "chat"])
def test_other_events_are_not_plain_text(event, endpoint):
    plan = GenerationPlan(
        endpoint=endpoint, model="tiny", prompts=({"text": "x"},), params=SamplingParams(n=2), stream=True
    )
    assert sse.output_format(_Generation(plan)).plain_text(0, event) is None


# --- over HTTP ---------------------------------------------------------------------------------------

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


def test_a_stream_that_flows_has_no_heartbeats(live_url, worker, monkeypatch):
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.4)
    sent = SentParts(monkeypatch)

    def script(reply: Reply):
        yield reply.start()
        for number in range(20):
            yield reply.delta(f"<{number}>")
            time.sleep(0.05)
        num_before = sent.num_heartbeats
        wait_for(lambda: sent.num_heartbeats > num_before)
        yield reply.delta("", finish_reason="stop")
        yield reply.done()

    worker.script = script
    raw = httpx.post(f"{live_url}/v1/chat/completions", json=BODY, timeout=60).text
    assert ": keep-alive" in raw.partition("<19>")[2]
    # A machine that is busy for a while makes a stream that flows as silent as one that waits.
    assert all(seconds > 0.39 for seconds in sent.silences_s()) and sent.silences_s()


def test_a_reader_that_falls_behind_and_catches_up_gets_everything_in_order(live_url, worker, monkeypatch):
    writers: list[sse.ByteWriter] = []
    take = sse.ByteWriter.take

    def recorded(writer, number, event):
        writers.append(writer)
        take(writer, number, event)

    monkeypatch.setattr(sse.ByteWriter, "take", recorded)
    monkeypatch.setattr(sse, "MAX_WAITING_BYTES", 1 << 30)
    is_behind, num_deltas = threading.Event(), 0

    def script(reply: Reply):
        nonlocal num_deltas

        def delta(text: str):
            nonlocal num_deltas
            num_deltas += 1
            return reply.delta(f"<{num_deltas}>{text}")

        yield reply.start()
        while not (writers and writers[-1].is_sending and writers[-1]._num_bytes > 500_000):
            yield delta("x" * 50_000)
            time.sleep(0.005)
        for _ in range(5):
            yield delta("")
        is_behind.set()
        wait_for(lambda: not writers[-1].is_sending)
        for _ in range(5):
            yield delta("")
            time.sleep(0.02)
        yield reply.delta("", finish_reason="stop")
        yield reply.done()

    worker.script = script
    with slow_chat(live_url, BODY) as (raw, first):
        received = [first]
        assert is_behind.wait(60)
        while piece := raw.recv(1 << 16):
            received.append(piece)
    whole = b"".join(received)
    places = [whole.find(b'"content":"<%d>' % (number + 1)) for number in range(num_deltas)]
    assert -1 not in places
    assert places == sorted(places)
    assert b"data: [DONE]\n\n" in whole[-40:]


def test_a_reader_that_falls_a_megabyte_behind_gets_an_error_and_its_slot_is_freed(live_url, worker):
    def script(reply: Reply):
        yield reply.start()
        while not reply.cancelled.is_set():
            yield reply.delta("x" * 100_000)
            time.sleep(0.005)

    worker.script = script
    with slow_chat(live_url, BODY) as (raw, first):
        wait_for(lambda: len(worker.cancelled) == 1)
        received = [first]
        while piece := raw.recv(1 << 16):
            received.append(piece)
    assert b"too slowly" in b"".join(received)[-600:]


# --- the queue ---------------------------------------------------------------------------------------

QUEUED = {**BODY, "stream": True, "stream_options": {"include_queue": True, "include_usage": True}}


@pytest.fixture
def reported(monkeypatch) -> threading.Event:
    """Set when a stream has said where its request stands."""
    found = threading.Event()
    queue_event = sse.queue_event

    def recorded(*arguments):
        found.set()
        return queue_event(*arguments)

    monkeypatch.setattr(sse, "queue_event", recorded)
    return found


def late(*after, until=None):
    """A script whose request waits for a while, or for an event, and then has the events that ``after`` make."""

    def script(reply: Reply):
        if until is None:
            time.sleep(0.6)
        else:
            assert until.wait(60)
        for make in after:
            yield make(reply)

    return script


def events_of(text):
    """The named events of a stream, as name (or nothing) and data."""
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((fields.get("event", ""), fields["data"]))
    return found


def test_a_waiting_stream_begins_with_its_place(http, worker, reported):
    events = (Reply.start, lambda reply: reply.delta("Hi", finish_reason="stop"), Reply.done)
    worker.script = late(*events, until=reported)
    response = http.post("/v1/chat/completions", json=QUEUED)
    events = events_of(response.text)
    assert (response.status_code, events[0][0], events[-1][1]) == (200, "blazr.queue", "[DONE]")
    chunk = orjson.loads(events[0][1])
    assert (chunk["object"], chunk["choices"]) == ("chat.completion.chunk", [])
    assert chunk["queue"]["waits_for"] in ("capacity", "load")  # the latter before the worker's first heartbeat
    names = [name for name, _ in events]
    assert names == sorted(names, reverse=True)  # none comes behind the first token
    assert orjson.loads(events[names.count("blazr.queue")][1])["choices"][0]["delta"]["role"] == "assistant"


def test_an_error_of_a_request_that_has_said_its_place_is_in_the_stream(http, worker, reported):
    worker.script = late(lambda reply: reply.error(InvalidRequest("no.", param="messages")), until=reported)
    response = http.post("/v1/chat/completions", json=QUEUED)
    events = events_of(response.text)
    assert response.status_code == 200 and events[0][0] == "blazr.queue"
    assert orjson.loads(events[-2][1])["error"]["message"] == "no." and events[-1][1] == "[DONE]"


def test_an_early_error_keeps_its_status(http, worker):
    def script(reply: Reply):
        yield reply.error(InvalidRequest("no.", param="messages"))

    worker.script = script
    assert http.post("/v1/chat/completions", json=QUEUED).status_code == 400


@pytest.mark.parametrize(
    ("path", "members"),
    [("/v1/chat/completions", {}), ("/v1/responses", {"input": "Hi"}), ("/v1/messages", {"max_tokens": 4})],
)
def test_a_whole_response_that_waited_says_so_in_its_headers(http, worker, monkeypatch, path, members):
    whole = {**BODY, "stream": False, **members}
    if "input" in members:
        del whole["messages"]
    worker.script = late(Reply.start, lambda reply: reply.delta("Hi", finish_reason="stop"), Reply.done)
    begun = time.monotonic()
    headers = http.post(path, json=whole).headers
    assert 0.5 < float(headers["x-queue-seconds"]) < time.monotonic() - begun
    assert headers["x-queue-reason"] == "capacity"
    worker.script = say("Hi")
    monkeypatch.setattr(sse, "WAITED_S", 60.0)
    assert "x-queue-seconds" not in http.post(path, json=whole).headers


def test_a_waiting_stream_whose_place_is_unknown_has_heartbeats(http, worker, monkeypatch):
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.1)
    monkeypatch.setattr(queue_watch, "PERIOD_S", 0.05)
    monkeypatch.setattr(Queues, "place_of", lambda *request: None)
    sent = SentParts(monkeypatch)

    def script(reply: Reply):
        wait_for(lambda: sent.num_heartbeats > 1, 20)
        yield reply.start()
        yield reply.delta("Hi", finish_reason="stop")
        yield reply.done()

    worker.script = script
    raw = http.post("/v1/chat/completions", json=QUEUED).text
    assert "keep-alive" in raw.partition("assistant")[0]
    assert raw.endswith("data: [DONE]\n\n")
