"""Members of a response's request in chat completions' words."""

from __future__ import annotations

import pytest

from inference.dialects.responses.conversion import (
    format_in_chat,
    logprobs_in_chat,
    read_include_queue,
    reasoning_in_chat,
    tools_in_chat,
)
from inference.errors import InvalidRequest

FUNCTION = {"name": "f", "parameters": {"type": "object"}}


def test_members_move_to_where_chat_completions_have_them():
    include = {"include": ["message.output_text.logprobs"], "top_logprobs": 3}
    assert logprobs_in_chat(include) == {"logprobs": True, "top_logprobs": 3}
    schema = {"name": "n", "schema": {}}
    assert format_in_chat({"text": {"format": {"type": "json_schema", **schema}}}) == {
        "response_format": {"type": "json_schema", "json_schema": schema}
    }
    assert format_in_chat({"text": {"format": {"type": "text"}}}) == {"response_format": {"type": "text"}}
    assert reasoning_in_chat({"reasoning": {"effort": "low", "summary": "auto"}}) == {"reasoning_effort": "low"}
    tools = tools_in_chat(
        {"tools": [{"type": "function", **FUNCTION}], "tool_choice": {"type": "function", "name": "f"}}
    )
    assert tools["tools"] == [{"type": "function", "function": FUNCTION}]
    assert tools["tool_choice"] == {"type": "function", "function": {"name": "f"}}


def test_what_is_absent_adds_nothing():
    for convert in (logprobs_in_chat, format_in_chat, reasoning_in_chat, tools_in_chat):
        assert convert({}) == {}
    assert tools_in_chat({"tool_choice": "auto"}) == {}
    assert not read_include_queue({"stream": True, "stream_options": {"include_obfuscation": False}})
    assert read_include_queue({"stream": True, "stream_options": {"include_queue": True}})


@pytest.mark.parametrize(
    ("convert", "values", "param"),
    [
        (
            read_include_queue,
            {"stream": True, "background": True, "stream_options": {"include_queue": True}},
            "stream_options.include_queue",
        ),
        (logprobs_in_chat, {"include": ["files"]}, "include.0"),
        (logprobs_in_chat, {"top_logprobs": 2}, "top_logprobs"),
        (format_in_chat, {"text": {"verbosity": "high"}}, "text.verbosity"),
        (format_in_chat, {"text": {"format": 3}}, "text.format"),
        (reasoning_in_chat, {"reasoning": {"summary": "none"}}, "reasoning.summary"),
        (reasoning_in_chat, {"reasoning": {"context": "all_turns"}}, "reasoning.context"),
        (tools_in_chat, {"tools": [{"type": "web_search"}]}, "tools.0.type"),
        (tools_in_chat, {"tool_choice": {"type": "mcp"}}, "tool_choice"),
    ],
)
def test_what_cannot_be_honoured_is_named(convert, values, param):
    with pytest.raises(InvalidRequest) as caught:
        convert(values)
    assert caught.value.param == param
