"""From another API's body to a chat, and from chat chunks to pieces: names in errors, order of what a chunk says."""

from __future__ import annotations

import pytest

from inference.dialects.chat_bridge import (
    CallPiece,
    EndPiece,
    ReasoningPiece,
    TextPiece,
    chat_plan,
    pieces,
    translate_error,
)
from inference.errors import InvalidRequest, QueueFull

NAMES = {"max_tokens": "max_output_tokens", "response_format": "text.format", "messages": "input"}


def test_a_chat_plan_streams_and_errors_have_the_other_api_s_names():
    assert chat_plan({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}, NAMES).stream
    with pytest.raises(InvalidRequest) as caught:
        chat_plan({"model": "m", "messages": 3}, NAMES)
    assert caught.value.param == "input"
    assert "messages" not in caught.value.message


def test_fields_are_renamed_in_param_and_message():
    found = translate_error(InvalidRequest("max_tokens is 0, max_tokens_x isn't.", param="max_tokens"), NAMES)
    assert (found.message, found.param) == ("max_output_tokens is 0, max_tokens_x isn't.", "max_output_tokens")
    inner = translate_error(InvalidRequest("bad", param="response_format.schema"), NAMES)
    assert inner.param == "text.format.schema"
    for error in (InvalidRequest("x"), InvalidRequest("x", param="seed"), QueueFull("full")):
        assert translate_error(error, NAMES) is error


def test_a_chunk_says_thinking_text_calls_and_the_end_in_this_order():
    call = {"index": 1, "id": "c", "function": {"name": "f", "arguments": "{"}}
    delta = {"content": "a", "reasoning_content": "hm", "tool_calls": [call]}
    chunk = {"choices": [{"delta": delta, "finish_reason": "stop", "stop_reason": "END"}]}
    assert list(pieces(chunk)) == [
        ReasoningPiece("hm"), TextPiece("a"), CallPiece(1, "c", "f", "{"), EndPiece("stop", "END"),
    ]  # fmt: skip
    assert list(pieces({"choices": [{"delta": {}, "finish_reason": None}]})) == []
    scored = {"choices": [{"delta": {}, "logprobs": {"content": [{"token": "x"}]}, "finish_reason": None}]}
    assert list(pieces(scored)) == [TextPiece("", ({"token": "x"},))]
