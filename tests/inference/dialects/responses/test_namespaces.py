"""Functions in namespaces, as Codex groups the tools of an MCP server."""

from __future__ import annotations

import pytest

from inference.dialects.responses.items import chat_messages, items_read
from inference.dialects.responses.namespaces import called_members, joined_name, namespace_functions
from inference.dialects.responses.serializers import ResponseRequestSerializer
from inference.errors import InvalidRequest

FUNCTION = {"type": "function", "name": "search", "description": "Searches.", "strict": False,
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}  # fmt: skip
TOOLS = [
    {"type": "function", "name": "exec_command", "description": "Runs.", "strict": False, "parameters": {}},
    {"type": "namespace", "name": "mcp__wiki", "description": "A wiki.",
     "tools": [FUNCTION, {**FUNCTION, "name": "read", "description": "Reads."}]},
]  # fmt: skip
BODY = {"model": "tiny", "input": "Hi", "tools": TOOLS}


def test_codex_gets_calls_of_namespaces_apart():
    plan = ResponseRequestSerializer.shared().read(BODY).plan()
    assert plan.chat is not None
    offered = {tool["function"]["name"]: tool["function"]["description"] for tool in plan.chat.tools}
    assert offered == {
        "exec_command": "Runs.",
        "mcp__wiki__search": "A wiki.\n\nSearches.",
        "mcp__wiki__read": "Reads.",
    }
    assert called_members(TOOLS, "mcp__wiki__read") == {"name": "read", "namespace": "mcp__wiki"}
    assert called_members(TOOLS, "exec_command") == {"name": "exec_command"}
    assert called_members(TOOLS, "unknown") == {"name": "unknown"}


def test_a_call_that_codex_sends_back_has_the_name_that_the_model_knows():
    call = {"type": "function_call", "call_id": "c", "name": "read", "namespace": "mcp__wiki", "arguments": "{}"}
    (item,) = items_read([call])
    assert (item["name"], item["namespace"]) == ("read", "mcp__wiki")
    (message,) = chat_messages(None, [item])
    assert message["tool_calls"][0]["function"]["name"] == "mcp__wiki__read" == joined_name("mcp__wiki", "read")


def test_a_function_of_a_namespace_can_be_chosen():
    choice = {"type": "function", "namespace": "mcp__wiki", "name": "read"}
    plan = ResponseRequestSerializer.shared().read({**BODY, "tool_choice": choice}).plan()
    assert plan.chat is not None
    assert (plan.chat.tool_choice, plan.chat.tool_name) == ("named", "mcp__wiki__read")


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"tools": []}, "tools.0.name"),
        ({"name": "n"}, "tools.0.tools"),
        ({"name": "n", "tools": [3]}, "tools.0.tools"),
        ({"name": "n", "tools": [{"type": "function"}]}, "tools.0.tools.0.name"),
        ({"name": "n", "tools": [{"type": "custom", "name": "patch"}]}, "tools.0.tools.0.type"),
        ({"name": "n", "tools": [FUNCTION], "description": 3}, "tools.0.description"),
        ({"name": "n", "tools": [FUNCTION], "mood": 3}, "tools.0.mood"),
    ],
)
def test_namespaces_that_are_wrong_are_named_by_their_place(tool, param):
    with pytest.raises(InvalidRequest) as caught:
        ResponseRequestSerializer.shared().read({**BODY, "tools": [{"type": "namespace", **tool}]})
    assert caught.value.param == param


def test_equal_names_are_refused():
    joined = {**FUNCTION, "name": "mcp__wiki__search"}
    with pytest.raises(InvalidRequest, match="twice"):
        ResponseRequestSerializer.shared().read({**BODY, "tools": [*TOOLS, joined]}).plan()
    assert namespace_functions("tools.0", {"name": "n", "tools": []}) == []
