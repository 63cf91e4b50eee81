"""Serve other APIs through chat completions: chat bodies in, pieces of chat chunks out.

Only chat completions validate requests and parse the model's text. ``/v1/responses`` and ``/v1/messages`` translate
their bodies to chat bodies, and chat chunks to their own events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from inference.dialects.openai.outputs.base import OutputFormatter
from inference.dialects.openai.requests import plan_from_body
from inference.errors import BlazrError
from inference.values.messages import GenerationEvent
from inference.values.plan import GenerationPlan

Names = Mapping[str, str]
"""Map of chat completions' field names to the other API's field names."""


def chat_plan(body: Mapping[str, Any], names: Names) -> GenerationPlan:
    """Validate a chat body and return its plan, streamed because pieces are made from chunks.

    Args:
        body: A body of POST /v1/chat/completions, without ``stream``.
        names: Field names for errors, so that an error names the field that the client wrote.

    Raises:
        InvalidRequest: With the other API's field in ``param``.
    """
    try:
        return replace(plan_from_body("chat", dict(body)), stream=True)
    except BlazrError as error:
        raise translate_error(error, names) from None


def translate_error(error: BlazrError, names: Names) -> BlazrError:
    """Return ``error`` with the other API's field name, in ``param`` and in the message."""
    param = error.param
    if param is None:
        return error
    known = [name for name in names if param == name or param.startswith(f"{name}.")]
    if not known:
        return error
    old = max(known, key=len)
    message = re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", names[old], error.message)
    return type(error)(message, param=names[old] + param[len(old) :], retry_after_s=error.retry_after_s)


# --- chunks ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """Text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text of the message; ``logprobs`` in chat completions' form, empty unless requested."""

    text: str
    logprobs: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class CallPiece:
    """The start of a tool call (``name`` is set), or more of its arguments."""

    index: int
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class EndPiece:
    """The end of the output."""

    finish_reason: str
    stop_reason: str | int | None


Piece = ReasoningPiece | TextPiece | CallPiece | EndPiece


def pieces(chunk: Mapping[str, Any]) -> Iterator[Piece]:
    """Yield the pieces of a chat completion chunk with one choice, in order."""
    for choice in chunk["choices"]:
        delta = choice["delta"]
        if delta.get("reasoning_content"):
            yield ReasoningPiece(delta["reasoning_content"])
        logprobs = tuple((choice.get("logprobs") or {}).get("content") or ())
        if delta.get("content") or (logprobs and not delta.get("reasoning_content")):
            yield TextPiece(delta.get("content") or "", logprobs)
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            yield CallPiece(
                call["index"], call.get("id") or "", function.get("name") or "", function.get("arguments") or ""
            )
        if choice.get("finish_reason") is not None:
            yield EndPiece(choice["finish_reason"], choice.get("stop_reason"))


def event_pieces(chat: OutputFormatter, number: int, event: GenerationEvent) -> Iterator[Piece]:
    """Yield the pieces of an event that the output builder of ``chat`` has already taken."""
    for chunk in chat.chunks(number, event):
        yield from pieces(chunk)
