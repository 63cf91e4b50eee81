"""Refuse request fields that blazr doesn't support, and drop hints.

No field is ignored silently. A field in ``REFUSED`` may only have a value that means "off". A field in ``HINTS`` is
accepted, because its definition forbids any effect on the output. A field in no table is refused by name.
Names and meanings:
https://platform.openai.com/docs/api-reference/chat/create and
https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inference.errors import InvalidRequest, UnsupportedFeature


@dataclass(frozen=True, slots=True)
class Refused:
    """An unsupported field. Null and the ``neutral`` values mean "off" and are accepted."""

    reason: str
    neutral: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Hint:
    """A field that is accepted and has no effect, by its own definition."""

    reason: str
    accepts: Callable[[Any], bool]
    expected: str


def _is_short_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 512


def _is_metadata(value: Any) -> bool:
    # https://platform.openai.com/docs/api-reference/chat/create#chat-create-metadata: 16 pairs, 64 and 512 characters.
    return (
        isinstance(value, dict)
        and len(value) <= 16
        and all(len(key) <= 64 and isinstance(text, str) and len(text) <= 512 for key, text in value.items())
    )


HINTS: Mapping[str, Hint] = {
    "user": Hint("an end-user id for abuse monitoring", _is_short_text, "a string of at most 512 characters"),
    "safety_identifier": Hint("the successor of user", _is_short_text, "a string of at most 512 characters"),
    "prompt_cache_key": Hint(
        "a routing hint for prompt caching, which never changes an output",
        _is_short_text,
        "a string of at most 512 characters",
    ),
    "metadata": Hint(
        "labels of stored completions; nothing is stored", _is_metadata, "at most 16 pairs of short strings"
    ),
    "store": Hint("completions are never stored", lambda value: value is False, "false: completions aren't stored"),
    "service_tier": Hint(
        "there is one tier, which is what auto and default choose",
        lambda value: value in ("auto", "default"),
        "'auto' or 'default'",
    ),
}

_NO_AUDIO = "only text is generated"

REFUSED_ANYWHERE: Mapping[str, Refused] = {
    "use_beam_search": Refused("there is no beam search", (False,)),
    "length_penalty": Refused("there is no beam search", (1, 1.0)),
    "early_stopping": Refused("there is no beam search", (False,)),
    "truncate_prompt_tokens": Refused("prompts are never cut; shorten it before sending"),
    "allowed_token_ids": Refused("use logit_bias to steer single tokens"),
    "bad_words": Refused("use logit_bias to steer single tokens", ([],)),
    "logits_processors": Refused("code in a request is never run", ([],)),
    "spaces_between_special_tokens": Refused("text is decoded as the tokenizer has it", (True,)),
    "prompt_embeds": Refused("prompts are text or token ids"),
    "mm_processor_kwargs": Refused(_NO_AUDIO),
    "kv_transfer_params": Refused("caches aren't transferred between servers"),
    "vllm_xargs": Refused("there are no plug-ins"),
    "request_id": Refused("the server chooses request ids"),
    "repeat_last_n": Refused("repetition_penalty looks at the whole sequence"),
    "lora_adapter": Refused("adapters aren't supported"),
    "context": Refused("send token ids as the prompt"),
}

REFUSED_IN_COMPLETIONS: Mapping[str, Refused] = {}

REFUSED_IN_CHAT: Mapping[str, Refused] = {
    "functions": Refused("its successor is tools", ([],)),
    "function_call": Refused("its successor is tool_choice", ("none",)),
    "modalities": Refused(_NO_AUDIO, (["text"],)),
    "audio": Refused(_NO_AUDIO),
    "prediction": Refused("predicted output isn't used"),
    "thinking_token_budget": Refused("thinking isn't cut; limit the whole answer with max_completion_tokens"),
    "verbosity": Refused("say it in the messages"),
    "web_search_options": Refused("the server makes no outbound requests"),
    "prompt_cache_retention": Refused("cached prefixes stay while there is room; a cache_control mark keeps one"),
    "chat_template": Refused("a template in a request would be a program from a stranger; the model's own is used"),
    "documents": Refused("pass them in chat_template_kwargs"),
    "best_of": Refused("use n", (1,)),
    "suffix": Refused("it belongs to /v1/completions"),
    "prompt": Refused("it belongs to /v1/completions"),
    "echo": Refused("it belongs to /v1/completions", (False,)),
}


def fields_without_refused(
    body: Mapping[str, Any], *, known: frozenset[str], refused: Mapping[str, Refused]
) -> dict[str, Any]:
    """Return the members of ``body`` for the serializer, without null, neutral and hint members.

    Args:
        body: The request's JSON object.
        known: Names of the serializer's fields.
        refused: The endpoint's own table, in addition to ``REFUSED_ANYWHERE``.

    Raises:
        UnsupportedFeature: A member is unsupported or unknown.
        InvalidRequest: A hint has the wrong type.
    """
    kept: dict[str, Any] = {}
    for name, value in body.items():
        if name in known:
            if value is not None:
                kept[name] = value
            continue
        hint = HINTS.get(name)
        if hint is not None:
            if value is not None and not hint.accepts(value):
                raise InvalidRequest(f"{name} must be {hint.expected}.", param=name)
            continue
        rule = refused.get(name) or REFUSED_ANYWHERE.get(name)
        if rule is None:
            raise UnsupportedFeature(f"{name[:80]!r} is not a parameter of this endpoint; remove it.", param=name[:80])
        # Types are compared too: False == 0 and True == 1 in Python, but not in JSON.
        if value is not None and not any(type(value) is type(neutral) and value == neutral for neutral in rule.neutral):
            raise UnsupportedFeature(f"{name} is not supported: {rule.reason}.", param=name)
    return kept
