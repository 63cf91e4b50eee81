"""ChatOptions: the tools that are offered, and which parameters aren't texts."""

from __future__ import annotations

import json

import pytest

from inference.values.chat_options import ChatOptions


def tool(name: str, **properties: object) -> dict:
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


def test_no_tool_is_offered_where_none_may_be_called() -> None:
    options = ChatOptions(tools=(tool("a"), tool("b")))
    assert options.offered == () and options.tool_names == ()
    options = ChatOptions(tools=(tool("a"), tool("b")), tool_choice="auto")
    assert options.tool_names == ("a", "b")


@pytest.mark.parametrize(
    ("schema", "is_json"),
    [
        ({"type": "string"}, False),
        ({"type": "integer"}, True),
        ({"type": ["null", "string"]}, False),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, False),
        ({"oneOf": [{"type": "integer"}]}, True),
        ({"enum": [1, 2]}, True),
        ({"enum": ["x", 2]}, False),
        ({"$ref": "#/x"}, True),
        ({}, False),
        (True, False),
    ],
)
def test_parameters_that_take_no_text(schema: object, is_json: bool) -> None:
    options = ChatOptions(tools=(tool("f", p=schema),), tool_choice="auto")
    assert options.json_parameters == (("f.p",) if is_json else ())


def test_json_round_trip() -> None:
    options = ChatOptions((tool("f"),), "named", "f", parallel=False, reasoning_effort="low")
    assert ChatOptions.from_dict(json.loads(json.dumps(options.to_dict()))) == options
    assert ChatOptions.from_dict({}) == ChatOptions()
