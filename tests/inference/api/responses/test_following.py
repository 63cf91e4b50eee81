"""The typed events of /v1/responses: their order, their numbers, what they add up to."""

from __future__ import annotations

import contextlib
import json
import secrets
from typing import Any

import httpx
import openai
import pytest

from inference.api.responses.following import STREAMS, FollowingStream
from inference.dialects.chat_bridge import CallPiece, EndPiece, ReasoningPiece, TextPiece
from inference.dialects.responses.events import ResponseEvents
from inference.errors import GenerationFailed
from inference.models import StoredResponse
from tests.inference.api.openai.test_views_openai_client import wait_for
from tests.inference.api.scripted_worker import Reply, say

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 1}}


def skeleton() -> dict:
    return {"id": "resp_abc", "status": "in_progress", "output": [], "usage": None, "tools": []}


def tell(*told) -> tuple[list[dict], ResponseEvents]:
    """All events of a response that is made of these pieces."""
    machine = ResponseEvents(skeleton())
    events = machine.started()
    for piece in told:
        events += machine.take(piece)
    return events + machine.finished(usage=USAGE, now=9), machine


def test_stream_of_the_client(client, worker):
    with client.responses.stream(model="tiny", input="Hi", instructions="Be brief.") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.output_text == "Hello, world"
    assert final.usage.output_tokens == 2
    assert client.responses.retrieve(final.id).output_text == "Hello, world", "stored before the last event"


def test_frames_have_a_name_and_no_end_mark(live_url, worker):
    body = {"model": "tiny", "input": "Hi", "stream": True}
    raw = httpx.post(f"{live_url}/v1/responses", json=body, timeout=60)
    assert raw.headers["content-type"] == "text/event-stream"
    frames = [frame.split("\n") for frame in raw.text.removesuffix("\n\n").split("\n\n")]
    for name, data in frames:
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]
    assert "[DONE]" not in raw.text


def test_stream_says_what_the_whole_answer_says(client, worker):
    worker.script = say("A", " b", " c.", finish_reason="length")
    whole = client.responses.create(model="tiny", input="Hi", max_output_tokens=3)
    *_, last = client.responses.create(model="tiny", input="Hi", max_output_tokens=3, stream=True)
    assert last.type == "response.incomplete"
    for name in ("status", "incomplete_details", "usage", "max_output_tokens", "text", "tools"):
        assert getattr(last.response, name) == getattr(whole, name), name
    assert last.response.output_text == whole.output_text == "A b c."


def test_a_failure_in_the_middle_is_an_event_and_is_kept(client, worker):
    def script(reply: Reply):
        yield reply.start()
        yield reply.delta("Hel")
        yield reply.error(GenerationFailed("the logits are not finite"))

    worker.script = script
    events = list(client.responses.create(model="tiny", input="Hi", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    failed = events[-1]
    assert failed.type == "response.failed"
    assert (failed.response.error.code, failed.response.error.message) == ("server_error", "the logits are not finite")
    kept = client.responses.retrieve(failed.response.id)
    assert (kept.status, kept.output_text, kept.output[0].status) == ("failed", "Hel", "incomplete")


def test_a_response_that_can_not_be_stored_fails(client, worker, monkeypatch):
    from django.db import OperationalError

    from inference.api.responses import running

    def down(**_):
        raise OperationalError("gone")

    key = {"Idempotency-Key": secrets.token_hex(8)}

    def last_event() -> Any:
        *_, last = client.responses.create(model="tiny", input="Hi", stream=True, extra_headers=key)
        return last

    with monkeypatch.context() as patched:
        patched.setattr(running, "response_store", down)
        last = last_event()
        assert (last.type, last.response.status) == ("response.failed", "failed")
        assert "database" in last.response.error.message
        with pytest.raises(openai.InternalServerError):
            client.responses.create(model="tiny", input="Hi")

    def is_done_anew() -> bool:
        with contextlib.suppress(openai.ConflictError):  # the first request holds the key until behind its last byte
            return last_event().type == "response.completed"
        return False

    wait_for(is_done_anew)


def test_leaving_a_stream_cancels_the_generation(client, worker):
    def script(reply: Reply):
        yield reply.start()
        yield reply.delta("Hel")
        reply.cancelled.wait(60)

    worker.script = script
    stream = client.responses.create(model="tiny", input="Hi", stream=True)
    next(iter(stream))
    stream.close()
    wait_for(lambda: worker.cancelled == [worker.messages[-1]["request_id"]])


def test_a_stream_that_was_never_read_gives_its_share_back():
    stack = contextlib.ExitStack()
    stack.enter_context(STREAMS.hold("key:never"))
    stream = FollowingStream(StoredResponse(response_id="resp_a", body="{}"), stack)
    num_held = STREAMS.num_held
    for _ in range(2):
        stream.close()
        assert STREAMS.num_held == num_held - 1


# --- the machine -------------------------------------------------------------------------------


def test_reasoning_text_and_calls_are_items_of_their_own():
    events, machine = tell(
        ReasoningPiece("let "), ReasoningPiece("me"), TextPiece("I'll look."),
        CallPiece(0, "call_1", "look", ""), CallPiece(0, "", "", '{"at":'), CallPiece(0, "", "", "1}"),
        CallPiece(1, "call_2", "wait", "{}"), EndPiece("tool_calls", None),
    )  # fmt: skip
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    output = machine.response["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "let me"}]
    assert output[1]["content"][0]["text"] == "I'll look."
    assert [(item["call_id"], item["name"], item["arguments"]) for item in output[2:]] == [
        ("call_abc02", "look", '{"at":1}'),
        ("call_abc03", "wait", "{}"),
    ]
    assert {item["status"] for item in output} == {"completed"}
    assert len({item["id"] for item in output}) == 4
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["output_index"] for event in events if event["type"] == "response.output_item.done"]
    assert added == done == [0, 1, 2, 3]


def test_deltas_add_up_to_what_is_done():
    events, machine = tell(TextPiece("a"), TextPiece("b"), ReasoningPiece("c"), TextPiece("d"), EndPiece("stop", None))
    for item in machine.response["output"]:
        deltas = [event["delta"] for event in events if event.get("item_id") == item["id"] and "delta" in event]
        assert "".join(deltas) == item["content"][0]["text"]


def test_the_same_pieces_give_the_same_events():
    told = (ReasoningPiece("a"), TextPiece("b"), CallPiece(0, "call_1", "f", "{}"), EndPiece("tool_calls", None))
    assert tell(*told)[0] == tell(*told)[0]


def test_an_empty_answer_is_an_empty_message():
    events, machine = tell(EndPiece("stop", None))
    assert machine.response["output"][0]["content"][0]["text"] == ""
    assert events[-1]["type"] == "response.completed"


def test_a_failure_leaves_no_gap_in_the_numbers():
    machine = ResponseEvents(skeleton())
    events = machine.started() + machine.take(TextPiece("Hel")) + machine.failed(GenerationFailed("broken"))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert machine.response["output"][0]["content"][0]["text"] == "Hel"
