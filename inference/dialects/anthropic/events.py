"""Build Anthropic's message from pieces of a chat: stream events, content blocks and the stop reason.

One class builds the stream and the whole response. Shapes: https://docs.anthropic.com/en/api/messages-streaming.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Mapping
from typing import Any

import orjson

from inference.dialects.chat_bridge import CallPiece, EndPiece, Piece, ReasoningPiece
from inference.errors import BlazrError, PromptTooLong
from inference.values.cache_control import TTL_SECONDS

Event = dict[str, Any]

SIGNATURE = "unsigned"
"""Signature of all thinking: only Anthropic signs it, but AI SDK and others send back no thinking without one."""
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}

_CONTEXT = re.compile(
    r"maximum context length is (\d+) tokens\..*"
    r"(?: resulted in (\d+) tokens|\((\d+) in the .+, (\d+) in the completion)"
)
"""Figures of ``PromptTooLong``: the context, and the prompt, or the prompt and the output."""


class MessageEvents:
    """Builds one message piece by piece."""

    def __init__(self, *, message_id: str, model: str) -> None:
        self.message: dict[str, Any] = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": None,
        }
        self._blocks: list[dict[str, Any]] = []
        self._texts: list[str] = []
        self._call_index = -1
        self._is_open = False
        self._end: EndPiece | None = None

    def started(self, *, prompt_tokens: int) -> list[Event]:
        """Return the events of the start; the number of cached tokens follows at the end."""
        usage = {
            "input_tokens": prompt_tokens,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "output_tokens": 0,
        }
        return [
            {"type": "message_start", "message": self.message | {"content": [], "usage": usage}},
            {"type": "ping"},
        ]

    def take(self, piece: Piece) -> list[Event]:
        if isinstance(piece, EndPiece):
            self._end = piece
            return []
        if isinstance(piece, CallPiece):
            return self._call(piece)
        if isinstance(piece, ReasoningPiece):
            events = self._continue("thinking")
            delta = {"type": "thinking_delta", "thinking": piece.text}
        else:
            events = self._continue("text")
            delta = {"type": "text_delta", "text": piece.text}
        self._texts.append(piece.text)
        return [*events, self._delta(delta)]

    def finished(self, usage: Mapping[str, Any]) -> list[Event]:
        """End the message and return its last events.

        Args:
            usage: Chat completions' usage object.
        """
        events = self._close()
        reason = self._end.finish_reason if self._end else "stop"
        stop_reason, stop_sequence = _STOP_REASONS.get(reason, "end_turn"), None
        if reason == "stop" and self._end is not None and isinstance(self._end.stop_reason, str):
            stop_reason, stop_sequence = "stop_sequence", self._end.stop_reason
        counts = message_usage(usage)
        self.message |= {
            "content": self._blocks,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": counts,
        }
        delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        return [*events, {"type": "message_delta", "delta": delta, "usage": counts}, {"type": "message_stop"}]

    # --- blocks --------------------------------------------------------------------------------

    def _continue(self, kind: str) -> list[Event]:
        if self._is_open and self._blocks[-1]["type"] == kind:
            return []
        if kind == "text":
            return self._open({"type": "text", "text": ""})
        return self._open({"type": "thinking", "thinking": "", "signature": ""})

    def _call(self, piece: CallPiece) -> list[Event]:
        events: list[Event] = []
        if not self._is_open or self._blocks[-1]["type"] != "tool_use" or piece.index != self._call_index:
            self._call_index = piece.index
            events = self._open({"type": "tool_use", "id": piece.call_id, "name": piece.name, "input": {}})
        if piece.arguments:
            self._texts.append(piece.arguments)
            events.append(self._delta({"type": "input_json_delta", "partial_json": piece.arguments}))
        return events

    def _open(self, block: dict[str, Any]) -> list[Event]:
        events = self._close()
        self._blocks.append(block)
        self._is_open = True
        start = {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(block)}
        return [*events, start]

    def _close(self) -> list[Event]:
        if not self._is_open:
            return []
        self._is_open = False
        block, text = self._blocks[-1], "".join(self._texts)
        self._texts = []
        events: list[Event] = []
        if block["type"] == "tool_use":
            is_cut = self._end is not None and self._end.finish_reason == "length"
            block["input"] = _object(text, is_cut=is_cut)
        else:
            block[block["type"]] = text
        if block["type"] == "thinking":
            block["signature"] = SIGNATURE
            events.append(self._delta({"type": "signature_delta", "signature": SIGNATURE}))
        return [*events, {"type": "content_block_stop", "index": len(self._blocks) - 1}]

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}


def message_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Convert chat completions' usage to Anthropic's, which counts three parts of the input.

    They are the tokens read from the cache; those behind them up to the last mark that is kept; and the rest. The
    second part is also counted by the marks' durations, each token by the first mark behind it.
    """
    details = usage["prompt_tokens_details"]
    cached = written = details["cached_tokens"]
    by_seconds = dict.fromkeys(TTL_SECONDS.values(), 0)
    for prefix in details.get("kept_prefixes", ()):
        if prefix["tokens"] > written:
            by_seconds[prefix["seconds"]] += prefix["tokens"] - written
            written = prefix["tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - written,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": written - cached,
        "cache_creation": {f"ephemeral_{ttl}_input_tokens": by_seconds[s] for ttl, s in TTL_SECONDS.items()},
        "output_tokens": usage["completion_tokens"],
    }


def message_error(error: BlazrError) -> dict[str, Any]:
    default = "invalid_request_error" if error.http_status < 500 else "api_error"
    kind = _ERROR_TYPES.get(error.http_status, default)
    message = _too_long(error.message) if isinstance(error, PromptTooLong) else error.message
    return {"type": "error", "error": {"type": kind, "message": message}}


def _too_long(message: str) -> str:
    """Return the message of a ``PromptTooLong`` in the words of Anthropic's API.

    Clients look for them to shorten the conversation ("prompt is too long") or to lower ``max_tokens``.
    """
    found = _CONTEXT.search(message)
    if found is None:
        return f"prompt is too long: {message}"
    context, alone, prompt, output = (int(figure or 0) for figure in found.groups())
    if output and prompt < context:
        return (
            f"input length and `max_tokens` exceed context limit: {prompt} + {output} > {context}, decrease input "
            "length or `max_tokens` and try again"
        )
    return f"prompt is too long: {alone or prompt} tokens > {context} maximum"


def _object(text: str, *, is_cut: bool) -> dict[str, Any]:
    """Parse the arguments of a call.

    Args:
        is_cut: Whether the message ended within the call, at ``max_tokens``.

    Returns:
        The object; of arguments that were cut off, the complete members, as Anthropic's client libraries return them
        from a stream. Other text that is no JSON object is returned as ``INVALID_JSON``, the member in which
        https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/fine-grained-tool-streaming wraps such text.
    """
    if not text.strip():
        return {}
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    if isinstance(found, dict):
        return found
    return _complete_members(text) if is_cut else {"INVALID_JSON": text}


def _complete_members(text: str) -> dict[str, Any]:
    """Return the complete members of a JSON object that was cut off."""
    ends: list[int] = []
    depth, is_string, is_escaped = 0, False, False
    for position, character in enumerate(text):
        if is_string:
            is_string = is_escaped or character != '"'
            is_escaped = character == "\\" and not is_escaped
        elif character == '"':
            is_string = True
        elif character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1
        elif character == "," and depth == 1:
            ends.append(position)
    if text[-1] in '"}]':  # a number may go on, a closed value doesn't
        ends.append(len(text))
    # If the text up to one end is an object, so is the text up to each earlier end: a binary search finds the last.
    num_complete = bisect.bisect_left(ends, True, key=lambda end: _members(text, end) is None)
    return _members(text, ends[num_complete - 1]) or {} if num_complete else {}


def _members(text: str, end: int) -> dict[str, Any] | None:
    """Return the object that ``text`` begins if it ends at ``end``; None: a name without a value, or no JSON at all."""
    try:
        found: dict[str, Any] = orjson.loads(text[:end] + "}")
    except orjson.JSONDecodeError:
        return None
    return found
