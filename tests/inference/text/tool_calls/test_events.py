"""ParsedMessage: events collected to a whole output."""

from __future__ import annotations

from inference.text.tool_calls.events import (
    ContentDelta,
    ParsedMessage,
    ReasoningDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)


def test_events_are_joined_by_kind_and_call() -> None:
    message = ParsedMessage()
    for event in (
        ReasoningDelta("th"),
        ReasoningDelta("ink"),
        ContentDelta("a"),
        ToolCallStart(0, "id0", "f"),
        ToolCallStart(1, "id1", "g"),
        ToolCallDelta(1, "{}"),
        ToolCallDelta(0, '{"x":'),
        ToolCallDelta(0, "1}"),
        ToolCallEnd(0),
        ContentDelta("b"),
    ):
        message.add(event)
    assert (message.reasoning, message.content) == ("think", "ab")
    assert message.tool_calls == [ToolCall("id0", "f", '{"x":1}'), ToolCall("id1", "g", "{}")]
