"""Translate bodies of Ollama's endpoints into completion, chat and embedding requests.

Names, ranges and defaults: https://github.com/ollama/ollama/blob/main/docs/api.md and …/docs/modelfile.mdx.
An omitted option has blazr's default, not Ollama's: a temperature of 1, no top_k, no repeat_penalty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import orjson
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from inference.dialects.chat_bridge import Names, chat_plan, translate_error
from inference.dialects.fields import (
    MAX_INPUTS,
    JSONObjectField,
    KeepAliveField,
    RequestField,
    StopField,
    StrictCharField,
    StrictIntegerField,
    StrictListField,
    StrictNumberField,
    optional,
    optional_boolean,
    optional_integer,
    optional_state,
)
from inference.dialects.openai.chat_fields import MAX_TOOLS
from inference.dialects.openai.embeddings import MAX_DIMENSIONS, embedding_plan
from inference.dialects.openai.message_fields import MAX_MESSAGES
from inference.dialects.openai.requests import plan_from_body
from inference.dialects.openai.sampling_fields import FURTHER_SAMPLERS, FurtherSamplersMixin
from inference.dialects.refusals import Refused
from inference.dialects.strict_serializer import StrictSerializer
from inference.errors import BlazrError, InvalidRequest, UnsupportedFeature, shown
from inference.values import sampling_params as limits
from inference.values.messages import PromptMessage
from inference.values.plan import GenerationPlan
from inference.values.served_model import ServedModel

_BY_LOADING = "it is a setting of the server or the model, made before the model is loaded"

REFUSED_OPTIONS: Mapping[str, Refused] = {
    **{
        name: Refused(_BY_LOADING)
        for name in (
            "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock", "numa", "low_vram", "f16_kv",
            "logits_all", "vocab_only", "embedding_only",
        )
    },
    "num_keep": Refused("prompts are never cut"),
    "tfs_z": Refused("use top_p or min_p", (1, 1.0)),
    "penalize_newline": Refused("repeat_penalty counts every token", (True,)),
    "draft_num_predict": Refused(_BY_LOADING),
}  # fmt: skip
_RENAMED_OPTIONS = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
_NAMES: Names = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "response_format": "format",
    "chat_template_kwargs": "think",
    **{name: f"options.{name}" for name in ("top_k", "top_p", "min_p", *FURTHER_SAMPLERS)},
}


class OptionsSerializer(FurtherSamplersMixin, StrictSerializer):
    """The ``options`` object of a generation."""

    takes_hints = True
    refused = REFUSED_OPTIONS

    num_predict = StrictIntegerField(
        required=False, min_value=-2, max_value=limits.MAX_TOKENS_LIMIT, help_text="Below 0: what the context leaves."
    )
    num_ctx = StrictIntegerField(
        required=False,
        min_value=1,
        max_value=limits.MAX_TOKENS_LIMIT,
        help_text="A hint: the context is the model's own.",
    )
    temperature = StrictNumberField(required=False, min_value=0, max_value=2)
    top_k = StrictIntegerField(required=False, min_value=-1, max_value=limits.MAX_TOKENS_LIMIT)
    top_p = StrictNumberField(required=False, min_value=0, max_value=1)
    min_p = StrictNumberField(required=False, min_value=0, max_value=1)
    repeat_penalty = StrictNumberField(required=False, min_value=0, max_value=10, help_text="Over prompt and output.")
    repeat_last_n = StrictIntegerField(
        required=False, min_value=-1, max_value=-1, help_text="Only -1: the whole sequence."
    )
    presence_penalty = StrictNumberField(required=False, min_value=-2, max_value=2)
    frequency_penalty = StrictNumberField(required=False, min_value=-2, max_value=2)
    seed = StrictIntegerField(required=False, min_value=-limits.SEED_RANGE, max_value=limits.SEED_RANGE - 1)
    stop = StopField(required=False)

    def sampling(self, options: object) -> dict[str, Any]:
        """Return the options under OpenAI's and vLLM's names.

        Raises:
            InvalidRequest: With ``options.NAME`` in ``param``.
        """
        try:
            values = self.parse(options)
        except BlazrError as error:
            param = "options" if error.param is None else f"options.{error.param}"
            raise type(error)(error.message, param=param) from None
        values.pop("num_ctx", None)
        values.pop("repeat_last_n", None)
        if values.get("num_predict", 0) < 0:
            del values["num_predict"]
        return {_RENAMED_OPTIONS.get(name, name): value for name, value in values.items()}


@extend_schema_field({"oneOf": [{"type": "string", "enum": ["", "json"]}, {"type": "object"}]})
class FormatField(RequestField):
    """``json`` or a JSON schema; the value is OpenAI's response_format, or None for the empty text."""

    def to_internal_value(self, data: Any) -> dict[str, Any] | None:
        if data == "":
            return None
        if data == "json":
            return {"type": "json_object"}
        if isinstance(data, dict):
            return {"type": "json_schema", "json_schema": {"name": "format", "schema": data, "strict": True}}
        raise serializers.ValidationError(f'must be "json" or a JSON schema, got {shown(data)}.')


@extend_schema_field({"oneOf": [{"type": "boolean"}, {"type": "string", "enum": ["low", "medium", "high"]}]})
class ThinkField(RequestField):
    """Thinking on or off, or its effort: true, false, low, medium or high."""

    def to_internal_value(self, data: Any) -> bool | str:
        if isinstance(data, bool):
            return data
        if data in ("low", "medium", "high"):
            return str(data)
        raise serializers.ValidationError(f"must be true, false, low, medium or high, got {shown(data)}.")


@extend_schema_field(
    {
        "oneOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_INPUTS},
        ]
    }
)
class TextsField(RequestField):
    """One text or several; the value is a list of texts.

    DRF's JSONField would write the value as JSON once more, in one piece that stops the event loop.
    """

    def to_internal_value(self, data: Any) -> list[str]:
        texts = [data] if isinstance(data, str) else data
        if not isinstance(texts, list) or not texts or not all(isinstance(item, str) for item in texts):
            raise serializers.ValidationError(f"must be a text or a list of texts, got {shown(data)}.")
        if len(texts) > MAX_INPUTS:
            raise serializers.ValidationError(f"has {len(texts)} texts, at most {MAX_INPUTS} go into one request.")
        return texts


class OllamaRequestSerializer(StrictSerializer):
    """Fields that /api/generate and /api/chat have in common."""

    takes_hints = True

    model = StrictCharField(max_length=256, help_text="A name from GET /api/tags; :latest may be added.")
    stream = optional_boolean("Default: true.")
    options = optional(JSONObjectField, "Sampling; see the reference.")
    format = optional(FormatField, '"json" or a JSON schema.')
    keep_alive = KeepAliveField()
    think = optional(ThinkField, "For models whose template can switch it.")
    state = optional_state()

    def _common(self, values: Mapping[str, Any], served: ServedModel) -> dict[str, Any]:
        given = values.get("options", {})
        body = OptionsSerializer.shared().sampling({**dict(served.parameters), **given})
        body["model"] = served.name
        if values.get("format") is not None:
            body["response_format"] = values["format"]
        body |= {name: values[name] for name in ("keep_alive", "state") if name in values}
        return body

    def _chat(self, values: Mapping[str, Any], served: ServedModel, messages: list[Any]) -> GenerationPlan:
        body = self._common(values, served) | {"messages": messages}
        think = values.get("think")
        if think is not None:
            body |= _thinking(think, served)
        if values.get("tools"):
            body["tools"] = values["tools"]
        return chat_plan(body, _NAMES)


class OllamaGenerateRequestSerializer(OllamaRequestSerializer):
    """Body of POST /api/generate."""

    refused: ClassVar[Mapping[str, Refused]] = {
        "images": Refused("send images with their message to /api/chat", ([],)),
        "template": Refused(
            "a template in a request would be a program from a stranger; the model's own is used", ("",)
        ),
        "context": Refused("send the conversation to /api/chat", ([],)),
        "logprobs": Refused("use logprobs of /v1/completions", (False,)),
        "top_logprobs": Refused("use logprobs of /v1/completions", (0,)),
    }

    prompt = StrictCharField(required=False, allow_blank=True, help_text="Empty: only load the model.")
    suffix = optional(StrictCharField, "The text goes between prompt and suffix.", allow_blank=True)
    system = optional(StrictCharField, "System message.", allow_blank=True)
    raw = optional_boolean("Continue the prompt as it is, without the model's template.")

    def plan(self, values: Mapping[str, Any], served: ServedModel) -> GenerationPlan:
        """Return a plan for a chat with one message; for a completion if raw, with a suffix, or without a template.

        Raises:
            InvalidRequest: With the field in ``param``.
        """
        prompt, system, suffix = values.get("prompt", ""), values.get("system"), values.get("suffix")
        is_raw = values.get("raw", False) or bool(suffix)
        if not is_raw and served.tokenizer.chat_template is not None:
            messages = [{"role": "system", "content": system}] if system else []
            return self._chat(values, served, [*messages, {"role": "user", "content": prompt}])
        for name in ("system", "think"):
            if values.get(name):
                raise UnsupportedFeature(
                    f"{name} needs the model's chat template, which isn't used here; leave it out.", param=name
                )
        body = {**self._common(values, served), "prompt": prompt, "stream": True}
        if suffix:
            body["suffix"] = suffix
        has_limit = "max_tokens" in body
        try:
            plan = plan_from_body("completion", body)
        except BlazrError as error:
            raise translate_error(error, _NAMES) from None
        return plan if has_limit else plan.without_limit()


class OllamaChatRequestSerializer(OllamaRequestSerializer):
    """Body of POST /api/chat."""

    refused: ClassVar[Mapping[str, Refused]] = {
        "logprobs": Refused("use logprobs of /v1/chat/completions", (False,)),
        "top_logprobs": Refused("use logprobs of /v1/chat/completions", (0,)),
    }

    messages = StrictListField(
        child=JSONObjectField(),
        max_length=MAX_MESSAGES,
        required=False,
        help_text="Ollama's messages; empty: only load the model.",
    )
    tools = optional(
        StrictListField, "Functions that the model may call.", child=JSONObjectField(), max_length=MAX_TOOLS
    )

    def plan(self, values: Mapping[str, Any], served: ServedModel) -> GenerationPlan:
        """Return the plan of the chat.

        Raises:
            InvalidRequest: With the field in ``param``.
        """
        return self._chat(values, served, _messages(values["messages"]))


class OllamaEmbedRequestSerializer(StrictSerializer):
    """Body of POST /api/embed."""

    takes_hints = True

    model = StrictCharField(max_length=256, help_text="A name from GET /api/tags.")
    input = TextsField(help_text="A text or a list of texts.")
    truncate = optional_boolean("Cut what is longer than the context (the default), or refuse it.")
    dimensions = optional_integer(1, MAX_DIMENSIONS, "Keep so many of the first numbers.")
    keep_alive = KeepAliveField()
    options = optional(JSONObjectField, "Only num_ctx.")

    def plan(self, values: Mapping[str, Any], served: ServedModel, *, normalize: bool = True) -> GenerationPlan:
        """Return the plan of the embedding request.

        Raises:
            InvalidRequest: With the field in ``param``.
        """
        for name in OptionsSerializer.shared().sampling(values.get("options", {})):
            raise UnsupportedFeature(
                f"options.{name} is not supported: nothing is generated here; leave it out.", param=f"options.{name}"
            )
        truncate = values.get("truncate", True)
        inputs: list[PromptMessage] = [{"text": text, "truncate": truncate} for text in values["input"]]
        plan = embedding_plan(
            served.name,
            inputs,
            {
                "pooling": None,
                "dimensions": values.get("dimensions"),
                "normalize": normalize,
                "encoding_format": "float",
            },
        )
        return replace(plan, keep_alive_s=values.get("keep_alive"))


class OllamaLegacyEmbeddingRequestSerializer(StrictSerializer):
    """Body of POST /api/embeddings, the older endpoint."""

    model = StrictCharField(max_length=256, help_text="A name from GET /api/tags.")
    prompt = StrictCharField(allow_blank=True, help_text="One text.")
    keep_alive = KeepAliveField()
    options = optional(JSONObjectField, "Only num_ctx.")


class OllamaModelNameSerializer(StrictSerializer):
    """A body that names a model, as ``model`` or by the older member ``name``."""

    model = StrictCharField(required=False, max_length=256, help_text="A name from GET /api/tags.")
    name = StrictCharField(required=False, max_length=256, help_text="The older name of model.")
    verbose = optional_boolean("Accepted: everything is shown anyway.")

    def model_name(self, body: object) -> str:
        """Return the model's name.

        Raises:
            InvalidRequest: The body names no model.
        """
        values = self.parse(body)
        found = values.get("model") or values.get("name")
        if not found:
            raise InvalidRequest("model is required.", param="model")
        return str(found)


class OllamaPullRequestSerializer(StrictSerializer):
    """Body of POST /api/pull."""

    model = StrictCharField(required=False, max_length=256, help_text="hf.co/ORG/NAME, or ORG/NAME.")
    name = StrictCharField(required=False, max_length=256, help_text="The older name of model.")
    stream = optional_boolean("Progress as JSON lines; default true.")
    insecure = optional_boolean("Only false: certificates are checked.")

    def model_name(self, values: Mapping[str, Any]) -> str:
        """Return the model's name.

        Raises:
            InvalidRequest: The body names no model.
            UnsupportedFeature: ``insecure`` is true.
        """
        if values.get("insecure"):
            raise UnsupportedFeature("insecure is not supported; certificates are always checked.", param="insecure")
        found = values.get("model") or values.get("name")
        if not found:
            raise InvalidRequest("model is required.", param="model")
        return str(found)


class OllamaCopyRequestSerializer(StrictSerializer):
    """Body of POST /api/copy."""

    source = StrictCharField(max_length=256, help_text="A name from GET /api/tags.")  # type: ignore[assignment]
    destination = StrictCharField(max_length=256, help_text="The new name; an alias, no files are copied.")


class OllamaCreateRequestSerializer(StrictSerializer):
    """Body of POST /api/create."""

    refused: ClassVar[Mapping[str, Refused]] = {
        "adapters": Refused("adapters aren't merged into a model here"),
        "messages": Refused("send the conversation with each request"),
        "license": Refused("it isn't kept; the model's files have theirs"),
        "modelfile": Refused("send its lines as members: files, from, template, system, parameters"),
    }

    model = StrictCharField(required=False, max_length=256, help_text="Name of the new model; :latest is dropped.")
    name = StrictCharField(required=False, max_length=256, help_text="The older name of model.")
    files = optional(JSONObjectField, "Names of files with their digests, sha256:…, which /api/blobs has received.")
    template = optional(StrictCharField, "Chat template in Jinja.", max_length=1 << 16)
    system = optional(StrictCharField, "System prompt of conversations without one.", max_length=1 << 16)
    parameters = optional(JSONObjectField, "Options of Ollama's requests that don't give them.")
    quantize = optional(StrictCharField, "q8_0 (int8), q4_K_M, q4_K_S or q4_0 (int4).", max_length=20)
    stream = optional_boolean("Progress as JSON lines; default true.")

    def get_fields(self) -> dict[str, Any]:
        """Return the fields; ``from`` is a word of Python's own."""
        field = optional(StrictCharField, "A model whose files are used, in place of files.", max_length=256)
        return {**super().get_fields(), "from": field}

    def model_name(self, values: Mapping[str, Any]) -> str:
        """Return the new model's name.

        Raises:
            InvalidRequest: The body has none.
        """
        found = values.get("model") or values.get("name")
        if not found:
            raise InvalidRequest("model is required.", param="model")
        return str(found)


def _thinking(think: bool | str, served: ServedModel) -> dict[str, Any]:
    """Return the template variables that switch thinking.

    Raises:
        UnsupportedFeature: The template has no such switch.
    """
    template = served.tokenizer.chat_template or ""
    if isinstance(think, str) and "reasoning_effort" in template:
        return {"chat_template_kwargs": {"reasoning_effort": think}}
    if "enable_thinking" in template:
        return {"chat_template_kwargs": {"enable_thinking": bool(think)}}
    if think is False:
        return {}
    raise UnsupportedFeature(
        f"The model {served.name!r} has no switch for thinking in its template; leave think out.", param="think"
    )


def _messages(items: list[Any]) -> list[dict[str, Any]]:
    """Return the messages in OpenAI's shape.

    Ollama's tool results have no ids, so each is assigned to an earlier call, by name or in order.
    """
    messages: list[dict[str, Any]] = []
    open_calls: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        message = _message(number, item)
        if message.get("role") == "tool" and "tool_call_id" not in message and open_calls:
            named = [call for call in open_calls if call["function"]["name"] == message.get("name")]
            call = (named or open_calls)[0]
            open_calls.remove(call)
            message["tool_call_id"] = call["id"]
        elif message.get("tool_calls"):
            open_calls = list(message["tool_calls"])
        messages.append(message)
    return messages


def _message(number: int, item: Mapping[str, Any]) -> dict[str, Any]:
    """Return one Ollama message in OpenAI's shape."""
    message = {name: value for name, value in item.items() if value is not None}
    images = message.pop("images", None)
    if images:
        message["content"] = _with_images(number, images, message.get("content"))
    thinking = message.pop("thinking", None)
    if thinking:
        message["reasoning_content"] = thinking
    if "tool_name" in message:
        message["name"] = message.pop("tool_name")
    calls = message.get("tool_calls")
    if not calls:
        message.pop("tool_calls", None)
        return message
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise InvalidRequest(f"message {number}: tool_calls must be a list of objects.", param="messages")
    message["tool_calls"] = [_tool_call(number, position, call) for position, call in enumerate(calls)]
    return message


def _with_images(number: int, images: Any, content: Any) -> list[dict[str, Any]]:
    """A message's content in OpenAI's parts: its pictures, then its text."""
    if not isinstance(images, list) or not all(isinstance(item, str) for item in images):
        raise InvalidRequest(f"message {number}: images must be a list of files in Base64.", param="messages")
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": f"data:image/*;base64,{item}"}} for item in images
    ]
    return [*parts, {"type": "text", "text": content}] if content else parts


def _tool_call(number: int, position: int, call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"message {number}: a tool call has a function with a name.", param="messages")
    arguments = function.get("arguments", {})
    written = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return {
        "id": str(call.get("id") or f"call_{number}_{position}"),
        "type": "function",
        "function": {"name": function["name"], "arguments": written},
    }
