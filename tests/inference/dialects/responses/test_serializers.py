"""Bodies of /v1/responses: what is wrong is named by its field."""

from __future__ import annotations

import pytest

from inference.dialects.responses.serializers import ResponseRequestSerializer
from inference.errors import InvalidRequest


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 7}, "input"),
        ({"input": []}, "input"),
        ({"input": [7]}, "input.0"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.type"),
        ({"input": [{"role": "king", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"input": [{"role": "user", "content": "x", "mood": "good"}]}, "input.0.mood"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "input.0.content.0.type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input.0.call_id"),
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_p": 0}, "top_p"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"include": ["reasoning.encrypted_content"]}, "include.0"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"truncation": "later"}, "truncation"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"frobnicate": 1}, "frobnicate"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_errors_name_the_field(members, param):
    body = {"model": "tiny", "input": "Hi", **members}
    with pytest.raises(InvalidRequest) as caught:
        ResponseRequestSerializer.shared().read(body).plan()
    assert caught.value.param == param
    assert param.split(".")[-1] in caught.value.message or param in caught.value.message
