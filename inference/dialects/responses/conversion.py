"""Members of a response's request in chat completions' words; each function takes the validated members.

All raise ``InvalidRequest`` for what can't be honoured, with the member's path in ``param``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.dialects.fields import shown
from inference.errors import InvalidRequest, UnsupportedFeature

NO_BUILT_IN_TOOLS = "there are no built-in tools"
_INCLUDES = ("message.output_text.logprobs",)


def check_stream_options(values: Mapping[str, Any]) -> None:
    """Refuse what streams here don't do.

    Raises:
        InvalidRequest: Names the option.
    """
    options = values.get("stream_options")
    if options is None:
        return
    if not values.get("stream", False):
        raise InvalidRequest("stream_options only goes with stream: true.", param="stream_options")
    for name, value in options.items():
        if name != "include_obfuscation" or value not in (None, False):
            raise UnsupportedFeature(
                f"stream_options.{name[:80]} is {shown(value)}; only include_obfuscation: false is supported.",
                param=f"stream_options.{name[:80]}",
            )


def logprobs_in_chat(values: Mapping[str, Any]) -> dict[str, Any]:
    """``include`` and ``top_logprobs``, as chat completions take them."""
    include = values.get("include", [])
    for number, name in enumerate(include):
        if name not in _INCLUDES:
            raise UnsupportedFeature(
                f"include.{number} is {shown(name)}; only {_INCLUDES[0]!r} is supported.", param=f"include.{number}"
            )
    if include:
        return {"logprobs": True, "top_logprobs": values.get("top_logprobs", 0)}
    if values.get("top_logprobs", 0):
        raise InvalidRequest(f"top_logprobs needs include: [{_INCLUDES[0]!r}].", param="top_logprobs")
    return {}


def format_in_chat(values: Mapping[str, Any]) -> dict[str, Any]:
    """``text``, as chat completions' ``response_format``."""
    text = values.get("text", {})
    for name in text:
        if name != "format" and not (name == "verbosity" and text[name] in (None, "medium")):
            raise UnsupportedFeature(
                f"text.{name[:80]} is not supported; say it in the instructions.", param=f"text.{name[:80]}"
            )
    shape = text.get("format")
    if shape is None:
        return {}
    if not isinstance(shape, dict):
        raise InvalidRequest(f"text.format must be an object, got {shown(shape)}.", param="text.format")
    if shape.get("type") == "json_schema":
        # The same members, one level deeper.
        inner = {name: value for name, value in shape.items() if name != "type"}
        return {"response_format": {"type": "json_schema", "json_schema": inner}}
    return {"response_format": shape}


def reasoning_in_chat(values: Mapping[str, Any]) -> dict[str, Any]:
    """``reasoning``, as chat completions' ``reasoning_effort``."""
    reasoning = values.get("reasoning", {})
    for name, value in reasoning.items():
        # "auto" takes the best summary there is, which is none; the whole reasoning is in the item's content.
        if name not in ("effort", "summary") or (name == "summary" and value not in (None, "auto")):
            raise UnsupportedFeature(
                f"reasoning.{name[:80]} is {shown(value)}, which is not supported; reasoning comes whole.",
                param=f"reasoning.{name[:80]}",
            )
    effort = reasoning.get("effort")
    return {} if effort is None else {"reasoning_effort": effort}


def tools_in_chat(values: Mapping[str, Any]) -> dict[str, Any]:
    """``tools`` and ``tool_choice``, one level deeper."""
    chat: dict[str, Any] = {}
    tools = values.get("tools")
    if tools:
        for number, tool in enumerate(tools):
            if tool.get("type") != "function":
                raise UnsupportedFeature(
                    f"tools.{number}.type is {shown(tool.get('type'))}; {NO_BUILT_IN_TOOLS}, only functions.",
                    param=f"tools.{number}.type",
                )
        chat["tools"] = [
            {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
            for tool in tools
        ]
    choice = values.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "function" and set(choice) == {"type", "name"}:
        chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    elif isinstance(choice, dict):
        raise UnsupportedFeature(
            f"tool_choice is {shown(choice)}; objects name a function: {{'type': 'function', 'name': …}}.",
            param="tool_choice",
        )
    elif choice is not None and (tools or choice != "auto"):
        chat["tool_choice"] = choice
    return chat
