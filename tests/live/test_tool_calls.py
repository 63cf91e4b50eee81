"""Forced tool calls on the real platform: the demo model has never seen one, the grammar makes it write them."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest

from tests.live.conftest import LiveServer

pytestmark = pytest.mark.live

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 1, "maxLength": 8}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
REQUEST: Any = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Is it warm?"}],
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}],
    "parallel_tool_calls": False,
    "max_tokens": 200,
    "temperature": 1.0,
    "seed": 3,
}


@pytest.fixture
def client(server: LiveServer):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as found:
        yield found


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_forced_call_is_valid_whole_and_streamed(client, choice):
    answer = client.chat.completions.create(**REQUEST, tool_choice=choice).choices[0]
    assert answer.finish_reason == "tool_calls" and answer.message.content is None
    (call,) = answer.message.tool_calls
    assert call.function.name == "weather"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
    chunks = list(client.chat.completions.create(**REQUEST, tool_choice=choice, stream=True))
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert deltas[0].function.name == "weather"
    assert "".join(delta.function.arguments or "" for delta in deltas) == call.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_the_conversation_goes_on_behind_a_call(client):
    message = client.chat.completions.create(**REQUEST, tool_choice="required").choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "12 °C"}
    messages = [*REQUEST["messages"], message.model_dump(), result]
    answer = client.chat.completions.create(**{**REQUEST, "messages": messages, "max_tokens": 8})
    assert answer.choices[0].finish_reason in ("stop", "length")
