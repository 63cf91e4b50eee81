"""Translate bodies of POST /v1/messages and /v1/messages/count_tokens into chat bodies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema_field

from inference.dialects.anthropic.messages import chat_messages, mark_of
from inference.dialects.chat_bridge import chat_plan
from inference.dialects.fields import (
    JSONObjectField,
    RequestField,
    StrictCharField,
    StrictIntegerField,
    StrictListField,
    optional,
    optional_boolean,
    optional_integer,
    optional_number,
    optional_state,
)
from inference.dialects.members import check_members, unsupported
from inference.dialects.openai.message_fields import MAX_MESSAGES
from inference.dialects.refusals import Refused
from inference.dialects.stream_options import INCLUDE_QUEUE_HELP, read_include_queue
from inference.dialects.strict_serializer import StrictSerializer
from inference.errors import InvalidRequest, UnsupportedFeature, shown
from inference.values import sampling_params as limits
from inference.values.plan import GenerationPlan

REFUSED_IN_MESSAGES: Mapping[str, Refused] = {
    "container": Refused("no code is run here"),
    "mcp_servers": Refused("the server makes no outbound requests", ([],)),
    "inference_geo": Refused("the server is where it is"),
    "speed": Refused("there is one speed", ("standard",)),
    "stop": Refused("its name here is stop_sequences"),
    "max_completion_tokens": Refused("its name here is max_tokens"),
    "response_format": Refused("its name here is output_config.format"),
    "output_format": Refused("its name is output_config.format by now"),
    "reasoning_effort": Refused("its name here is output_config.effort"),
    "n": Refused("a message has one answer; send several requests", (1,)),
}

CHAT_NAMES: Mapping[str, str] = {
    "stop": "stop_sequences",
    "max_completion_tokens": "max_tokens",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "chat_template_kwargs": "thinking",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
"""Map of chat completions' field names to Anthropic's."""

_TOOL_MEMBERS = {"name", "description", "input_schema", "type", "strict", "cache_control"}
_NEUTRAL_TOOL_MEMBERS = {
    "eager_input_streaming": (True, False),  # the input always comes as it is generated
    "defer_loading": (False,),
    "allowed_callers": (["direct"],),
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_THINKING_MEMBERS: Mapping[str, set[str]] = {
    "adaptive": {"type", "display"},
    "enabled": {"type", "display", "budget_tokens"},
    "disabled": {"type"},
}
_EDITS_OF_NOTHING = tuple({"type": "clear_thinking_20251015", "keep": keep} for keep in ("all", {"type": "all"}))
"""Edits that leave the conversation as it is: all thinking is kept, which is what happens anyway."""


@extend_schema_field(
    {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_MESSAGES,
        "items": {
            "type": "object",
            "required": ["role", "content"],
            "properties": {
                "role": {"type": "string", "enum": ["user", "assistant", "system"]},
                "content": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
            },
        },
    }
)
class AnthropicMessagesField(RequestField):
    """A conversation; ``chat_messages`` validates it."""

    def to_internal_value(self, data: Any) -> Any:
        return data


@extend_schema_field({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]})
class SystemField(AnthropicMessagesField):
    """The system prompt: a text or text blocks."""


@extend_schema_field({"type": "array", "items": {"type": "object", "additionalProperties": {}}})
class AnthropicToolsField(AnthropicMessagesField):
    """Definitions of tools; ``_tools`` validates them."""


class CountTokensRequestSerializer(StrictSerializer):
    """Body of POST /v1/messages/count_tokens: the fields that affect the prompt."""

    takes_hints = True
    refused: ClassVar[Mapping[str, Refused]] = REFUSED_IN_MESSAGES

    model = StrictCharField(max_length=256, help_text="A name from GET /v1/models.")
    messages = AnthropicMessagesField(help_text="Blocks of text, tool_use, tool_result and thinking.")
    system = optional(SystemField, "A text or blocks of text.")
    tools = optional(AnthropicToolsField, "Tools the model may call.")
    tool_choice = optional(JSONObjectField, "type: auto, any, tool (with name), none.")
    thinking = optional(JSONObjectField, "type: adaptive, enabled or disabled, for templates with enable_thinking.")
    output_config = optional(JSONObjectField, "format (json_schema), effort.")
    cache_control = optional(JSONObjectField, "type: ephemeral, ttl: 5m or 1h. A mark at the end of the last message.")
    context_management = optional(JSONObjectField, "edits: only clear_thinking_20251015 with keep: all.")

    def chat_body(self, body: object) -> dict[str, Any]:
        """Return the chat body for ``body``, without sampling parameters.

        Raises:
            InvalidRequest: With the field in ``param``.
        """
        return self._chat_body(self.parse(body))

    def _chat_body(self, values: Mapping[str, Any]) -> dict[str, Any]:
        _check_edits(values.get("context_management", {}))
        messages = chat_messages(values.get("system"), values["messages"])
        mark = values.get("cache_control")
        if mark is not None:
            messages[-1].setdefault("cache_control", mark_of(mark, "cache_control"))
        chat: dict[str, Any] = {"model": values["model"], "messages": messages}
        if messages[-1]["role"] == "assistant":
            # A last message of the assistant is a prefill: the output continues its text.
            chat |= {"continue_final_message": True, "add_generation_prompt": False}
        chat |= _tools(values.get("tools")) | _tool_choice(values) | _display(values) | _output_config(values)
        variables = _effort_variables(values) | _thinking(values)
        return chat | ({"chat_template_kwargs": variables} if variables else {})


class MessageRequestSerializer(CountTokensRequestSerializer):
    """Body of POST /v1/messages."""

    max_tokens = StrictIntegerField(min_value=1, max_value=limits.MAX_TOKENS_LIMIT, help_text="Limit of the output.")
    metadata = optional(JSONObjectField, "user_id, a hint.")
    diagnostics = optional(JSONObjectField, "previous_message_id, a hint; no diagnostics come back.")
    service_tier = optional(StrictCharField, "auto or standard_only: there is one.")
    stop_sequences = optional(
        StrictListField,
        "At most 16 texts; the output ends before one.",
        child=StrictCharField(max_length=limits.MAX_STOP_STRING_CHARS),
        max_length=limits.MAX_STOP_STRINGS,
    )
    stream = optional_boolean("Send server-sent events. Default: false.")
    temperature = optional_number(0, 2, "0: greedy.")
    top_k = optional_integer(0, limits.MAX_TOKENS_LIMIT, "Keep the k most probable tokens. Default: 0: off.")
    top_p = optional_number(0, 1, "Above 0.")
    state = optional_state()
    stream_options = optional(JSONObjectField, f"Ours. {INCLUDE_QUEUE_HELP}")

    def plan(self, body: object) -> tuple[GenerationPlan, bool]:
        """Return the plan, and whether the response is streamed.

        Raises:
            InvalidRequest: With the field in ``param``.
        """
        values = self.parse(body)
        _check_hints(values)
        chat = self._chat_body(values) | {"max_completion_tokens": values["max_tokens"]}
        for name in ("temperature", "top_k", "top_p", "state"):
            if name in values:
                chat[name] = values[name]
        if values.get("stop_sequences"):
            chat["stop"] = values["stop_sequences"]
        plan = replace(chat_plan(chat, CHAT_NAMES), include_queue=read_include_queue(values))
        return plan, values.get("stream", False)


def _check_hints(values: Mapping[str, Any]) -> None:
    for name, value in values.get("metadata", {}).items():
        if name != "user_id" or not (value is None or (isinstance(value, str) and len(value) <= 512)):
            raise InvalidRequest(
                f"metadata has the member {shown(name)}: {shown(value)}; it holds user_id, a string of at most 512 "
                "characters.",
                param="metadata",
            )
    for name, value in values.get("diagnostics", {}).items():
        if name != "previous_message_id" or not (value is None or isinstance(value, str)):
            raise InvalidRequest(
                f"diagnostics has the member {shown(name)}: {shown(value)}; it holds previous_message_id, a string.",
                param="diagnostics",
            )
    tier = values.get("service_tier", "auto")
    if tier not in ("auto", "standard_only"):
        raise UnsupportedFeature(
            f"service_tier is {shown(tier)}; there is one tier, which is what auto and standard_only choose.",
            param="service_tier",
        )


def _check_edits(management: Mapping[str, Any]) -> None:
    check_members("context_management", management, {"edits"})
    edits = management.get("edits") or []
    if not isinstance(edits, list):
        raise InvalidRequest(
            f"context_management.edits must be a list, got {shown(edits)}.", param="context_management.edits"
        )
    for number, edit in enumerate(edits):
        if edit not in _EDITS_OF_NOTHING:
            raise UnsupportedFeature(
                f"context_management.edits.{number} is {shown(edit)}; conversations aren't edited, only "
                "clear_thinking_20251015 with keep: all is taken.",
                param=f"context_management.edits.{number}",
            )


def _tools(tools: Any) -> dict[str, Any]:
    if tools is None or tools == []:
        return {}
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise InvalidRequest(f"tools must be a list of objects, got {shown(tools)}.", param="tools")
    found = []
    for number, tool in enumerate(tools):
        where = f"tools.{number}"
        if tool.get("type", "custom") not in (None, "custom"):
            raise UnsupportedFeature(
                f"{where}.type is {shown(tool['type'])}; there are no built-in tools.", param=f"{where}.type"
            )
        check_members(where, (name for name, value in tool.items() if not _has_no_effect(name, value)), _TOOL_MEMBERS)
        if not isinstance(tool.get("input_schema"), dict):
            raise InvalidRequest(
                f"{where}.input_schema must be an object, got {shown(tool.get('input_schema'))}.",
                param=f"{where}.input_schema",
            )
        function = {"name": tool.get("name"), "parameters": tool["input_schema"]}
        function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
        mark = tool.get("cache_control")
        marked = {} if mark is None else {"cache_control": mark_of(mark, f"{where}.cache_control")}
        found.append({"type": "function", "function": function, **marked})
    return {"tools": found}


def _has_no_effect(name: str, value: Any) -> bool:
    return value is None or value in _NEUTRAL_TOOL_MEMBERS.get(name, ())


def _tool_choice(values: Mapping[str, Any]) -> dict[str, Any]:
    choice = values.get("tool_choice")
    if choice is None:
        return {}
    kind = choice.get("type")
    members = {"type", "disable_parallel_tool_use"} | ({"name"} if kind == "tool" else set())
    if not isinstance(kind, str) or (kind not in _CHOICES and kind != "tool") or set(choice) - members:
        raise InvalidRequest(
            f"tool_choice is {shown(choice)}; its type is auto, any, tool (with name) or none, beside it may stand "
            "disable_parallel_tool_use.",
            param="tool_choice",
        )
    if kind == "auto" and not values.get("tools"):
        return {}
    chat: dict[str, Any] = {}
    if choice.get("disable_parallel_tool_use") is not None:
        parallel = choice["disable_parallel_tool_use"]
        if not isinstance(parallel, bool):
            raise InvalidRequest(
                f"tool_choice.disable_parallel_tool_use must be true or false, got {shown(parallel)}.",
                param="tool_choice.disable_parallel_tool_use",
            )
        chat["parallel_tool_calls"] = not parallel
    if kind == "tool":
        return chat | {"tool_choice": {"type": "function", "function": {"name": choice.get("name")}}}
    return chat | {"tool_choice": _CHOICES[kind]}


def _effort_variables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return variables of templates for the default effort of Anthropic's API; a template without them ignores them."""
    if values.get("output_config", {}).get("effort") != "high":
        return {}
    is_off = values.get("thinking", {}).get("type") == "disabled"
    return {"reasoning_effort": "high"} | ({} if is_off else {"enable_thinking": True, "thinking": True})


def _thinking(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template's variable for thinking.

    A budget has no effect: https://platform.claude.com/docs/en/build-with-claude/extended-thinking calls it a target,
    and ``max_tokens`` limits thinking and text together.
    """
    thinking = values.get("thinking")
    if thinking is None:
        return {}
    kind = thinking.get("type")
    if not isinstance(kind, str) or kind not in _THINKING_MEMBERS:
        raise InvalidRequest(
            f"thinking.type is {shown(kind)}; supported are {', '.join(_THINKING_MEMBERS)}.", param="thinking.type"
        )
    given = {name: value for name, value in thinking.items() if value is not None}
    check_members("thinking", given, _THINKING_MEMBERS[kind])
    budget = given.get("budget_tokens", 1)
    if type(budget) is not int or budget < 1:
        raise InvalidRequest(
            f"thinking.budget_tokens is {shown(budget)}, it must be an integer, 1 or more.",
            param="thinking.budget_tokens",
        )
    return {"enable_thinking": kind != "disabled"}


def _display(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether the message shows the thinking, which comes whole also where a summary would suffice."""
    display = values.get("thinking", {}).get("display")
    if display not in (None, "summarized", "omitted"):
        raise InvalidRequest(
            f"thinking.display is {shown(display)}; it must be summarized or omitted.", param="thinking.display"
        )
    return {"include_reasoning": False} if display == "omitted" else {}


def _output_config(values: Mapping[str, Any]) -> dict[str, Any]:
    config = values.get("output_config", {})
    chat: dict[str, Any] = {}
    for name, value in config.items():
        if value is None:
            continue
        if name == "effort":
            if value != "high":
                chat["reasoning_effort"] = value
        elif name == "format":
            if not isinstance(value, dict) or value.get("type") != "json_schema" or set(value) != {"type", "schema"}:
                raise InvalidRequest(
                    f"output_config.format is {shown(value)}; it must be {{'type': 'json_schema', 'schema': …}}.",
                    param="output_config.format",
                )
            schema = {"name": "output", "schema": value["schema"], "strict": True}
            chat["response_format"] = {"type": "json_schema", "json_schema": schema}
        else:
            raise unsupported(f"output_config.{name[:80]}")
    return chat
