"""The bridge that other APIs take to chat completions: their requests become chat bodies, chat chunks become pieces.

Everything that a chat request is checked for, and everything that is read out of a model's text, is there once;
``/v1/responses`` and ``/v1/messages`` only word it differently.
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
"""Chat completions' name of a field → the other API's."""


def chat_plan(body: Mapping[str, Any], names: Names) -> GenerationPlan:
    """The checked request behind a chat body, to be followed as a stream (pieces come from chunks).

    Args:
        body: What POST /v1/chat/completions would take, without stream.
        names: For errors, which name the field that the client wrote.

    Raises:
        InvalidRequest: With the other API's field in ``param``.
    """
    try:
        return replace(plan_from_body("chat", dict(body)), stream=True)
    except BlazrError as error:
        raise renamed(error, names) from None


def renamed(error: BlazrError, names: Names) -> BlazrError:
    """``error`` in the words of another API: its field, also where the message names it."""
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
    """Text that the model thought."""

    text: str


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text for the reader; ``logprobs`` in chat completions' form, empty unless asked for."""

    text: str
    logprobs: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A call of a tool begins (``name`` is set), or its arguments go on."""

    index: int
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class EndPiece:
    """The output has ended."""

    finish_reason: str
    stop_reason: str | int | None


Piece = ReasoningPiece | TextPiece | CallPiece | EndPiece


def pieces(chunk: Mapping[str, Any]) -> Iterator[Piece]:
    """What a chat completion chunk with one choice says, in order."""
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
    """What one event says that the builder behind ``chat`` has taken already."""
    for chunk in chat.chunks(number, event):
        yield from pieces(chunk)
