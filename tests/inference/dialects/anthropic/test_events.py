"""Anthropic's events, without a server: blocks, calls, errors."""

from __future__ import annotations

from inference.dialects.anthropic.events import MessageEvents, message_error
from inference.dialects.chat_bridge import CallPiece, EndPiece, ReasoningPiece, TextPiece
from inference.errors import GenerationFailed, QueueFull
from tests.inference.api.anthropic.test_views import USAGE


def test_thinking_text_and_calls_are_blocks_of_their_own():
    machine = MessageEvents(message_id="msg_1", model="tiny")
    events = machine.started(prompt_tokens=5)
    for piece in (
        ReasoningPiece("let "), ReasoningPiece("me"), TextPiece("I'll look."), CallPiece(0, "call_1", "look", ""),
        CallPiece(0, "", "", '{"at":'), CallPiece(0, "", "", "1}"), CallPiece(1, "call_2", "wait", ""),
        EndPiece("tool_calls", None),
    ):  # fmt: skip
        events += machine.take(piece)
    events += machine.finished(USAGE)
    assert machine.message["content"] == [
        {"type": "thinking", "thinking": "let me", "signature": ""},
        {"type": "text", "text": "I'll look."},
        {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": 1}},
        {"type": "tool_use", "id": "call_2", "name": "wait", "input": {}},
    ]
    starts = [event["index"] for event in events if event["type"] == "content_block_start"]
    stops = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert starts == stops == [0, 1, 2, 3]
    assert machine.message["usage"] == {"input_tokens": 4, "cache_read_input_tokens": 1, "output_tokens": 2}
    assert events[0]["message"]["content"] == []


def test_calls_whose_arguments_are_no_object_are_kept():
    machine = MessageEvents(message_id="msg_1", model="tiny")
    machine.take(CallPiece(0, "call_1", "look", '{"at":'))
    machine.finished(USAGE)
    assert machine.message["content"][0]["input"] == {"arguments": '{"at":'}


def test_error_types_by_status():
    assert message_error(QueueFull("full"))["error"] == {"type": "rate_limit_error", "message": "full"}
    assert message_error(GenerationFailed("x"))["error"]["type"] == "api_error"
