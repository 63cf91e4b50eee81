"""Whatever JSON comes in place of any part of a request to /v1/responses or /v1/messages: read, or refused by name."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.dialects.anthropic.serializers import CountTokensRequestSerializer, MessageRequestSerializer
from inference.dialects.responses.serializers import InputTokensRequestSerializer, ResponseRequestSerializer
from inference.errors import BlazrError

SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "string"}}}
RESPONSE: Any = {
    "model": "m",
    "input": [
        {"role": "user", "content": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "y", "annotations": []}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "z"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "r"}]},
    ],
    "tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "metadata": {"a": "b"},
    "stop": ["x"],
    "logit_bias": {"1": 2},
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "chat_template_kwargs": {"enable_thinking": True},
}
MESSAGE: Any = {
    "model": "m",
    "max_tokens": 5,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "z", "signature": ""},
            {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "r"}], "is_error": True}]},
    ],
    "tools": [{"name": "f", "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "adaptive"},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "low"},
    "metadata": {"user_id": "u"},
    "stop_sequences": ["x"],
}  # fmt: skip

NAMES = st.text(max_size=8) | st.sampled_from(["type", "role", "content", "name", "text"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=8)
    | st.sampled_from(["auto", "user", "text", "function", "message", "tool", "json_schema", "type", "\0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of everything inside of ``value``."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of ``value`` with ``new`` at ``path``."""
    found = copy.deepcopy(value)
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return found


def check(read: Any, body: Any) -> None:
    """Reading ``body`` gives something that can be sent, or an error that says where."""
    try:
        plan = read(body)
    except BlazrError as error:
        assert error.http_status == 400
        assert error.message
        return
    orjson.dumps(plan.to_dict())


def plan_of_response(body: Any) -> Any:
    return ResponseRequestSerializer.shared().read(body).plan()


def plan_of_message(body: Any) -> Any:
    return MessageRequestSerializer.shared().plan(body)[0]


@pytest.mark.parametrize(("read", "body"), [(plan_of_response, RESPONSE), (plan_of_message, MESSAGE)])
def test_the_bodies_themselves_are_read(read, body):
    read(body)


@settings(max_examples=400, deadline=None)
@given(path=st.sampled_from(sorted(places(RESPONSE), key=str)), new=JSON)
def test_responses(path, new):
    check(plan_of_response, replaced(RESPONSE, path, new))


@settings(max_examples=400, deadline=None)
@given(path=st.sampled_from(sorted(places(MESSAGE), key=str)), new=JSON)
def test_messages(path, new):
    check(plan_of_message, replaced(MESSAGE, path, new))


@settings(max_examples=100, deadline=None)
@given(body=JSON)
def test_bodies_of_any_kind(body):
    check(plan_of_response, body)
    check(plan_of_message, body)
    check(lambda value: InputTokensRequestSerializer.shared().read(value).plan(), body)
    check(lambda value: CountTokensRequestSerializer.shared().chat_body(value), body)
