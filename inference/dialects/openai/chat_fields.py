"""Define the fields of chat requests for tools and thinking.

https://platform.openai.com/docs/api-reference/chat/create#chat-create-tools; ``include_reasoning`` is vLLM's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast, get_args

import orjson
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from inference.dialects.fields import RequestField
from inference.dialects.openai.message_fields import checked_mark
from inference.errors import InvalidRequest, shown
from inference.values.chat_options import ChatOptions, ReasoningEffort

MAX_TOOLS = 128
MAX_TOOLS_BYTES = 1 << 21
"""Maximum size of all tools together: they are written into the prompt, and for forced calls into a grammar too."""
MAX_NAME_CHARS = 128
"""OpenAI's limit is 64, that of Anthropic's API 128; clients join a server's name and a tool's to one."""
MAX_DESCRIPTION_CHARS = 1 << 16
MAX_SCHEMA_BYTES = 1 << 18
"""Maximum size of the JSON schema of one function's parameters."""
EFFORTS: tuple[str, ...] = get_args(ReasoningEffort)

_NAME = re.compile(rf"[a-zA-Z0-9_-]{{1,{MAX_NAME_CHARS}}}")
_FUNCTION_SCHEMA = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "pattern": f"^[a-zA-Z0-9_-]{{1,{MAX_NAME_CHARS}}}$"},
        "description": {"type": "string", "maxLength": MAX_DESCRIPTION_CHARS},
        "parameters": {"type": "object", "additionalProperties": {}},
        "strict": {"type": "boolean", "nullable": True},
    },
    "additionalProperties": False,
}


@extend_schema_field(
    {
        "type": "array",
        "maxItems": MAX_TOOLS,
        "items": {
            "type": "object",
            "required": ["type", "function"],
            "properties": {"type": {"type": "string", "enum": ["function"]}, "function": _FUNCTION_SCHEMA},
            "additionalProperties": False,
        },
    }
)
class ToolsField(RequestField):
    """Definitions of functions."""

    def to_internal_value(self, data: Any) -> list[dict[str, Any]]:
        if not isinstance(data, list):
            raise serializers.ValidationError(f"must be a list of tools, got {shown(data)}.")
        if len(data) > MAX_TOOLS:
            raise serializers.ValidationError(f"has {len(data)} tools, at most {MAX_TOOLS} are allowed.")
        tools = []
        num_bytes = 0
        for number, item in enumerate(data):
            tools.append(_tool(f"tool {number}", item))
            num_bytes += len(orjson.dumps(item))
            if num_bytes > MAX_TOOLS_BYTES:
                raise serializers.ValidationError(
                    f"has more than {MAX_TOOLS_BYTES} bytes of JSON in its first {number + 1} tools; offer fewer, or "
                    "describe them in fewer words."
                )
        names = [tool["function"]["name"] for tool in tools]
        for name in names:
            if names.count(name) > 1:
                raise serializers.ValidationError(f"has the function {name!r} twice; give each a name of its own.")
        return tools


def _tool(where: str, item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise serializers.ValidationError(f"{where} must be an object, got {shown(item)}.")
    if item.get("type") != "function":
        raise serializers.ValidationError(
            f"{where} is of the type {shown(item.get('type'))}; only 'function' is supported."
        )
    _check_members(where, item, ("type", "function", "cache_control"))
    function = item.get("function")
    if not isinstance(function, dict):
        raise serializers.ValidationError(f"{where}: function must be an object, got {shown(function)}.")
    _check_members(f"{where}: function", function, ("name", "description", "parameters", "strict"))
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise serializers.ValidationError(
            f"{where}: the name is {shown(name)}; it must have 1 to {MAX_NAME_CHARS} of the characters a-z, A-Z, "
            "0-9, _ and -."
        )
    checked: dict[str, Any] = {"name": name}
    description, parameters, strict = (function.get(key) for key in ("description", "parameters", "strict"))
    if description is not None:
        if not isinstance(description, str) or len(description) > MAX_DESCRIPTION_CHARS:
            raise serializers.ValidationError(
                f"{where}: description must be a string of at most {MAX_DESCRIPTION_CHARS} characters."
            )
        checked["description"] = description
    if parameters is not None:
        if not isinstance(parameters, dict):
            raise serializers.ValidationError(f"{where}: parameters must be a JSON schema, got {shown(parameters)}.")
        size = len(orjson.dumps(parameters))
        if size > MAX_SCHEMA_BYTES:
            raise serializers.ValidationError(
                f"{where}: parameters has {size} bytes of JSON, at most {MAX_SCHEMA_BYTES} are allowed."
            )
        checked["parameters"] = parameters
    if strict is not None:
        if not isinstance(strict, bool):
            raise serializers.ValidationError(f"{where}: strict must be true or false, got {shown(strict)}.")
        checked["strict"] = strict
    mark = item.get("cache_control")
    marked = {} if mark is None else {"cache_control": checked_mark(where, mark)}
    return {"type": "function", "function": checked, **marked}


def _check_members(where: str, item: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in item:
        if name not in known:
            raise serializers.ValidationError(f"{where} has the unknown member {name[:80]!r}; remove it.")


@extend_schema_field(
    {
        "oneOf": [
            {"type": "string", "enum": ["none", "auto", "required"]},
            {
                "type": "object",
                "required": ["type", "function"],
                "properties": {
                    "type": {"type": "string", "enum": ["function"]},
                    "function": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": {"type": "string"}},
                        "additionalProperties": False,
                    },
                },
                "additionalProperties": False,
            },
        ]
    }
)
class ToolChoiceField(RequestField):
    """A mode as a string, or one function; the value is (choice, name)."""

    def to_internal_value(self, data: Any) -> tuple[str, str | None]:
        if isinstance(data, str):
            if data not in ("none", "auto", "required"):
                raise serializers.ValidationError(
                    f"is {shown(data)}; it must be 'none', 'auto', 'required' or "
                    "{'type': 'function', 'function': {'name': …}}."
                )
            return data, None
        function = data.get("function") if isinstance(data, dict) and data.get("type") == "function" else None
        if not isinstance(function, dict) or set(data) != {"type", "function"} or set(function) != {"name"}:
            raise serializers.ValidationError(
                f"must be 'none', 'auto', 'required' or {{'type': 'function', 'function': {{'name': …}}}}, "
                f"got {shown(data)}."
            )
        if not isinstance(function["name"], str):
            raise serializers.ValidationError(f"must name a function, got {shown(function['name'])}.")
        return "named", function["name"]


@extend_schema_field({"type": "string", "enum": list(EFFORTS)})
class ReasoningEffortField(RequestField):
    """The effort of the model's reasoning."""

    def to_internal_value(self, data: Any) -> str:
        if data not in EFFORTS:
            raise serializers.ValidationError(f"is {shown(data)}; it must be one of {', '.join(EFFORTS)}.")
        return str(data)


def chat_options(values: Mapping[str, Any]) -> ChatOptions:
    """Return the options of tools and thinking, from the validated members of a request.

    Raises:
        InvalidRequest: The choice doesn't go with the tools.
    """
    tools = values.get("tools") or []
    choice, name = values.get("tool_choice", ("auto", None))
    if choice == "auto" and not tools:
        choice = "none"
    if choice != "none" and not tools:
        raise InvalidRequest("tool_choice needs tools; give some, or leave tool_choice out.", param="tool_choice")
    names = [tool["function"]["name"] for tool in tools]
    if name is not None and name not in names:
        raise InvalidRequest(
            f"tool_choice names the function {name[:80]!r}, which is none of the tools: {', '.join(names)[:300]}.",
            param="tool_choice",
        )
    return ChatOptions(
        tools=tuple(tools),
        tool_choice=choice,
        tool_name=name,
        parallel=values.get("parallel_tool_calls", True),
        include_reasoning=values.get("include_reasoning", True),
        reasoning_effort=cast("ReasoningEffort | None", values.get("reasoning_effort")),
    )
