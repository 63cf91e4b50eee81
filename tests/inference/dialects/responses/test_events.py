"""Events of a response: numbered without gaps, and the last one holds what all of them said."""

from __future__ import annotations

import pytest

from inference.dialects.chat_bridge import CallPiece, EndPiece, ReasoningPiece, TextPiece
from inference.dialects.responses.events import ResponseEvents, response_error, response_usage
from inference.dialects.responses.items import chat_messages, items_read
from inference.dialects.responses.serializers import ResponseRequestSerializer
from inference.errors import GenerationFailed, InvalidRequest, QueueFull

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 1}}


def made(**members) -> ResponseEvents:
    request = ResponseRequestSerializer.shared().read({"model": "m", "input": "x", **members})
    skeleton = request.skeleton(request.plan(), response_id="resp_1", created=3, model="m")
    return ResponseEvents(skeleton, returns_reasoning=request.returns_reasoning)


def test_numbers_have_no_gaps_and_the_end_has_everything():
    events = made()
    found = events.started()
    for piece in (ReasoningPiece("hm"), TextPiece("Hel"), TextPiece("lo"), CallPiece(0, "c", "f", "{}"),
                  EndPiece("tool_calls", None)):  # fmt: skip
        found += events.take(piece)
    found += events.finished(usage=USAGE, now=9)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert found[0]["type"] == "response.created"
    assert found[-1]["type"] == "response.completed"
    output = found[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
    assert output[1]["content"][0]["text"] == "Hello"
    assert found[-1]["response"]["usage"]["input_tokens_details"] == {"cached_tokens": 1, "cache_write_tokens": 0}
    assert events.is_over


def test_codex_gets_reasoning_that_it_can_send_back():
    """It keeps no reasoning text: of an item with text, only ``encrypted_content`` is in its next request."""
    events = made(store=False, include=["reasoning.encrypted_content"])
    events.started()
    for piece in (ReasoningPiece("hm, "), ReasoningPiece("jå"), CallPiece(0, "c", "f", "{}"), EndPiece("stop", None)):
        events.take(piece)
    reasoning, call = events.finished(usage=USAGE, now=9)[-1]["response"]["output"]
    assert reasoning["content"][0]["text"] == "hm, jå"
    items = items_read([
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": reasoning["encrypted_content"]},
        {name: call[name] for name in ("type", "call_id", "name", "arguments")},
        {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"},
    ])  # fmt: skip
    assert items[0]["content"] == reasoning["content"]
    assert chat_messages(None, items)[0]["reasoning_content"] == "hm, jå"
    without = made()
    without.started()
    without.take(ReasoningPiece("hm"))
    assert "encrypted_content" not in without.finished(usage=USAGE, now=9)[-1]["response"]["output"][0]


def test_codex_runs_a_call_by_its_namespace_and_name():
    function = {"type": "function", "name": "read", "parameters": {"type": "object"}}
    events = made(tools=[{"type": "namespace", "name": "mcp__wiki", "description": "A wiki.", "tools": [function]}])
    events.started()
    added, *_ = events.take(CallPiece(0, "c", "mcp__wiki__read", "{}"))
    assert (added["item"]["name"], added["item"]["namespace"]) == ("read", "mcp__wiki")
    (call,) = events.finished(usage=USAGE, now=9)[-1]["response"]["output"]
    assert (call["name"], call["namespace"], call["arguments"]) == ("read", "mcp__wiki", "{}")


def test_a_limit_makes_it_incomplete_and_an_empty_output_is_a_message():
    events = made()
    events.started()
    events.take(EndPiece("length", None))
    final = events.finished(usage=USAGE, now=9)[-1]
    assert final["type"] == "response.incomplete"
    assert final["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["type"] for item in final["response"]["output"]] == ["message"]


def test_failures_and_cancellations_end_it():
    for end, kind in ((lambda events: events.failed(GenerationFailed("no")), "response.failed"),
                      (lambda events: events.cancelled(), "response.cancelled")):  # fmt: skip
        events = made()
        events.started()
        assert end(events)[-1]["type"] == kind
        assert events.is_over


@pytest.mark.parametrize(
    ("error", "code"),
    [(InvalidRequest("x"), "invalid_prompt"), (QueueFull("x"), "rate_limit_exceeded"),
     (GenerationFailed("x"), "server_error")],
)  # fmt: skip
def test_errors_have_one_of_openai_s_codes(error, code):
    assert response_error(error)["code"] == code
    assert response_usage(USAGE)["output_tokens_details"] == {"reasoning_tokens": 0}
