"""Write a running generation as server-sent events, or in the stream format of another API.

https://html.spec.whatwg.org/multipage/server-sent-events.html: each chunk is ``data: JSON`` and an empty line. Comments
keep a silent connection open in proxies. ``data: [DONE]`` is the end; after the start, an error is sent as
``data: {"error": …}`` before ``[DONE]``. Other APIs have a ``StreamFormat`` of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import orjson
from django.http import StreamingHttpResponse

from inference.api.exception_handler import as_blazr_error
from inference.dialects.openai.outputs.base import OutputFormatter
from inference.dialects.openai.outputs.formats import output_formatter
from inference.errors import BlazrError, GenerationFailed
from inference.host.coroutines import run_in_background
from inference.serving.generation import Generation
from inference.values.messages import GenerationEvent
from inference.values.queue_place import QUEUE_EVENT, QueuePlace

STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Of each streamed response; without the second one nginx buffers it."""
HEARTBEAT_S = 15.0
WAITED_S = 0.1
"""A request that waited less has no headers about it."""
STALL_S = 30.0
"""A client that reads nothing for so many seconds is disconnected."""
MAX_WAITING_BYTES = 1 << 20
"""Bytes of a stream that may wait for a slow client; a client that falls further behind gets an error."""

SendPart = Callable[[bytes], Awaitable[None]]
"""Sends a part of a response body; waits while the client reads slowly."""

_DONE = b"data: [DONE]\n\n"
_HEARTBEAT = b": keep-alive\n\n"
_MARK = "\ue000 text \ue001"
"""Placeholder for the text of a chunk; no member before the text contains the placeholder."""


def output_format(generation: Generation) -> OutputFormatter:
    """Return the format that writes a generation in OpenAI's shapes, whole or as chunks."""
    return output_formatter(
        generation.plan,
        generation.builder,
        request_id=generation.request_id,
        created=generation.created,
        model=generation.served.name,
    )


def sse_data(payload: Any) -> bytes:
    """Return one server-sent event."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def sse_event(name: str, payload: Any) -> bytes:
    """Return one server-sent event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(payload) + b"\n\n"


_CHUNK_KINDS = {"chat": "chat.completion.chunk", "completion": "text_completion"}


def queue_event(generation: Generation, place: QueuePlace) -> bytes:
    """Return the event that says where a waiting request stands.

    Its data is a chunk without choices, as the one with the usage is, so that clients that don't know it pass it over.
    """
    chunk = {
        "id": generation.request_id,
        "object": _CHUNK_KINDS[generation.plan.endpoint],
        "created": generation.created,
        "model": generation.served.name,
        "choices": [],
        "queue": place.to_dict(),
    }
    return sse_event(QUEUE_EVENT, chunk)


def queue_headers(generation: Generation) -> dict[str, str]:
    """Return the headers of a whole response that say how long it waited, and for what; none if it hardly did."""
    seconds, reason = generation.waited
    if seconds < WAITED_S:
        return {}
    return {"x-queue-seconds": f"{seconds:.3f}", "x-queue-reason": reason}


class StreamFormat(Protocol):
    """Writes a generation's events as one API's stream."""

    heartbeat: bytes
    """Sent on a stream that was silent for a while."""

    def waiting(self, place: QueuePlace) -> bytes:
        """Return the bytes that say where the request stands in the queue; only before ``opening``."""
        ...

    def opening(self) -> bytes:
        """Return the bytes before the first token; called once, when every prompt has started."""
        ...

    def parts(self, number: int, event: GenerationEvent) -> bytes:
        """Return the bytes of an event of prompt ``number``, which the generation's builder has already taken."""
        ...

    async def closing(self) -> bytes:
        """Return the end of a stream that succeeded."""
        ...

    async def failure(self, error: BlazrError) -> bytes:
        """Return the end of a stream that failed; the status line was sent, so the error is in the stream."""
        ...


class ChunkStream:
    """Stream format of OpenAI's completions and chat completions."""

    heartbeat = _HEARTBEAT

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._format = output_format(generation)
        self._include_usage = generation.plan.include_usage
        self._frame: tuple[bytes, bytes] | None = None

    def waiting(self, place: QueuePlace) -> bytes:
        """Return the event that says where the request stands."""
        return queue_event(self._generation, place)

    def opening(self) -> bytes:
        """Return the chunks with roles and echoed prompts."""
        return b"".join(sse_data(chunk) for chunk in self._format.opening())

    def parts(self, number: int, event: GenerationEvent) -> bytes:
        """Return the chunks of one event."""
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
        """Return the usage, if requested, and the end mark."""
        return (sse_data(self._format.usage_chunk()) if self._include_usage else b"") + _DONE

    async def failure(self, error: BlazrError) -> bytes:
        """Return the error object and the end mark."""
        return sse_data(error.to_openai()) + _DONE


class StreamReader(ABC):
    """Reads a generation's events and buffers parts until the client takes them; used in the event loop only.

    Args:
        generation: The generation; fails if more than ``MAX_WAITING_BYTES`` wait for a slow client.
    """

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.is_sending = False
        self._waiting: list[bytes] = []
        self._num_bytes = 0
        self._ready = asyncio.Event()
        self._has_ended = False

    @abstractmethod
    def take(self, number: int, event: GenerationEvent) -> None:
        """Format an event into parts, and ``put`` them."""

    @abstractmethod
    async def send(self, parts: list[bytes]) -> None:
        """Send parts to the client; wait while the client reads slowly."""

    def put(self, part: bytes) -> None:
        """Queue a part, which is sent as soon as the client has taken the earlier parts."""
        if not part:
            return
        if self.is_sending and self._num_bytes > MAX_WAITING_BYTES:
            self._waiting.clear()
            self._num_bytes = 0
            self.generation.give_up(
                GenerationFailed("The client reads too slowly: 1 MiB of output is waiting. Read faster.")
            )
            return
        self._waiting.append(part)
        self._num_bytes += len(part)
        self._ready.set()

    def end(self) -> None:
        """Record that no further event follows."""
        self._has_ended = True
        self._ready.set()

    async def write(self) -> None:
        """Send parts as they arrive, until the end."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            await self.flush()
            if self._has_ended and not self._waiting:
                return

    async def flush(self) -> None:
        """Send the queued parts."""
        if self._waiting:
            parts, self._waiting = self._waiting, []
            self._num_bytes = 0
            self.is_sending = True
            await self.send(parts)
            self.is_sending = False


class ByteWriter(StreamReader):
    """Writes the body of a streamed response: all queued parts as one piece, and heartbeats.

    Args:
        generation: A running generation.
        stream: Formats the events as bytes.
        send: Sends a piece to the client.
    """

    def __init__(self, generation: Generation, stream: StreamFormat, send: SendPart) -> None:
        super().__init__(generation)
        self._stream = stream
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._sent_at = self._loop.time()  # while a part is being sent: the start of sending
        self._timer = self._loop.call_later(min(HEARTBEAT_S, STALL_S), self._check)

    def take(self, number: int, event: GenerationEvent) -> None:
        """Queue the bytes of an event."""
        self.put(self._stream.parts(number, event))

    async def send(self, parts: list[bytes]) -> None:
        """Send parts as one piece."""
        self._sent_at = self._loop.time()
        await self._send(b"".join(parts))
        self._sent_at = self._loop.time()

    async def run(self) -> None:
        """Write the whole body."""
        try:
            try:
                if self.generation.is_waiting:
                    await self.generation.wait_for_start(self._report)
                self.put(self._stream.opening())
                await self.generation.deliver(self)
                last = await self._stream.closing()
            except Exception as error:
                last = await self._stream.failure(as_blazr_error(error))
            self.put(last)
            await self.flush()
        finally:
            self._timer.cancel()

    async def _report(self, place: QueuePlace | None) -> None:
        if place is not None:
            self.put(self._stream.waiting(place))
        await self.flush()  # heartbeats, too

    def _check(self) -> None:
        """Send a heartbeat on a silent stream; end the stream of a client that reads nothing."""
        passed_s = self._loop.time() - self._sent_at
        if self.is_sending and passed_s >= STALL_S and self._task is not None:
            self._task.cancel()
            return
        left_s = (STALL_S if self.is_sending else HEARTBEAT_S) - passed_s
        if left_s <= 0:
            self.put(self._stream.heartbeat)
            left_s = HEARTBEAT_S
        self._timer = self._loop.call_later(min(left_s, STALL_S), self._check)


class EventStream(StreamingHttpResponse):
    """The response that streams ``generation``.

    Args:
        generation: A running generation.
        stream: The format; None: OpenAI's chunks.
    """

    def __init__(self, generation: Generation, stream: StreamFormat | None = None) -> None:
        headers = {**STREAM_HEADERS, "x-request-id": generation.request_id}
        self.generation = generation
        self._stream = stream or ChunkStream(generation)
        super().__init__(_Body(self), content_type="text/event-stream", headers=headers)

    @property
    def has_failed(self) -> bool:
        """Whether the body, when it is written, ends with an error."""
        return self.generation.outcome != "completed"

    async def write_to(self, send: SendPart) -> None:
        """Send the whole body, each part as soon as it is ready; called once, instead of iterating."""
        await ByteWriter(self.generation, self._stream, send).run()


class _Body:
    """The body for Django's own handler, which calls ``close`` even if it never read the first part."""

    def __init__(self, response: EventStream) -> None:
        self._response = response
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return parts_of(self._response.write_to)

    def close(self) -> None:
        """Cancel the generation unless it has ended; called from any thread."""
        generation = self._response.generation
        if generation.is_closed:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed, so the generation has ended too
            self._loop.call_soon_threadsafe(lambda: run_in_background(generation.close()))


async def parts_of(write_to: Callable[[SendPart], Awaitable[None]]) -> AsyncGenerator[bytes, None]:
    """Yield the parts that ``write_to`` sends; each is sent after the earlier part was taken."""
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def send(part: bytes) -> None:
        queue.put_nowait(part)
        await queue.join()

    task = asyncio.ensure_future(write_to(send))
    task.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (part := await queue.get()) is not None:
            yield part
            queue.task_done()
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])
