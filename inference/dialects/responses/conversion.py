"""Convert members of a Responses API request to members of a chat body.

Each function takes the validated members, and raises ``InvalidRequest`` with the member's path in ``param`` for an
unsupported value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inference.dialects import stream_options
from inference.dialects.responses import returned_reasoning
from inference.dialects.responses.namespaces import joined_name, namespace_functions
from inference.errors import InvalidRequest, UnsupportedFeature, shown

NO_BUILT_IN_TOOLS = "there are no built-in tools"
_SUMMARIES = (None, "auto", "concise", "detailed")
_CHOICE = {"type", "name", "namespace"}
_LOGPROBS = "message.output_text.logprobs"
_INCLUDES = (_LOGPROBS, returned_reasoning.INCLUDE)


def check_stream_options(values: Mapping[str, Any]) -> None:
    """Refuse stream options that ``read_include_queue`` refuses."""
    read_include_queue(values)


def read_include_queue(values: Mapping[str, Any]) -> bool:
    """Return ``stream_options.include_queue`` of validated members.

    Raises:
        InvalidRequest: A stream option is unsupported, or doesn't go with ``background``.
    """
    found = stream_options.read_include_queue(values, only_false=("include_obfuscation",))
    if found and values.get("background", False):
        raise InvalidRequest(
            "stream_options.include_queue doesn't go with background: true, whose events are those of its job; leave "
            "one of them out.",
            param="stream_options.include_queue",
        )
    return found


def check_truncation(values: Mapping[str, Any]) -> None:
    """Refuse other values of ``truncation``, and cutting a conversation whose beginning is a saved state.

    Raises:
        InvalidRequest: The value is unknown, or doesn't go with ``state``.
    """
    truncation = values.get("truncation", "disabled")
    if truncation not in ("auto", "disabled"):
        raise InvalidRequest(f"truncation is {shown(truncation)}, it must be auto or disabled.", param="truncation")
    if truncation == "auto" and values.get("state") is not None:
        raise InvalidRequest(
            "truncation: auto doesn't go with a state, whose messages can't be left out; leave one of them out.",
            param="truncation",
        )


def logprobs_in_chat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert ``include`` and ``top_logprobs`` to chat completions' members."""
    include = values.get("include", [])
    for number, name in enumerate(include):
        if name not in _INCLUDES:
            raise UnsupportedFeature(
                f"include.{number} is {shown(name)}; supported are {' and '.join(_INCLUDES)}.",
                param=f"include.{number}",
            )
    if _LOGPROBS in include:
        return {"logprobs": True, "top_logprobs": values.get("top_logprobs", 0)}
    if values.get("top_logprobs", 0):
        raise InvalidRequest(f"top_logprobs needs include: [{_LOGPROBS!r}].", param="top_logprobs")
    return {}


def format_in_chat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert ``text`` to chat completions' ``response_format``."""
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
        # Chat completions have the same members one level deeper.
        inner = {name: value for name, value in shape.items() if name != "type"}
        return {"response_format": {"type": "json_schema", "json_schema": inner}}
    return {"response_format": shape}


def reasoning_in_chat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert ``reasoning`` to chat completions' ``reasoning_effort``."""
    reasoning = values.get("reasoning", {})
    for name, value in reasoning.items():
        # A summary is accepted without being made, because the item's content has the whole reasoning.
        if name not in ("effort", "summary") or (name == "summary" and value not in _SUMMARIES):
            raise UnsupportedFeature(
                f"reasoning.{name[:80]} is {shown(value)}, which is not supported; reasoning comes whole.",
                param=f"reasoning.{name[:80]}",
            )
    effort = reasoning.get("effort")
    return {} if effort is None else {"reasoning_effort": effort}


def tools_in_chat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert ``tools`` and ``tool_choice``, which chat completions have one level deeper."""
    chat: dict[str, Any] = {}
    tools = values.get("tools")
    if tools:
        chat["tools"] = [
            {"type": "function", "function": {name: value for name, value in function.items() if name != "type"}}
            for function in _functions(tools)
        ]
    choice = values.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "function" and {"type", "name"} <= set(choice) <= _CHOICE:
        name = joined_name(choice.get("namespace"), choice["name"])
        chat["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif isinstance(choice, dict):
        raise UnsupportedFeature(
            f"tool_choice is {shown(choice)}; objects name a function: {{'type': 'function', 'name': …}}.",
            param="tool_choice",
        )
    elif choice is not None and (tools or choice != "auto"):
        chat["tool_choice"] = choice
    return chat


def _functions(tools: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the functions, those of namespaces under joined names."""
    for number, tool in enumerate(tools):
        where = f"tools.{number}"
        is_namespace = tool.get("type") == "namespace"
        for place, function in enumerate(namespace_functions(where, tool) if is_namespace else [tool]):
            if function.get("type") != "function":
                path = f"{where}.tools.{place}.type" if is_namespace else f"{where}.type"
                raise UnsupportedFeature(
                    f"{path} is {shown(function.get('type'))}; {NO_BUILT_IN_TOOLS}, only functions.", param=path
                )
            yield function
