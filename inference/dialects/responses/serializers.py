"""Translate bodies of POST /v1/responses and its token count into ``ResponseRequest``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from inference.dialects.chat_bridge import chat_plan
from inference.dialects.fields import (
    JSONObjectField,
    RequestField,
    StrictCharField,
    StrictListField,
    optional,
    optional_boolean,
    optional_integer,
    optional_state,
)
from inference.dialects.openai.message_fields import MAX_MESSAGES
from inference.dialects.openai.sampling_fields import FURTHER_SAMPLERS, SamplingFieldsMixin
from inference.dialects.refusals import Refused
from inference.dialects.responses.conversion import (
    NO_BUILT_IN_TOOLS,
    check_stream_options,
    check_truncation,
    format_in_chat,
    logprobs_in_chat,
    read_include_queue,
    reasoning_in_chat,
    tools_in_chat,
)
from inference.dialects.responses.items import Item, chat_messages, items_read
from inference.dialects.responses.returned_reasoning import INCLUDE
from inference.dialects.stream_options import INCLUDE_QUEUE_HELP
from inference.dialects.strict_serializer import StrictSerializer
from inference.errors import InvalidRequest, shown
from inference.values import sampling_params as limits
from inference.values.plan import GenerationPlan

MAX_METADATA = 16

REFUSED_IN_RESPONSES: Mapping[str, Refused] = {
    "conversation": Refused("there are no conversation objects; use previous_response_id"),
    "prompt": Refused("there are no stored prompts; send input and instructions"),
    "max_tool_calls": Refused(NO_BUILT_IN_TOOLS),
    "prompt_cache_retention": Refused("cached prefixes are kept as long as there is room"),
    "prompt_cache_options": Refused("prefixes are cached without being asked"),
    "context_management": Refused("conversations aren't compacted", ([],)),
    "moderation": Refused("texts aren't moderated"),
    "access_programs": Refused("there are none"),
    "image": Refused("only text is read and generated"),
    "messages": Refused("its name here is input"),
    "max_tokens": Refused("its name here is max_output_tokens"),
    "max_completion_tokens": Refused("its name here is max_output_tokens"),
    "response_format": Refused("its name here is text.format"),
    "reasoning_effort": Refused("its name here is reasoning.effort"),
    "n": Refused("a response has one answer; send several requests", (1,)),
}

CHAT_NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""Map of chat completions' field names to those of the Responses API."""

MAX_INCLUDES = 16
_AS_IN_CHAT = (
    "model", "temperature", "top_p", "parallel_tool_calls", "stop", "seed", "presence_penalty", "frequency_penalty",
    "logit_bias", "top_k", "min_p", "repetition_penalty", "repeat_penalty", "min_tokens", "stop_token_ids",
    "ignore_eos", "skip_special_tokens", "chat_template_kwargs", "priority", "cache_salt", "state", *FURTHER_SAMPLERS,
)  # fmt: skip


@extend_schema_field(
    {
        "oneOf": [
            {"type": "string"},
            {"type": "array", "maxItems": MAX_MESSAGES, "items": {"type": "object", "additionalProperties": {}}},
        ]
    }
)
class InputField(RequestField):
    """A text or a list of items; ``items_read`` validates the items."""

    def to_internal_value(self, data: Any) -> str | list[Any]:
        if not isinstance(data, str | list):
            raise serializers.ValidationError(f"must be a string or a list of items, got {shown(data)}.")
        return data


@extend_schema_field({"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": MAX_METADATA})
class MetadataField(JSONObjectField):
    """At most 16 labels, with keys of at most 64 and values of at most 512 characters."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        found = super().to_internal_value(data)
        for key, value in found.items():
            if len(key) > 64 or not isinstance(value, str) or len(value) > 512:
                raise serializers.ValidationError(
                    f"has the pair {shown(key)}: {shown(value)}; keys have at most 64 characters, values are strings "
                    "of at most 512."
                )
        if len(found) > MAX_METADATA:
            raise serializers.ValidationError(f"has {len(found)} pairs, at most {MAX_METADATA} are allowed.")
        return found


@extend_schema_field({"type": "array", "items": {"type": "object", "additionalProperties": {}}})
class ToolsField(RequestField):
    """Definitions of functions and of namespaces of functions."""

    def to_internal_value(self, data: Any) -> list[dict[str, Any]]:
        if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
            raise serializers.ValidationError(f"must be a list of objects, got {shown(data)}.")
        return data


@extend_schema_field({"oneOf": [{"type": "string", "enum": ["none", "auto", "required"]}, {"type": "object"}]})
class ToolChoiceField(RequestField):
    """A mode as a string, or an object that names a function."""

    def to_internal_value(self, data: Any) -> str | dict[str, Any]:
        if not isinstance(data, str | dict):
            raise serializers.ValidationError(f"must be a string or an object, got {shown(data)}.")
        return data


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A validated body.

    Attributes:
        values: The validated members.
        items: The items of ``input``.
        chat: Members of the equivalent chat body, without the messages.
    """

    values: Mapping[str, Any]
    items: Sequence[Item]
    chat: Mapping[str, Any]

    @property
    def returns_reasoning(self) -> bool:
        """Whether reasoning is also written into ``encrypted_content``."""
        return INCLUDE in self.values.get("include", ())

    def following(self, state: str | None) -> ResponseRequest:
        """Return the request as one of a conversation that began behind a saved state; None: it didn't.

        Raises:
            InvalidRequest: The request names another state.
        """
        own = self.values.get("state")
        if state is None or own == state:
            return self
        if own is not None:
            raise InvalidRequest(
                f"state is {own[:64]!r}; the conversation of previous_response_id began behind {state[:64]!r}. Leave "
                "state out, or begin a new conversation.",
                param="state",
            )
        found = replace(self, values={**self.values, "state": state}, chat={**self.chat, "state": state})
        check_truncation(found.values)
        return found

    def plan(self, history: Sequence[Item] = ()) -> GenerationPlan:
        """Return the plan of the generation.

        Args:
            history: Items of the responses before this one.

        Raises:
            InvalidRequest: With the field in ``param``.
        """
        return self.plan_of([*history, *self.items])

    def plan_of(self, items: Sequence[Item]) -> GenerationPlan:
        """Return the plan of the generation with ``items`` as its conversation.

        Raises:
            InvalidRequest: With the field in ``param``.
        """
        messages = chat_messages(self.values.get("instructions"), items)
        if not messages:
            raise InvalidRequest("input holds no message.", param="input")
        plan = chat_plan({**self.chat, "messages": messages}, CHAT_NAMES)
        return replace(plan, include_queue=read_include_queue(self.values))

    def skeleton(self, plan: GenerationPlan, *, response_id: str, created: int, model: str) -> dict[str, Any]:
        values = self.values
        reasoning = values.get("reasoning", {})
        return {
            "id": response_id,
            "object": "response",
            "created_at": created,
            "status": "in_progress",
            "background": values.get("background", False),
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "instructions": values.get("instructions"),
            "max_output_tokens": values.get("max_output_tokens"),
            "max_tool_calls": None,
            "metadata": values.get("metadata", {}),
            "model": model,
            "output": [],
            "parallel_tool_calls": values.get("parallel_tool_calls", True),
            "previous_response_id": values.get("previous_response_id"),
            "prompt_cache_key": values.get("prompt_cache_key"),
            "reasoning": {"effort": reasoning.get("effort"), "summary": None},
            "safety_identifier": values.get("safety_identifier"),
            "service_tier": "default",
            "store": values.get("store", True),
            "temperature": plan.params.temperature,
            "text": {"format": values.get("text", {}).get("format") or {"type": "text"}},
            "tool_choice": values.get("tool_choice", "auto"),
            "tools": values.get("tools", []),
            "top_logprobs": values.get("top_logprobs", 0),
            "top_p": plan.params.top_p,
            "truncation": values.get("truncation", "disabled"),
            "usage": None,
            "user": values.get("user"),
            **({} if values.get("state") is None else {"state": values["state"]}),
        }


class InputTokensRequestSerializer(StrictSerializer):
    """Body of POST /v1/responses/input_tokens: the fields that affect the prompt."""

    takes_hints = True
    refused: ClassVar[Mapping[str, Refused]] = REFUSED_IN_RESPONSES

    model = StrictCharField(max_length=256, help_text="A name from GET /v1/models.")
    input = InputField(help_text="A text, or items: messages, reasoning, function calls and their outputs.")
    instructions = optional(StrictCharField, "The system's message; not carried over.", allow_blank=True)
    text = optional(JSONObjectField, "format: text, json_object or json_schema.")
    tools = optional(ToolsField, "Functions the model may call, also in namespaces.")
    tool_choice = optional(ToolChoiceField, "none, auto, required, or a function by name. Default: auto.")
    parallel_tool_calls = optional_boolean("false: calls after the first are left out. Default: true.")
    reasoning = optional(JSONObjectField, "effort, as the model's template knows it.")
    previous_response_id = optional(StrictCharField, "The conversation goes on behind that response.", max_length=64)
    chat_template_kwargs = optional(JSONObjectField, "Values for the model's template, such as enable_thinking.")

    def read(self, body: object) -> ResponseRequest:
        """Validate ``body`` and return the request.

        Raises:
            InvalidRequest: With the field in ``param``.
        """
        values = self.parse(body)
        self._check(values)
        assert isinstance(body, dict)  # or parse would have refused it
        chat = {name: body[name] for name in _AS_IN_CHAT if body.get(name) is not None}
        if "max_output_tokens" in values:
            chat["max_completion_tokens"] = values["max_output_tokens"]
        chat |= logprobs_in_chat(values) | format_in_chat(values) | reasoning_in_chat(values) | tools_in_chat(values)
        return ResponseRequest(values, items_read(values["input"]), chat)

    def _check(self, values: Mapping[str, Any]) -> None:
        """Check rules that concern several members."""


class ResponseRequestSerializer(SamplingFieldsMixin, InputTokensRequestSerializer):
    """Body of POST /v1/responses."""

    max_output_tokens = optional_integer(
        1, limits.MAX_TOKENS_LIMIT, "Reasoning counts. Default: what the context leaves."
    )
    include = optional(
        StrictListField,
        "message.output_text.logprobs, reasoning.encrypted_content.",
        child=StrictCharField(max_length=64),
        max_length=MAX_INCLUDES,
    )
    top_logprobs = optional_integer(0, limits.MAX_LOGPROBS, "Alternatives per position; needs the include. Default: 0.")
    metadata = optional(MetadataField, "At most 16 pairs of texts, kept with the response.")
    store = optional_boolean("Keep the response; default true.")
    background = optional_boolean("Respond at once, run as a queued job; needs store.")
    stream = optional_boolean("Send server-sent events. Default: false.")
    stream_options = optional(JSONObjectField, f"include_obfuscation: false. {INCLUDE_QUEUE_HELP}")
    truncation = optional(StrictCharField, "auto: leave out the oldest turns; disabled: refuse.")
    user = optional(StrictCharField, "A hint.", max_length=512)
    safety_identifier = optional(StrictCharField, "A hint.", max_length=512)
    prompt_cache_key = optional(StrictCharField, "A hint.", max_length=512)
    client_metadata = optional(JSONObjectField, "A hint of Codex.")
    state = optional_state()

    def _check(self, values: Mapping[str, Any]) -> None:
        if values.get("background", False) and not values.get("store", True):
            raise InvalidRequest("background: true needs store: true.", param="background")
        if values.get("background", False) and INCLUDE in values.get("include", ()):
            raise InvalidRequest(
                f"include: [{INCLUDE!r}] doesn't go with background: true, whose response is stored; go on by "
                "previous_response_id.",
                param="include",
            )
        check_truncation(values)
        check_stream_options(values)
