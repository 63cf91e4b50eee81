"""Conversations with tools as templates get them."""

from __future__ import annotations

import json

import pytest

from inference.errors import UnsupportedFeature
from inference.text.tool_calls.prompting import in_hermes_form, text_of, with_tools
from inference.values.chat_options import ChatOptions

TOOL = {"type": "function", "function": {"strict": True, "parameters": {}, "description": "d", "name": "f"}}
SHOWN = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
OPTIONS = ChatOptions(tools=(TOOL,), tool_choice="auto")
CONVERSATION = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "1"},
    {"role": "tool", "tool_call_id": "call_2", "content": "2"},
]


def test_a_template_with_tools_gets_the_definitions_without_strict() -> None:
    prompt = with_tools({"messages": CONVERSATION}, OPTIONS, "{{ tools }}", "hermes")
    assert prompt["template_kwargs"] == {"tools": [SHOWN]}
    assert list(prompt["template_kwargs"]["tools"][0]["function"]) == ["name", "description", "parameters"]
    assert prompt["messages"] is CONVERSATION


def test_a_template_without_tools_gets_the_hermes_form() -> None:
    messages = with_tools({"messages": CONVERSATION}, OPTIONS, "plain", "hermes")["messages"]
    assert [item["role"] for item in messages] == ["system", "user", "assistant", "user"]
    assert json.dumps(SHOWN) in messages[0]["content"]
    assert messages[2] == {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
    }
    assert messages[3]["content"] == ("<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>")


def test_a_system_message_stays_before_the_definitions() -> None:
    messages = in_hermes_form([{"role": "system", "content": "Be short."}], [SHOWN], ("<a>", "</a>"))
    assert len(messages) == 1
    assert messages[0]["content"].startswith("Be short.\n\n")
    assert "<a>" in messages[0]["content"]


def test_mistral_gets_ids_of_nine_characters_that_stay_the_same() -> None:
    messages = with_tools({"messages": CONVERSATION}, OPTIONS, "{{ tools }}", "mistral")["messages"]
    short = messages[1]["tool_calls"][0]["id"]
    assert len(short) == 9 and short.isalnum()
    assert messages[2]["tool_call_id"] == short != messages[3]["tool_call_id"]
    assert CONVERSATION[2]["tool_call_id"] == "call_1"


def test_kimi_gets_ids_of_the_function_and_the_number_of_the_call() -> None:
    again = [{"role": "user", "content": "Once more"}, *CONVERSATION[1:]]
    messages = with_tools({"messages": [*CONVERSATION, *again]}, OPTIONS, "{{ tools }}", "kimi")["messages"]
    first, second = (message["tool_calls"][0]["id"] for message in messages if "tool_calls" in message)
    assert (first, second) == ("functions.f:0", "functions.f:1")
    results = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert results == [first, "call_2", second, "call_2"]  # of one that the conversation lacks, the client's own
    assert CONVERSATION[1]["tool_calls"][0]["id"] == "call_1"


@pytest.mark.parametrize(
    ("template", "effort", "kwargs"),
    [
        ("{{ reasoning_effort }}", "low", {"reasoning_effort": "low"}),
        ("{{ enable_thinking }}", "none", {"enable_thinking": False}),
        ("{{ thinking }}", "high", {"thinking": True}),
    ],
)
def test_an_effort_becomes_the_variables_of_the_template(template: str, effort: str, kwargs: dict) -> None:
    prompt = with_tools({"messages": []}, ChatOptions(reasoning_effort=effort), template, "hermes")
    assert prompt["template_kwargs"] == kwargs


def test_variables_of_the_client_win_over_the_effort() -> None:
    prompt = {"messages": [], "template_kwargs": {"enable_thinking": True}}
    changed = with_tools(prompt, ChatOptions(reasoning_effort="none"), "{{ enable_thinking }}", "hermes")
    assert changed["template_kwargs"] == {"enable_thinking": True}


def test_an_effort_that_no_variable_takes_is_refused() -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        with_tools({"messages": []}, ChatOptions(reasoning_effort="low"), "plain", "hermes")
    assert caught.value.param == "reasoning_effort"


def test_text_of_parts_is_joined() -> None:
    assert text_of({"content": [{"text": "a"}, {"text": "b"}]}) == "a\nb"
    assert text_of({"content": None}) == ""
