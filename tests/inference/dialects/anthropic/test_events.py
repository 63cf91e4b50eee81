"""Anthropic's events, without a server: blocks, calls, errors."""

from __future__ import annotations

import re
import time

import pytest

from inference.dialects.anthropic.events import MessageEvents, message_error
from inference.dialects.anthropic.messages import chat_messages
from inference.dialects.anthropic.serializers import CHAT_NAMES
from inference.dialects.chat_bridge import CallPiece, EndPiece, ReasoningPiece, TextPiece, translate_error
from inference.errors import GenerationFailed, PromptTooLong, QueueFull
from tests.inference.api.anthropic.test_views import USAGE

NOTHING_KEPT = {
    "cache_creation_input_tokens": 0,
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
}


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
        {"type": "thinking", "thinking": "let me", "signature": "unsigned"},
        {"type": "text", "text": "I'll look."},
        {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": 1}},
        {"type": "tool_use", "id": "call_2", "name": "wait", "input": {}},
    ]
    starts = [event["index"] for event in events if event["type"] == "content_block_start"]
    stops = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert starts == stops == [0, 1, 2, 3]
    assert (
        machine.message["usage"] == {"input_tokens": 4, "cache_read_input_tokens": 1, "output_tokens": 2} | NOTHING_KEPT
    )
    assert events[0]["message"]["content"] == []


def test_ai_sdk_finds_a_signature_at_the_end_of_thinking():
    """Without a ``signature_delta`` it leaves the thinking out of its next request; Zed and goose look for it too."""
    machine = MessageEvents(message_id="msg_1", model="tiny")
    machine.take(ReasoningPiece("hm"))
    signed, stop, start, _ = machine.take(TextPiece("Yes."))
    assert signed == {"type": "content_block_delta", "index": 0,
                      "delta": {"type": "signature_delta", "signature": "unsigned"}}  # fmt: skip
    assert (stop["type"], start["content_block"]["type"]) == ("content_block_stop", "text")
    machine.finished(USAGE)
    assert chat_messages(None, [{"role": "assistant", "content": machine.message["content"]}]) == [
        {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}
    ]


@pytest.mark.parametrize(
    ("text", "finish_reason", "expected"),
    [
        ('{"at":', "tool_calls", {"INVALID_JSON": '{"at":'}),
        ("[1]", "tool_calls", {"INVALID_JSON": "[1]"}),
        ('{"at": 1}', "length", {"at": 1}),
        ('{"at":', "length", {}),
        ('{"at": 1, "to": 23', "length", {"at": 1}),
        ('{"at": "x, \\"{", "to": [1, {"a": 2}], "by', "length", {"at": 'x, "{', "to": [1, {"a": 2}]}),
        ('{"at": "x", "to"', "length", {"at": "x"}),
        ('{"at": "x"', "length", {"at": "x"}),
        ('{"at": {"x": 1, "y"', "length", {}),
        ("look at", "length", {}),
        ('{"at": 1, to, 2, 3', "length", {"at": 1}),
    ],
)
def test_a_call_s_input_is_the_complete_part_of_its_arguments(text, finish_reason, expected):
    machine = MessageEvents(message_id="msg_1", model="tiny")
    machine.take(CallPiece(0, "call_1", "look", text))
    machine.take(EndPiece(finish_reason, None))
    machine.finished(USAGE)
    assert machine.message["content"][0]["input"] == expected


def test_a_long_input_that_is_no_json_is_searched_in_few_steps():
    text = '{"at": "' + "x" * 100_000 + '", to' + "," * 100_000  # its error is far behind the start
    machine = MessageEvents(message_id="msg_1", model="tiny")
    machine.take(CallPiece(0, "call_1", "look", text))
    machine.take(EndPiece("length", None))
    started = time.process_time()
    machine.finished(USAGE)
    assert time.process_time() - started < 1  # one parse for each comma would take longer than a minute's tenth
    assert machine.message["content"][0]["input"] == {"at": "x" * 100_000}


def test_error_types_by_status():
    assert message_error(QueueFull("full"))["error"] == {"type": "rate_limit_error", "message": "full"}
    assert message_error(GenerationFailed("x"))["error"]["type"] == "api_error"


@pytest.mark.parametrize(
    ("error", "pattern"),
    [
        (PromptTooLong.of(4096, 1500, 32000, noun="messages"),
         r"^input length and `max_tokens` exceed context limit: 1500 \+ 32000 > 4096\b"),
        (PromptTooLong.of(4096, 5000, noun="messages"), r"^prompt is too long: 5000 tokens > 4096\b"),
        (PromptTooLong.of(4096, 5000, 100, noun="messages"), r"^prompt is too long: 5000 tokens > 4096\b"),
        (PromptTooLong.of_chars(4096, 900_000, noun="messages"), r"^prompt is too long: .*900000 characters"),
    ],
)  # fmt: skip
def test_claude_code_finds_the_figures_of_a_context_that_is_exceeded(error, pattern):
    """It lowers max_tokens by the first form, and compacts the conversation by the second; litellm reads both."""
    found = message_error(translate_error(error, CHAT_NAMES))["error"]
    assert found["type"] == "invalid_request_error"
    assert re.search(pattern, found["message"])
