"""Parsed outputs as deltas and as a message: put together, the deltas are the message."""

from __future__ import annotations

from inference.dialects.openai.outputs.chat_deltas import chat_deltas, chat_message
from inference.text.tool_calls.events import (
    ContentDelta,
    ParsedMessage,
    ReasoningDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
)


def test_events_of_one_kind_make_one_delta():
    events = [ReasoningDelta("h"), ReasoningDelta("m"), ContentDelta("a"), ContentDelta("b")]
    assert chat_deltas(events) == [{"reasoning_content": "hm"}, {"content": "ab"}]


def test_a_call_begins_with_its_name_and_goes_on_by_its_index():
    first, second = ToolCallStart(0, "call_a", "f"), ToolCallStart(1, "call_b", "g")
    deltas = chat_deltas([first, ToolCallDelta(0, '{"x"'), ToolCallDelta(0, ": 1}"), second, ToolCallDelta(1, "{}")])
    assert [delta["tool_calls"][0]["index"] for delta in deltas] == [0, 1]
    assert deltas[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}
    assert chat_deltas([ToolCallDelta(1, "}")]) == [{"tool_calls": [{"index": 1, "function": {"arguments": "}"}}]}]


def test_content_is_null_only_beside_something_else():
    assert chat_message(ParsedMessage(content=""))["content"] == ""
    call = ToolCall("call_a", "f", "{}")
    message = chat_message(ParsedMessage(content="", tool_calls=[call]))
    assert message["content"] is None
    assert message["tool_calls"] == [{"id": "call_a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert chat_message(ParsedMessage(content="a", reasoning="hm"))["reasoning_content"] == "hm"
