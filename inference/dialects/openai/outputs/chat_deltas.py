"""Format a parsed output as deltas of OpenAI's chat stream, or as the whole message.

https://platform.openai.com/docs/api-reference/chat/streaming; ``reasoning_content`` is DeepSeek's and vLLM's addition.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from inference.text.tool_calls.events import (
    ContentDelta,
    OutputEvent,
    ParsedMessage,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStart,
)

Delta = dict[str, Any]


def chat_deltas(events: Iterable[OutputEvent]) -> list[Delta]:
    """Return one delta per run of events of the same kind; the first delta of a call has its name."""
    deltas: list[Delta] = []
    for event in events:
        last = deltas[-1] if deltas else {}
        match event:
            case ContentDelta(text):
                if "content" in last:
                    last["content"] += text
                else:
                    deltas.append({"content": text})
            case ReasoningDelta(text):
                if "reasoning_content" in last:
                    last["reasoning_content"] += text
                else:
                    deltas.append({"reasoning_content": text})
            case ToolCallStart(index, call_id, name):
                function = {"name": name, "arguments": ""}
                deltas.append({"tool_calls": [_call(call_id, function) | {"index": index}]})
            case ToolCallDelta(index, arguments):
                if "tool_calls" in last and last["tool_calls"][0]["index"] == index:
                    last["tool_calls"][0]["function"]["arguments"] += arguments
                else:
                    deltas.append({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})
    return deltas


def chat_message(parsed: ParsedMessage) -> dict[str, Any]:
    """Return the assistant's message; content is null if there are only calls or reasoning."""
    has_more = bool(parsed.tool_calls or parsed.reasoning)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if has_more and not parsed.content else parsed.content,
        "refusal": None,
    }
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["tool_calls"] = [
            _call(call.call_id, {"name": call.name, "arguments": call.arguments}) for call in parsed.tool_calls
        ]
    return message


def _call(call_id: str, function: dict[str, str]) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": function}
