"""Stream a background response from its job's stored events, from any event on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse

from inference.api.event_stream import HEARTBEAT_S, STREAM_HEADERS, sse_event
from inference.api.exception_handler import as_blazr_error
from inference.api.responses.background import BackgroundResponse
from inference.api.responses.shared_limit import SharedLimit
from inference.models import StoredResponse
from inference.records.stored_responses import response_finish

POLL_S = 0.25
"""Seconds between reads of the database; workers store events as often."""

STREAMS = SharedLimit(
    "streams of background responses at a time", "retrieve the response without stream.", total=256, per_caller=64
)
"""Each stream reads the database every ``POLL_S``."""


class FollowingStream(StreamingHttpResponse):
    """Streams a background response, which continues when the client disconnects.

    Args:
        row: The response's row, which has a job.
        held: The stream's share of ``STREAMS`` and of the bytes that are read, which ``close`` releases.
        starting_after: Events up to this number are omitted; -1: none.

    Attributes:
        has_failed: The body ended with an error, after which the client may resume.
    """

    has_failed = False

    def __init__(self, row: StoredResponse, held: ExitStack, *, starting_after: int = -1) -> None:
        self._held = held
        headers = {**STREAM_HEADERS, "x-request-id": row.response_id}
        super().__init__(_Frames(self, row, starting_after), content_type="text/event-stream", headers=headers)

    def close(self) -> None:
        """Release the shares; the server calls this at the end, also of a stream that was never read."""
        self._held.close()
        super().close()


class _Frames:
    def __init__(self, response: FollowingStream, row: StoredResponse, starting_after: int) -> None:
        self._response = response
        self._background = BackgroundResponse(row)
        self._starting_after = starting_after

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _frames(self._response, self._background, self._starting_after)


async def _frames(
    response: FollowingStream, background: BackgroundResponse, starting_after: int
) -> AsyncGenerator[bytes, None]:
    spoken_at = time.monotonic()
    try:
        while True:
            events = await sync_to_async(background.read)()
            if background.is_over:
                await sync_to_async(response_finish)(background.row, background.response)
            frames = [sse_event(event["type"], event) for event in events if event["sequence_number"] > starting_after]
            if frames:
                yield b"".join(frames)
                spoken_at = time.monotonic()
            elif time.monotonic() - spoken_at >= HEARTBEAT_S:
                yield b": keep-alive\n\n"
                spoken_at = time.monotonic()
            if background.is_over:
                return
            await asyncio.sleep(POLL_S)
    except Exception as error:
        # The client may resume after the last event that it has.
        response.has_failed = True
        known = as_blazr_error(error)
        yield sse_event("error", {"type": "error", "code": known.code, "message": known.message, "param": known.param})
