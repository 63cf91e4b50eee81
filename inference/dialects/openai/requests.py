"""Translate bodies of completion and chat requests into a ``GenerationPlan``.

Fields check types and ranges, so that the OpenAPI schema shows the ranges. ``SamplingParams`` checks the ranges again.
This module checks rules that concern several fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from inference.dialects.fields import (
    JSONObjectField,
    KeepAliveField,
    PromptField,
    StrictBooleanField,
    StrictCharField,
    optional,
    optional_boolean,
    optional_integer,
    optional_state,
)
from inference.dialects.openai.chat_fields import ReasoningEffortField, ToolChoiceField, ToolsField, chat_options
from inference.dialects.openai.chat_prompt import chat_prompt
from inference.dialects.openai.grammar_fields import GrammarFieldsMixin, grammar_of
from inference.dialects.openai.message_fields import MessagesField
from inference.dialects.openai.sampling_fields import SamplingFieldsMixin, resolve_aliases
from inference.dialects.refusals import REFUSED_IN_CHAT, REFUSED_IN_COMPLETIONS
from inference.dialects.strict_serializer import StrictSerializer
from inference.errors import InvalidRequest, UnsupportedFeature
from inference.values import sampling_params as limits
from inference.values.chat_options import ChatOptions
from inference.values.limits import DEFAULT_COMPLETION_TOKENS
from inference.values.messages import PromptMessage
from inference.values.plan import Endpoint, GenerationPlan
from inference.values.sampling_params import SamplingParams

MAX_CHOICES_PER_REQUEST = 1024

_SAMPLING_FIELDS = frozenset(SamplingParams.__dataclass_fields__) - {"logprobs", "max_tokens"}


class StreamOptionsSerializer(StrictSerializer):
    """Options of a stream."""

    include_usage = StrictBooleanField(default=False, help_text="End with a chunk that holds the usage.")
    include_queue = StrictBooleanField(
        default=False, help_text="While the request waits, send blazr.queue events: position, reason, estimate."
    )
    continuous_usage_stats = StrictBooleanField(default=False, help_text="Not supported: must be false.")
    include_obfuscation = StrictBooleanField(default=False, help_text="Not supported: must be false.")

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict):
            for name in data:
                if name not in self.fields:
                    raise UnsupportedFeature(
                        f"stream_options.{name[:80]} is not supported.", param=f"stream_options.{name[:80]}"
                    )
        values = super().to_internal_value(data)
        for name in ("continuous_usage_stats", "include_obfuscation"):
            if values[name]:
                raise UnsupportedFeature(f"stream_options.{name} is not supported.", param=f"stream_options.{name}")
        return values


class GenerationSerializer(GrammarFieldsMixin, SamplingFieldsMixin, StrictSerializer):
    """Fields that completions and chat completions have in common."""

    takes_hints = True
    endpoint: ClassVar[Endpoint]

    model = StrictCharField(max_length=256, help_text="A name from GET /v1/models.")
    max_tokens = optional_integer(
        0,
        limits.MAX_TOKENS_LIMIT,
        "Limit of the output. Default: 16 for completions, what the context leaves for chat.",
    )
    n = optional_integer(1, limits.MAX_CHOICES, "Choices per prompt. Default: 1.")
    stream = optional_boolean("Send server-sent events. Default: false.")
    stream_options = optional(StreamOptionsSerializer)
    # vLLM's additions.
    include_stop_str_in_output = optional_boolean("The text ends with the stop string. Default: false.")
    prompt_logprobs = optional_integer(
        0, limits.MAX_LOGPROBS, "Log-probabilities of the prompt's tokens, with so many alternatives each."
    )
    add_special_tokens = optional_boolean(
        "Put the begin-of-sequence token before a prompt. Default: true; for chat false."
    )
    return_token_ids = optional_boolean("Add prompt_token_ids and token_ids to the response. Default: false.")
    return_tokens_as_token_ids = optional_boolean("Log-probabilities name tokens token_id:N. Default: false.")

    keep_alive = KeepAliveField()
    state = optional_state()

    def plan(self, body: object) -> GenerationPlan:
        """Validate ``body`` and return its plan.

        Raises:
            InvalidRequest: With the field in ``param``.
        """
        values = self.parse(body)
        if values.get("top_k") == -1:
            values["top_k"] = 0
        resolve_aliases(values)
        options = values.get("stream_options")
        stream = values.get("stream", False)
        if options is not None and not stream:
            raise InvalidRequest("stream_options only goes with stream: true.", param="stream_options")
        prompts = self._prompts(values)
        logprobs, sampling = self._sampling(values)
        sampling["grammar"] = grammar_of(values)
        params = SamplingParams.from_dict(sampling)
        if len(prompts) * params.n > MAX_CHOICES_PER_REQUEST:
            raise InvalidRequest(
                f"{len(prompts)} prompts with n = {params.n} make {len(prompts) * params.n} choices, "
                f"at most {MAX_CHOICES_PER_REQUEST} go into one request.",
                param="n",
            )
        return GenerationPlan(
            endpoint=self.endpoint,
            model=values["model"],
            prompts=prompts,
            params=params,
            stream=stream,
            include_usage=bool(options and options["include_usage"]),
            include_queue=bool(options and options["include_queue"]),
            echo=values.get("echo", False),
            priority=values.get("priority", 0),
            cache_salt=values.get("cache_salt") or None,
            return_token_ids=values.get("return_token_ids", False),
            return_tokens_as_token_ids=values.get("return_tokens_as_token_ids", False),
            logprobs=logprobs,
            keep=self._keep(values),
            chat=self._chat(values),
            keep_alive_s=values.get("keep_alive"),
            state=values.get("state"),
        )

    def _chat(self, values: dict[str, Any]) -> ChatOptions | None:
        """Return the options of tools and thinking; None: the endpoint has none."""
        return None

    def _keep(self, values: dict[str, Any]) -> int | None:
        """Return the number of generated choices to return; None: all."""
        return None

    def _prompts(self, values: dict[str, Any]) -> tuple[PromptMessage, ...]:
        raise NotImplementedError

    def _sampling(self, values: dict[str, Any]) -> tuple[int | None, dict[str, Any]]:
        """Return (alternatives to show per position, members of SamplingParams)."""
        raise NotImplementedError


class CompletionRequestSerializer(GenerationSerializer):
    """Body of POST /v1/completions."""

    endpoint = "completion"
    refused = REFUSED_IN_COMPLETIONS

    prompt = PromptField(help_text="Text, token ids, or a list of either.")
    logprobs = optional_integer(
        0, limits.MAX_LOGPROBS, "Log-probabilities of the output's tokens, with so many alternatives each."
    )
    echo = optional_boolean("The text begins with the prompt. Default: false.")
    parse_special = optional_boolean("Control tokens written in a text prompt become tokens. Default: false.")
    best_of = optional_integer(
        1, limits.MAX_CHOICES, "Generate so many and return the n most probable per token; not with stream. Default: n."
    )
    suffix = optional(
        StrictCharField, "The text goes between prompt and suffix; for models with tokens for that.", allow_blank=True
    )

    def _prompts(self, values: dict[str, Any]) -> tuple[PromptMessage, ...]:
        switches: PromptMessage = {
            "add_special_tokens": values.get("add_special_tokens", True),
            "parse_special": values.get("parse_special", False),
        }
        prompts: list[PromptMessage] = []
        for item in values["prompt"]:
            if isinstance(item, str):
                prompts.append({"text": item, **switches})
            else:
                prompts.append({"token_ids": item})
        suffix = values.get("suffix")
        if suffix is not None:
            if not all("text" in prompt for prompt in prompts):
                raise InvalidRequest("suffix only goes with prompts that are texts.", param="suffix")
            if values.get("echo", False):
                raise InvalidRequest("echo and suffix exclude each other; leave one of them out.", param="echo")
            for prompt in prompts:
                prompt["suffix"] = suffix
        return tuple(prompts)

    def _sampling(self, values: dict[str, Any]) -> tuple[int | None, dict[str, Any]]:
        sampling = {name: values[name] for name in _SAMPLING_FIELDS if name in values}
        sampling["max_tokens"] = values.get("max_tokens", DEFAULT_COMPLETION_TOKENS)
        logprobs: int | None = values.get("logprobs")
        if logprobs is not None:
            sampling["logprobs"] = logprobs
        if self._keep(values) is not None:
            sampling["n"] = values["best_of"]
            sampling["logprobs"] = logprobs or 0  # best_of compares choices by log-probability
        if logprobs is not None and values.get("echo", False):
            # The echoed prompt is scored like the text that follows it.
            sampling["prompt_logprobs"] = max(logprobs, sampling.get("prompt_logprobs", 0))
        return logprobs, sampling

    def _keep(self, values: dict[str, Any]) -> int | None:
        n, best_of = values.get("n", 1), values.get("best_of")
        if best_of is None or best_of == n:
            return None
        if best_of < n:
            raise InvalidRequest(f"best_of is {best_of}, less than n, which is {n}; raise it.", param="best_of")
        if values.get("stream", False):
            raise InvalidRequest(
                "best_of above n needs all texts before it can choose, so it doesn't go with stream: true.",
                param="best_of",
            )
        return int(n)


class ChatRequestSerializer(GenerationSerializer):
    """Body of POST /v1/chat/completions."""

    endpoint = "chat"
    refused = REFUSED_IN_CHAT

    messages = MessagesField(help_text="1 to 4,096 messages.")
    max_tokens = optional_integer(1, limits.MAX_TOKENS_LIMIT, "Limit of the output. Default: what the context leaves.")
    max_completion_tokens = optional_integer(
        1, limits.MAX_TOKENS_LIMIT, "The newer name of max_tokens; both may be given if they agree."
    )
    logprobs = optional_boolean("Log-probabilities of the output's tokens. Default: false.")
    top_logprobs = optional_integer(0, limits.MAX_LOGPROBS, "Alternatives per position; needs logprobs. Default: 0.")
    add_generation_prompt = optional_boolean("Default: true unless continue_final_message.")
    continue_final_message = optional_boolean("The output continues the last message's text. Default: false.")
    chat_template_kwargs = optional(JSONObjectField, "Values for the model's template, such as enable_thinking.")

    tools = optional(ToolsField, "Functions that the model may call.")
    tool_choice = optional(ToolChoiceField, "none: the model isn't told of them. Default: auto with tools.")
    parallel_tool_calls = optional_boolean("false: calls after the first are left out. Default: true.")
    reasoning_effort = optional(ReasoningEffortField, "For templates that know of it; others refuse it.")
    include_reasoning = optional_boolean("false: the response doesn't show the thinking. Default: true.")

    def _prompts(self, values: dict[str, Any]) -> tuple[PromptMessage, ...]:
        return (chat_prompt(values),)

    def _chat(self, values: dict[str, Any]) -> ChatOptions:
        return chat_options(values)

    def _sampling(self, values: dict[str, Any]) -> tuple[int | None, dict[str, Any]]:
        sampling = {name: values[name] for name in _SAMPLING_FIELDS if name in values}
        limit, older = values.get("max_completion_tokens"), values.get("max_tokens")
        if limit is not None and older is not None and limit != older:
            raise InvalidRequest(
                f"max_tokens is {older} and max_completion_tokens is {limit}; give one of them.",
                param="max_completion_tokens",
            )
        sampling["max_tokens"] = older if limit is None else limit
        if sampling["max_tokens"] is None:
            del sampling["max_tokens"]
        if "top_logprobs" in values and not values.get("logprobs", False):
            raise InvalidRequest("top_logprobs needs logprobs: true.", param="top_logprobs")
        logprobs: int | None = values.get("top_logprobs", 0) if values.get("logprobs", False) else None
        if logprobs is not None:
            sampling["logprobs"] = logprobs
        return logprobs, sampling


GENERATION_SERIALIZERS: Mapping[Endpoint, type[GenerationSerializer]] = {
    "completion": CompletionRequestSerializer,
    "chat": ChatRequestSerializer,
}


def plan_from_body(endpoint: Endpoint, body: object) -> GenerationPlan:
    """Validate a body of ``endpoint`` and return its plan.

    Raises:
        InvalidRequest: With the field in ``param``.
    """
    return GENERATION_SERIALIZERS[endpoint].shared().plan(body)
