"""Write a generation in Ollama's shapes: lines of a stream, or one object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from inference.api.event_stream import output_format
from inference.api.ollama.base import line, nanoseconds, now
from inference.dialects.chat_bridge import CallPiece, EndPiece, Piece, ReasoningPiece, TextPiece, pieces
from inference.errors import BlazrError
from inference.serving.generation import Generation
from inference.values.messages import GenerationEvent
from inference.values.queue_place import QueuePlace


class RunningGeneration:
    """Follows ``generation``; also the ``StreamFormat`` of its stream.

    Args:
        generation: A started generation, of a chat or a completion.
        model: The model's name as the client wrote it.
        is_chat: True: the shape of /api/chat, with a message; False: the shape of /api/generate.
    """

    heartbeat = b""  # clients read every line as JSON

    def __init__(self, generation: Generation, model: str, *, is_chat: bool) -> None:
        self._generation = generation
        self._format = output_format(generation)
        self._model = model
        self._is_chat = is_chat
        self._calls: dict[int, tuple[str, list[str]]] = {}
        self._reason = "stop"

    async def whole(self) -> dict[str, Any]:
        """Return the response as one object.

        Raises:
            BlazrError: The generation failed.
        """
        text: list[str] = []
        thinking: list[str] = []

        def take(number: int, event: GenerationEvent) -> None:
            for piece in self._take(number, event):
                (thinking if isinstance(piece, ReasoningPiece) else text).append(piece.text)

        await self._generation.wait(take)
        return self._object("".join(text), "".join(thinking), is_last=True)

    # --- as a stream ---------------------------------------------------------------------------

    def waiting(self, place: QueuePlace) -> bytes:
        """Return nothing: requests of this API can't ask where they stand."""
        return b""

    def opening(self) -> bytes:
        """Return nothing, as no line precedes the first token."""
        return b""

    def parts(self, number: int, event: GenerationEvent) -> bytes:
        """Return one line per piece of text."""
        lines = []
        for piece in self._take(number, event):
            is_thinking = isinstance(piece, ReasoningPiece)
            lines.append(line(self._object("" if is_thinking else piece.text, piece.text if is_thinking else "")))
        return b"".join(lines)

    async def closing(self) -> bytes:
        """Return the tool calls, if any, and the line with the counts."""
        calls = line(self._object("", "", has_calls=True)) if self._calls else b""
        return calls + line(self._object("", "", is_last=True, has_calls=False))

    async def failure(self, error: BlazrError) -> bytes:
        """Return the error as a line, because the status line was sent already."""
        return line({"error": error.message})

    # --- inside --------------------------------------------------------------------------------

    def _take(self, number: int, event: GenerationEvent) -> Iterator[ReasoningPiece | TextPiece]:
        for piece in self._pieces(number, event):
            if isinstance(piece, EndPiece):
                self._reason = "length" if piece.finish_reason == "length" else "stop"
            elif isinstance(piece, CallPiece):
                name, arguments = self._calls.setdefault(piece.index, (piece.name, []))
                self._calls[piece.index] = (name or piece.name, arguments)
                arguments.append(piece.arguments)
            elif piece.text:
                yield piece

    def _pieces(self, number: int, event: GenerationEvent) -> Iterator[Piece]:
        if self._generation.plan.endpoint == "chat":
            for chunk in self._format.chunks(number, event):
                yield from pieces(chunk)
        elif event["type"] == "delta":
            yield TextPiece(event.get("text", ""))
            if event.get("finish_reason") is not None:
                yield EndPiece(str(event["finish_reason"]), event.get("stop_reason"))

    def _object(
        self, text: str, thinking: str, *, is_last: bool = False, has_calls: bool | None = None
    ) -> dict[str, Any]:
        found: dict[str, Any] = {"model": self._model, "created_at": now()}
        if self._is_chat:
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if thinking:
                message["thinking"] = thinking
            if self._calls and (is_last if has_calls is None else has_calls):
                message["tool_calls"] = [_call(name, arguments) for name, arguments in self._calls.values()]
            found["message"] = message
        else:
            found["response"] = text
            if thinking:
                found["thinking"] = thinking
        found["done"] = is_last
        if is_last:
            found |= {"done_reason": self._reason, **self._counts()}
        return found

    def _counts(self) -> dict[str, int]:
        usage = self._generation.builder.prompts[0].usage
        if usage is None:
            return {}
        return {
            "total_duration": nanoseconds(usage["duration_s"]),
            "load_duration": nanoseconds(usage["queue_s"]),
            "prompt_eval_count": usage["prompt_tokens"],
            "prompt_eval_duration": nanoseconds(max(0.0, usage["ttft_s"] - usage["queue_s"])),
            "eval_count": usage["completion_tokens"],
            "eval_duration": nanoseconds(max(0.0, usage["duration_s"] - usage["ttft_s"])),
        }


def _call(name: str, arguments: list[str]) -> dict[str, Any]:
    written = "".join(arguments)
    try:
        values = orjson.loads(written or "{}")
    except orjson.JSONDecodeError:
        values = {"_": written}  # a token limit cut the JSON; Ollama's shape can't hold a partial object
    return {"function": {"name": name, "arguments": values}}
