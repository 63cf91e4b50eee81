"""Parts of an answer: written at once while the client keeps up, finished by the answer's task when it doesn't."""

from __future__ import annotations

import asyncio
import threading
import time

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inference.api.part_writer import PartWriter

from inference.api import event_stream as sse
from inference.dialects.openai.outputs.formats import answer_format
from inference.values.output_builder import AnswerBuilder
from inference.values.plan import GenerationPlan
from inference.values.sampling_params import SamplingParams
from tests.inference.api.openai.test_views_openai_client import wait_for
from tests.inference.api.scripted_worker import Reply
from tests.inference.api.slow_reader import slow_chat


class Server:
    """A server's ``send``: waits while the client is behind."""

    def __init__(self):
        self.bodies: list[bytes] = []
        self.may_write = asyncio.Event()
        self.may_write.set()

    async def send(self, message):
        assert message["type"] == "http.response.body"
        assert message["more_body"] is True
        if not self.may_write.is_set():
            await self.may_write.wait()
        self.bodies.append(message["body"])


def begun():
    """A server whose client is behind, and a writer with a part that waits for it."""
    server = Server()
    writer = PartWriter(server.send)
    server.may_write.clear()
    writer.write_now(b"a")
    return server, writer


async def test_a_part_is_out_at_once_while_the_client_keeps_up():
    server = Server()
    writer = PartWriter(server.send)
    writer.write_now(b"a")
    assert server.bodies == [b"a"]
    assert not writer.is_behind
    await writer.write(b"b")
    assert server.bodies == [b"a", b"b"]


async def test_what_waits_for_the_client_comes_before_what_is_written_next():
    server, writer = begun()
    assert writer.is_behind
    task = asyncio.create_task(writer.write(b"b"))
    await asyncio.sleep(0.01)
    assert server.bodies == []
    server.may_write.set()
    await task
    assert server.bodies == [b"a", b"b"]
    assert not writer.is_behind


async def test_a_client_that_has_caught_up_by_itself_gets_what_waited():
    server, writer = begun()
    server.may_write.set()
    await asyncio.sleep(0)
    await writer.write(b"b")
    assert server.bodies == [b"a", b"b"]


async def test_a_task_that_is_cancelled_drops_what_waited():
    server, writer = begun()
    task = asyncio.create_task(writer.write(b"b"))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    server.may_write.set()
    await asyncio.sleep(0.01)
    assert server.bodies == []


async def test_closing_drops_what_waited():
    server, writer = begun()
    writer.close()
    server.may_write.set()
    await asyncio.sleep(0.01)
    assert server.bodies == []
    assert not writer.is_behind


async def test_what_the_server_raises_is_raised():
    async def send(message):
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        PartWriter(send).write_now(b"a")


# --- chunks ------------------------------------------------------------------------------------------

EVENT = {"request_id": "r", "attempt": 0, "index": 1, "type": "delta", "choice": 0, "token_ids": [7]}


def _plan(endpoint, params=None, **values):
    return GenerationPlan(endpoint, "tiny", ({"text": "x"},), params or SamplingParams(), stream=True, **values)


class _Generation:
    def __init__(self, plan):
        self.plan = plan
        self.format = answer_format(plan, AnswerBuilder(plan), request_id="r", created=1, model='a "model" é')


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
    reference = _Generation(plan).format
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
    assert _Generation(plan).format.plain_text(0, event) is None


# --- over HTTP ---------------------------------------------------------------------------------------

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


def test_a_stream_that_flows_has_no_heartbeats(live_url, worker, monkeypatch):
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.4)

    def script(reply: Reply):
        yield reply.start()
        for number in range(20):
            yield reply.delta(f"<{number}>")
            time.sleep(0.05)
        time.sleep(0.7)
        yield reply.delta("", finish_reason="stop")
        yield reply.done()

    worker.script = script
    raw = httpx.post(f"{live_url}/v1/chat/completions", json=BODY, timeout=20).text
    before, _, after = raw.partition("<19>")
    assert ": keep-alive" not in before
    assert 1 <= after.count(": keep-alive\n\n") <= 2


def test_a_reader_that_falls_behind_and_catches_up_gets_everything_in_order(live_url, worker, monkeypatch):
    writers: list[PartWriter] = []
    write_now = PartWriter.write_now

    def noted(writer, body):
        write_now(writer, body)
        writers.append(writer)

    monkeypatch.setattr(PartWriter, "write_now", noted)
    is_behind, num_deltas = threading.Event(), 0

    def script(reply: Reply):
        nonlocal num_deltas

        def delta(text: str):
            nonlocal num_deltas
            num_deltas += 1
            return reply.delta(f"<{num_deltas}>{text}")

        yield reply.start()
        while not (writers and writers[-1].is_behind):  # what the system keeps for a socket is full then
            yield delta("x" * 50_000)
            time.sleep(0.005)
        for _ in range(5):
            yield delta("")
        is_behind.set()
        wait_for(lambda: not writers[-1].is_behind)
        for _ in range(5):
            yield delta("")
            time.sleep(0.02)
        yield reply.delta("", finish_reason="stop")
        yield reply.done()

    worker.script = script
    with slow_chat(live_url, BODY) as (raw, first):
        received = [first]
        assert is_behind.wait(20)
        while piece := raw.recv(1 << 16):
            received.append(piece)
    whole = b"".join(received)
    places = [whole.find(b'"content":"<%d>' % (number + 1)) for number in range(num_deltas)]
    assert -1 not in places
    assert places == sorted(places)
    assert b"data: [DONE]\n\n" in whole[-40:]
    assert len(writers) > num_deltas - 10  # those that came while it was behind waited for the answer's task
