"""Build a response from pieces of a chat: typed events, output items and the final state.

One class builds the stream and the whole response, so that both agree. Equal input gives equal events: a background
response is built again from the job's stored events, with the same ids and ``sequence_number``s.
Shapes: https://platform.openai.com/docs/api-reference/responses-streaming; reasoning is sent as
``response.reasoning_text.*``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.dialects.chat_bridge import CallPiece, EndPiece, Piece, ReasoningPiece
from inference.dialects.responses.namespaces import called_members
from inference.dialects.responses.returned_reasoning import encoded_reasoning
from inference.errors import BlazrError, InvalidRequest, QueueFull
from inference.values.queue_place import QUEUE_EVENT

Event = dict[str, Any]


class ResponseEvents:
    """Builds one response piece by piece.

    Args:
        response: The response object before generation; it is updated in place and becomes the final one.
        returns_reasoning: Whether reasoning is also written into ``encrypted_content``.
    """

    def __init__(self, response: dict[str, Any], *, returns_reasoning: bool = False) -> None:
        self.response = response
        self._returns_reasoning = returns_reasoning
        self._items: list[dict[str, Any]] = []
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._call_index = -1
        self._is_open = False
        self._end: EndPiece | None = None
        self._next_number = 0

    @property
    def is_over(self) -> bool:
        """Whether the last event was returned."""
        return self.response["status"] not in ("queued", "in_progress")

    # --- the course of a response --------------------------------------------------------------

    def queued(self) -> list[Event]:
        self.response["status"] = "queued"
        return [self._event("response.created", response=self._snapshot()),
                self._event("response.queued", response=self._snapshot())]  # fmt: skip

    def waiting(self, place: Mapping[str, Any]) -> list[Event]:
        """Return where the response stands in the queue, behind ``queued`` the first time; the event is blazr's own."""
        begun = [] if self._next_number else self.queued()
        return [*begun, self._event(QUEUE_EVENT, queue=dict(place))]

    def started(self) -> list[Event]:
        created = [] if self._next_number else ["response.created"]
        self.response["status"] = "in_progress"
        return [self._event(name, response=self._snapshot()) for name in (*created, "response.in_progress")]

    def take(self, piece: Piece) -> list[Event]:
        if isinstance(piece, EndPiece):
            self._end = piece
            return []
        if isinstance(piece, CallPiece):
            return self._call(piece)
        if isinstance(piece, ReasoningPiece):
            events = self._continue("reasoning")
            self._texts.append(piece.text)
            return [*events, self._delta("response.reasoning_text.delta", piece.text, content_index=0)]
        if not piece.text and not (self._is_open and self._items[-1]["type"] == "message"):
            # Tokens without text (held back, or part of a call) open no message.
            return []
        events = self._continue("message")
        self._texts.append(piece.text)
        self._logprobs += piece.logprobs
        delta = self._delta("response.output_text.delta", piece.text, content_index=0, logprobs=list(piece.logprobs))
        return [*events, delta]

    def finished(self, *, usage: Mapping[str, Any], now: int) -> list[Event]:
        """End the response and return its last events.

        Args:
            usage: Chat completions' usage object.
            now: Unix time.
        """
        reason = self._end.finish_reason if self._end else "stop"
        events = [] if self._items else self._continue("message")  # the output has at least one item, even if empty
        self.response["usage"] = response_usage(usage)
        if reason == "length":
            events += self._close("incomplete")
            return events + self._over("incomplete", incomplete_details={"reason": "max_output_tokens"})
        events += self._close("completed")
        return events + self._over("completed", completed_at=now)

    def failed(self, error: BlazrError) -> list[Event]:
        return self._close("incomplete", silently=True) + self._over("failed", error=response_error(error))

    def cancelled(self) -> list[Event]:
        """Return the events of a cancellation; the event is blazr's own, as OpenAI's streams just end."""
        return self._close("incomplete", silently=True) + self._over("cancelled")

    # --- items ---------------------------------------------------------------------------------

    def _continue(self, kind: str) -> list[Event]:
        """Ensure that the open item is of ``kind``: a message or reasoning."""
        if self._is_open and self._items[-1]["type"] == kind:
            return []
        item: dict[str, Any]
        if kind == "message":
            item = {"type": kind, "status": "in_progress", "role": "assistant", "content": []}
            events = self._open("msg", item)
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            item = {"type": kind, "status": "in_progress", "summary": [], "content": []}
            events = self._open("rs", item)
            part = {"type": "reasoning_text", "text": ""}
        return [*events, self._event("response.content_part.added", **self._place(), content_index=0, part=part)]

    def _call(self, piece: CallPiece) -> list[Event]:
        events: list[Event] = []
        if not self._is_open or self._items[-1]["type"] != "function_call" or piece.index != self._call_index:
            self._call_index = piece.index
            item = {
                "type": "function_call",
                "status": "in_progress",
                "call_id": f"call_{self._own_id(len(self._items))}",  # the piece's own id differs on each run
                **called_members(self.response["tools"], piece.name),
                "arguments": "",
            }
            events = self._open("fc", item)
        if piece.arguments:
            self._texts.append(piece.arguments)
            events.append(self._delta("response.function_call_arguments.delta", piece.arguments))
        return events

    def _open(self, prefix: str, item: dict[str, Any]) -> list[Event]:
        events = self._close("completed")
        number = len(self._items)
        item = {"id": f"{prefix}_{self._own_id(number)}", **item}
        self._items.append(item)
        self._is_open = True
        return [*events, self._event("response.output_item.added", output_index=number, item=dict(item))]

    def _own_id(self, number: int) -> str:
        """Return the id of item ``number``, which is the same on each run over the same events."""
        return f"{self.response['id'].partition('_')[2]}{number:02x}"

    def _close(self, status: str, *, silently: bool = False) -> list[Event]:
        """End the open item; ``silently``: without events, as the last event of the response suffices."""
        if not self._is_open:
            return []
        self._is_open = False
        item, text = self._items[-1], "".join(self._texts)
        place = self._place()
        self._texts = []
        item["status"] = status
        if item["type"] == "function_call":
            item["arguments"] = text
            events = [self._event("response.function_call_arguments.done", **place, name=item["name"], arguments=text)]
        elif item["type"] == "message":
            logprobs, self._logprobs = self._logprobs, []
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
            item["content"] = [part]
            events = [
                self._event("response.output_text.done", **place, content_index=0, text=text, logprobs=logprobs),
                self._event("response.content_part.done", **place, content_index=0, part=part),
            ]
        else:
            part = {"type": "reasoning_text", "text": text}
            item["content"] = [part]
            if self._returns_reasoning:
                item["encrypted_content"] = encoded_reasoning(text)
            events = [
                self._event("response.reasoning_text.done", **place, content_index=0, text=text),
                self._event("response.content_part.done", **place, content_index=0, part=part),
            ]
        if silently:
            self._next_number -= len(events)
            return []
        events.append(self._event("response.output_item.done", output_index=place["output_index"], item=dict(item)))
        return events

    # --- events --------------------------------------------------------------------------------

    def _over(self, status: str, **members: Any) -> list[Event]:
        self.response |= {"status": status, "output": self._items, **members}
        return [self._event(f"response.{status}", response=self._snapshot())]

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _delta(self, name: str, text: str, **members: Any) -> Event:
        return self._event(name, **self._place(), **members, delta=text)

    def _event(self, kind: str, /, **members: Any) -> Event:
        event = {"type": kind, "sequence_number": self._next_number, **members}
        self._next_number += 1
        return event

    def _snapshot(self) -> dict[str, Any]:
        return dict(self.response)


def response_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Convert chat completions' usage to that of the Responses API."""
    details = usage.get("completion_tokens_details") or {}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},  # writes are not billed
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": details.get("reasoning_tokens", 0)},
        "total_tokens": usage["total_tokens"],
    }


def response_error(error: BlazrError) -> dict[str, Any]:
    """Return the error member of a failed response; ``code`` is OpenAI's, ``type`` is blazr's own."""
    if isinstance(error, InvalidRequest):
        code = "invalid_prompt"
    else:
        code = "rate_limit_exceeded" if isinstance(error, QueueFull) else "server_error"
    return {"code": code, "message": error.message, "param": error.param, "type": error.code}
