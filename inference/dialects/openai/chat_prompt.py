"""Build the prompt of a conversation from the members of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from inference.errors import InvalidRequest, UnsupportedFeature
from inference.values.cache_control import check_marks, seconds_of
from inference.values.images import check_images
from inference.values.messages import PromptMessage

MAX_TEMPLATE_KWARGS_BYTES = 1 << 20
_RESERVED_TEMPLATE_KWARGS = frozenset(
    {
        "add_generation_prompt",
        "bos_token",
        "chat_template",
        "continue_final_message",
        "eos_token",
        "messages",
        "tokenize",
        "tools",
    }
)


def chat_prompt(values: Mapping[str, Any]) -> PromptMessage:
    """Return the prompt of a conversation, from the validated members of a chat or tokenize request.

    Raises:
        InvalidRequest: The template's switches contradict each other.
    """
    continued = values.get("continue_final_message", False)
    generation_prompt = values.get("add_generation_prompt", not continued)
    if continued and generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other; set one of them to false.",
            param="continue_final_message",
        )
    if continued and values["messages"][-1]["role"] != "assistant":
        raise InvalidRequest(
            "continue_final_message needs a last message with the role assistant.", param="continue_final_message"
        )
    prompt: PromptMessage = {
        "messages": values["messages"],
        "add_generation_prompt": generation_prompt,
        "continue_final_message": continued,
        # The template writes its own begin-of-sequence token; only an explicit true adds another.
        "add_special_tokens": values.get("add_special_tokens", False),
    }
    marks = [tool["cache_control"] for tool in values.get("tools") or () if "cache_control" in tool]
    keep_tools_s = max((seconds_of(mark, "tools") for mark in marks), default=None)
    if keep_tools_s is not None:
        prompt["keep_tools_s"] = keep_tools_s
    check_marks(values["messages"], keep_tools_s)
    check_images(values["messages"])
    kwargs = values.get("chat_template_kwargs")
    if kwargs:
        size = len(orjson.dumps(kwargs, option=orjson.OPT_NON_STR_KEYS))
        if size > MAX_TEMPLATE_KWARGS_BYTES:
            raise InvalidRequest(
                f"chat_template_kwargs has {size} bytes of JSON, at most {MAX_TEMPLATE_KWARGS_BYTES} are allowed.",
                param="chat_template_kwargs",
            )
        for name in kwargs:
            if name in _RESERVED_TEMPLATE_KWARGS:
                raise UnsupportedFeature(
                    f"chat_template_kwargs can't hold {name!r}: it is set by the request itself or not supported.",
                    param=f"chat_template_kwargs.{name}",
                )
        prompt["template_kwargs"] = kwargs
    return prompt
