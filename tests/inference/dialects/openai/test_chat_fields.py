"""Fields about tools and thinking: what a definition may hold, and choices that go with the tools."""

from __future__ import annotations

import pytest
from rest_framework.serializers import ValidationError

from inference.dialects.openai.chat_fields import ReasoningEffortField, ToolChoiceField, ToolsField, chat_options
from inference.errors import InvalidRequest

FUNCTION = {"name": "f", "description": "does", "parameters": {"type": "object"}, "strict": True}
TOOL = {"type": "function", "function": FUNCTION}


def test_a_definition_is_kept_as_it_is():
    assert ToolsField().to_internal_value([TOOL]) == [TOOL]
    assert ToolChoiceField().to_internal_value("required") == ("required", None)
    assert ToolChoiceField().to_internal_value({"type": "function", "function": {"name": "f"}}) == ("named", "f")
    assert ReasoningEffortField().to_internal_value("low") == "low"


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        (3, "list"),
        ([TOOL] * 129, "129 tools"),
        ([3], "tool 0 must be an object"),
        ([{"type": "web_search"}], "only 'function'"),
        ([{**TOOL, "x": 1}], "unknown member 'x'"),
        ([{"type": "function", "function": {"name": "a b"}}], "name is 'a b'"),
        ([{"type": "function", "function": {"name": "x" * 129}}], "1 to 128 of the characters"),
        ([{"type": "function", "function": {**FUNCTION, "parameters": 3}}], "parameters must be"),
        ([{"type": "function", "function": {**FUNCTION, "strict": 1}}], "strict must be"),
        ([{"type": "function", "function": {**FUNCTION, "parameters": {"x": "y" * (1 << 18)}}}], "bytes of JSON"),
        ([TOOL, TOOL], "twice"),
    ],
)
def test_definitions_that_are_wrong_are_named(tools, words):
    with pytest.raises(ValidationError, match=words):
        ToolsField().to_internal_value(tools)


def test_claude_code_joins_the_names_of_a_server_and_its_tool():
    name = "mcp__" + "a" * 60 + "__" + "b" * 61
    assert ToolsField().to_internal_value([{"type": "function", "function": {"name": name}}])


@pytest.mark.parametrize("choice", ["maybe", 3, {"type": "function"}, {"type": "function", "function": {"name": 3}}])
def test_choices_that_are_wrong(choice):
    with pytest.raises(ValidationError):
        ToolChoiceField().to_internal_value(choice)
    with pytest.raises(ValidationError):
        ReasoningEffortField().to_internal_value(choice)


def test_a_choice_goes_with_the_tools():
    assert chat_options({}).tool_choice == "none"
    assert chat_options({"tools": [TOOL]}).tool_choice == "auto"
    for tools in ({}, {"tools": []}):  # of clients that write both members always, as llama.cpp and vLLM take them
        assert chat_options({**tools, "tool_choice": ("auto", None)}) == chat_options({})
    named = chat_options({"tools": [TOOL], "tool_choice": ("named", "f"), "parallel_tool_calls": False})
    assert (named.tool_choice, named.tool_name, named.parallel) == ("named", "f", False)
    for values in ({"tool_choice": ("required", None)}, {"tools": [TOOL], "tool_choice": ("named", "g")}):
        with pytest.raises(InvalidRequest) as caught:
            chat_options(values)
        assert caught.value.param == "tool_choice"
