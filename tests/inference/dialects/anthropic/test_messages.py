"""Anthropic's messages as chat completions' messages: blocks, calls, their results, and what is wrong."""

from __future__ import annotations

import json

import pytest

from inference.dialects.anthropic.messages import chat_messages
from inference.errors import InvalidRequest


def test_calls_and_their_results_become_messages_of_their_own():
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "2"}]}
    found = chat_messages(
        "Rules.",
        [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [{"type": "text", "text": "see"}, use]},
            {"role": "user", "content": [result, {"type": "text", "text": "go on"}]},
        ],
    )
    assert [message["role"] for message in found] == ["system", "user", "assistant", "tool", "user"]
    (call,) = found[2]["tool_calls"]
    assert (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])) == ("a", "f", {"x": 1})
    assert (found[3]["tool_call_id"], found[4]["content"]) == ("a", "go on")


def test_thinking_is_kept_apart():
    thinking = {"type": "thinking", "thinking": "hm", "signature": ""}
    user = {"role": "user", "content": "q"}
    found = chat_messages(None, [user, {"role": "assistant", "content": [thinking, {"type": "text", "text": "a"}]}])
    assert found[1]["reasoning_content"] == "hm"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ("x", "messages"),
        ([], "messages"),
        ([{"role": "robot", "content": "x"}], "messages.0.role"),
        ([{"role": "user", "content": [3]}], "messages.0.content.0"),
        ([{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}],
         "messages.0.content.0.type"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_its_place(messages, param):
    with pytest.raises(InvalidRequest) as caught:
        chat_messages(None, messages)
    assert (caught.value.param or "").startswith(param)
