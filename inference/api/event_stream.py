"""Server-sent events: a running generation as the byte chunks of an HTTP answer.

https://html.spec.whatwg.org/multipage/server-sent-events.html: ``data: JSON`` and an empty line per
chunk, a comment now and then so that proxies keep a silent connection, ``data: [DONE]`` at the end. An
error after the start comes as ``data: {"error": …}``, then ``[DONE]``. Other APIs write their events by
a ``StreamFormat`` of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Protocol

import orjson
from django.http import StreamingHttpResponse

from inference.api.exception_handler import as_blazr_error
from inference.api.part_writer import PartWriter
from inference.errors import BlazrError
from inference.host.coroutines import run_in_background
from inference.serving.generation import Generation
from inference.values.messages import GenerationEvent

HEARTBEAT_S = 15.0
STALL_S = 30.0
"""A client that takes nothing for so long is cut: what is generated for it would only pile up."""

_DONE = b"data: [DONE]\n\n"
_HEARTBEAT = b": keep-alive\n\n"
_MARK = "\ue000 text \ue001"
"""Stands for the text of a chunk; nothing that comes before the text in a chunk has it."""


def sse_data(payload: Any) -> bytes:
    """One event."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def sse_event(name: str, payload: Any) -> bytes:
    """One event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(payload) + b"\n\n"


class StreamFormat(Protocol):
    """Writes a generation's events as one API's stream."""

    heartbeat: bytes
    """Sent when nothing came for a while."""

    def opening(self) -> bytes:
        """What precedes the first token; called once, when every prompt has started."""
        ...

    def parts(self, number: int, event: GenerationEvent) -> bytes:
        """One event of prompt ``number``; the generation's builder has it already."""
        ...

    async def closing(self) -> bytes:
        """The end of a stream that went well."""
        ...

    async def failure(self, error: BlazrError) -> bytes:
        """The end of one that didn't; the status line is out, so the error travels in the stream."""
        ...


class ChunkStream:
    """OpenAI's chunks of completions and chat completions."""

    heartbeat = _HEARTBEAT

    def __init__(self, generation: Generation) -> None:
        self._format = generation.format
        self._include_usage = generation.plan.include_usage
        self._frame: tuple[bytes, bytes] | None = None

    def opening(self) -> bytes:
        """Roles and echoed prompts."""
        return b"".join(sse_data(chunk) for chunk in self._format.opening())

    def parts(self, number: int, event: GenerationEvent) -> bytes:
        """Chunks of one event."""
        text = self._format.plain_text(number, event)
        if text is None:
            return b"".join(sse_data(chunk) for chunk in self._format.chunks(number, event))
        if self._frame is None:
            chunks = self._format.chunks(number, {**event, "text": _MARK})
            begin, _, end = b"".join(sse_data(chunk) for chunk in chunks).partition(orjson.dumps(_MARK))
            self._frame = begin, end
        begin, end = self._frame
        return b"%b%b%b" % (begin, orjson.dumps(text), end)

    async def closing(self) -> bytes:
        """The usage, if it was asked for, and the end mark."""
        return (sse_data(self._format.usage_chunk()) if self._include_usage else b"") + _DONE

    async def failure(self, error: BlazrError) -> bytes:
        """The error object and the end mark."""
        return sse_data(error.to_openai()) + _DONE


class EventStream(StreamingHttpResponse):
    """The answer that streams ``generation``.

    Args:
        generation: A running one.
        stream: How it is written; None: as OpenAI's chunks.
    """

    def __init__(self, generation: Generation, stream: StreamFormat | None = None) -> None:
        headers = {
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",  # nginx would collect chunks
            "x-request-id": generation.request_id,
        }
        self._stream = stream or ChunkStream(generation)
        super().__init__(_Body(generation, self._stream), content_type="text/event-stream", headers=headers)
        self.generation = generation

    def parts(self, writer: PartWriter | None = None) -> AsyncGenerator[bytes, None]:
        """The body's parts, for a server that takes them as they are; once, in place of iterating.

        With a ``writer`` most of them don't come this way: it gets them at once.
        """
        return _chunks(self.generation, self._stream, writer)


class _Body:
    """The body's chunks; Django calls ``close`` at the end even when it never asked for the first one."""

    def __init__(self, generation: Generation, stream: StreamFormat) -> None:
        self._generation = generation
        self._stream = stream
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _chunks(self._generation, self._stream)

    def close(self) -> None:
        """Cancel the generation unless it is over; called from any thread."""
        if self._generation.is_closed:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: so is everything
            self._loop.call_soon_threadsafe(lambda: run_in_background(self._generation.close()))


async def _chunks(
    generation: Generation, stream: StreamFormat, writer: PartWriter | None = None
) -> AsyncGenerator[bytes, None]:
    def write_now(event: GenerationEvent) -> None:
        assert writer is not None
        if part := stream.parts(0, event):
            writer.write_now(part)

    is_open = False
    with _StallGuard() as guard:
        try:
            async with contextlib.aclosing(generation.events(idle_s=HEARTBEAT_S)) as batches:
                async for number, events in batches:
                    if not events:
                        guard.watch()
                        yield stream.heartbeat
                        guard.rest()
                        continue
                    parts: list[bytes] = []
                    if not is_open:
                        is_open = True
                        parts.append(stream.opening())
                        if writer is not None:
                            generation.follow(write_now, lambda: not writer.is_behind)
                    # A client that fell behind gets all that waits in one write.
                    parts += [stream.parts(number, event) for event in events]
                    if any(parts):
                        guard.watch()
                        yield b"".join(parts)
                        guard.rest()
            yield await stream.closing()
        except Exception as error:
            yield await stream.failure(as_blazr_error(error))


class _StallGuard:
    """Cancels the task that writes to a client which has stopped reading.

    One timer for the whole stream, which looks how long the chunk of that moment has been waiting.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._since: float | None = None
        self._timer = self._loop.call_later(STALL_S, self._look)

    def __enter__(self) -> _StallGuard:
        return self

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()

    def watch(self) -> None:
        """A chunk is being handed over; the client has ``STALL_S`` to take it."""
        self._since = self._loop.time()

    def rest(self) -> None:
        """It was taken."""
        self._since = None

    def _look(self) -> None:
        now = self._loop.time()
        left = STALL_S if self._since is None else self._since + STALL_S - now
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        elif self._task is not None:
            self._task.cancel()
