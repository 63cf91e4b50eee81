"""WebSocket ``/v1/stream``: several generations over one connection.

The client sends JSON text frames:

    {"type": "completion" | "chat", "id": "a", "request": {…}}   start; the body of the HTTP endpoint
    {"type": "cancel", "id": "a"}                                stop it
    {"type": "ping"}                                             answered by {"type": "pong"}

``id`` is the client's own name for the request, unique among those it has running; left out, the server
chooses one. ``request.stream`` may be left out; false is refused. The server sends, per request and in this order:

    {"type": "accepted", "id": "a", "request_id": "chatcmpl-…", "created": …, "model": …}
    {"type": "chunk", "id": "a", "chunk": {…}}                   exactly the HTTP stream's chunk objects
    {"type": "done", "id": "a", "usage": {…}, "ttft_s": …, "duration_s": …}
  or
    {"type": "error", "id": "a", "error": {message, type, param, code}, "status": 429}
  or
    {"type": "cancelled", "id": "a"}

Exactly one of the last three ends a request. A frame that can't be read is answered by an ``error`` whose id is
null. Callers are those of HTTP (a key in the Authorization header, or nobody in particular on loopback)
and staff with a session on this site; others are closed with code 4401, and so is a connection whose key was revoked
or has expired, or whose session has ended, when it sends its next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings

from inference.access.accounts import account_now, principal_of_user
from inference.access.authentication import principal_of_websocket
from inference.api.event_stream import StreamReader, output_format
from inference.api.exception_handler import as_blazr_error
from inference.dialects.openai.requests import plan_from_body
from inference.errors import (
    BlazrError,
    InvalidRequest,
    NotAuthenticated,
    QueueFull,
    RequestTooLarge,
    UnsupportedFeature,
)
from inference.host.client_json import read_by_size, read_json
from inference.host.coroutines import run_in_background
from inference.serving.generation import Generation, generation_start
from inference.values.messages import GenerationEvent
from inference.values.principal import Principal, principal_set
from inference.values.queue_place import QueuePlace

if TYPE_CHECKING:
    from blazr_site.body_budget import BodyBudget

MAX_REQUESTS_PER_SOCKET = 64
MAX_ID_CHARS = 64
CLOSE_NOT_AUTHENTICATED = 4401


class StreamConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """One connection; each running request is a task of its own.

    Args:
        arriving: Counts the bytes of messages until they are taken; the connection is closed at its limit.
        running: Counts the bytes of running requests; further ones are refused at its limit.
    """

    # No such layer: tokens come from the hub, and a connection shouldn't depend on a subscription that nobody uses.
    channel_layer_alias = "none"

    def __init__(self, *args: Any, arriving: BodyBudget, running: BodyBudget, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._arriving_bytes, self._running_bytes = arriving, running
        self.principal: Principal | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self._num_started = 0
        self._write_lock = asyncio.Lock()

    async def connect(self) -> None:
        """Find out who calls; nobody is turned away before the handshake, so that browsers see the code."""
        self.principal = await principal_of_websocket(self.scope)
        admit = self.scope.get("state", {}).get("admit")  # none under another server than ``blazr_site.web``
        if self.principal is not None and admit is not None:
            admit(self._arriving_bytes, self.principal.tenant)
        await self.accept()
        if self.principal is None:
            await self.close(code=CLOSE_NOT_AUTHENTICATED)

    async def disconnect(self, code: int) -> None:
        """Cancel what still runs."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Take one frame."""
        if self.principal is None:
            return
        request_id: str | None = None
        try:
            raw = text_data.encode() if text_data is not None else bytes_data or b""
            frame = await self._frame(raw)
            kind, request_id = frame.get("type"), self._client_id(frame)
            if kind in ("completion", "chat"):
                self.principal = await self._caller_now(self.principal)
                self.principal.check_scope("GET", self.scope["path"])
                self._start(frame, kind, request_id, len(raw), self.principal.tenant)
            elif kind == "cancel":
                self._cancel(request_id)
            elif kind == "ping":
                await self._send({"type": "pong"})
            else:
                raise InvalidRequest(
                    f"type is {str(kind)[:40]!r}; known are completion, chat, cancel and ping.", param="type"
                )
        except NotAuthenticated as error:
            await self._send_error(request_id, error)
            self.principal = None
            await self.close(code=CLOSE_NOT_AUTHENTICATED)
        except BlazrError as error:
            await self._send_error(request_id, error)

    async def _caller_now(self, principal: Principal) -> Principal:
        """The caller as the rows of its key or account say today: a connection may outlive both.

        Raises:
            NotAuthenticated: The key was revoked, or has expired; or the session has ended.
        """
        if principal.kind == "user":
            account = await sync_to_async(lambda: principal_of_user(account_now(self.scope)))()
            if account is None:
                raise NotAuthenticated("The session of this connection has ended; sign in again.")
            return account
        if principal.kind != "key":
            return principal
        found = await principal_of_websocket(self.scope)
        if found is None:
            raise NotAuthenticated("The API key of this connection was revoked, or has expired.")
        return found

    async def _frame(self, raw: bytes) -> dict[str, Any]:
        if len(raw) > settings.BLAZR_MAX_BODY_BYTES:
            raise RequestTooLarge(f"A frame has more than {settings.BLAZR_MAX_BODY_BYTES} bytes, the server's limit.")
        frame = await read_json(raw, lambda value: value)
        if not isinstance(frame, dict):
            raise InvalidRequest("A frame must be a JSON object.")
        for name in frame:
            if name not in ("type", "id", "request"):
                raise UnsupportedFeature(f"{name[:80]!r} is not a member of a frame; remove it.", param=name[:80])
        return frame

    @staticmethod
    def _client_id(frame: dict[str, Any]) -> str | None:
        value = frame.get("id")
        if value is not None and (not isinstance(value, str) or not 0 < len(value) <= MAX_ID_CHARS):
            raise InvalidRequest(f"id must be a string of 1 to {MAX_ID_CHARS} characters.", param="id")
        return value

    def _start(self, frame: dict[str, Any], kind: Any, client_id: str | None, num_bytes: int, tenant: str) -> None:
        if client_id is None:
            self._num_started += 1
            client_id = f"request-{self._num_started}"
        if client_id in self._running:
            raise InvalidRequest(f"The id {client_id!r} is still running on this connection.", param="id")
        if len(self._running) >= MAX_REQUESTS_PER_SOCKET:
            raise QueueFull(
                f"{MAX_REQUESTS_PER_SOCKET} requests are running on this connection; wait for one to end.",
                retry_after_s=1,
            )
        body = frame.get("request")
        if not isinstance(body, dict):
            raise InvalidRequest("request must be an object: the body of the HTTP endpoint.", param="request")
        if body.get("stream") is False:
            raise UnsupportedFeature("stream: false is not for WebSockets; leave it out.", param="stream")
        self._running_bytes.hold(tenant, num_bytes)
        task = run_in_background(self._run(client_id, kind, {**body, "stream": True}, num_bytes))
        task.add_done_callback(lambda _: self._running_bytes.release(tenant, num_bytes))
        self._running[client_id] = task

    def _cancel(self, client_id: str | None) -> None:
        if client_id is None:
            raise InvalidRequest("cancel needs the id of a request.", param="id")
        # Unknown ids are no error: the request may have ended while the frame was under way.
        task = self._running.get(client_id)
        if task is not None:
            task.cancel()

    async def _run(self, client_id: str, kind: Any, body: dict[str, Any], num_bytes: int) -> None:
        """One request from its frame to its last frame."""
        assert self.principal is not None
        principal_set(self.principal)
        started = time.monotonic()
        generation: Generation | None = None
        try:
            plan = await read_by_size(num_bytes, lambda: plan_from_body(kind, body))
            generation = await generation_start(plan=plan, principal=self.principal)
            accepted = {
                "type": "accepted",
                "id": client_id,
                "request_id": generation.request_id,
                "created": generation.created,
                "model": generation.served.name,
            }
            await self._send(accepted)
            if generation.is_waiting:
                await generation.wait_for_start(partial(self._send_place, client_id))
            writer = _FrameWriter(generation, client_id, self._send_text)
            await generation.deliver(writer)
            await writer.flush_usage()
            first_token_at = writer.first_token_at
            done = {
                "type": "done",
                "id": client_id,
                "usage": generation.builder.usage(),
                "ttft_s": None if first_token_at is None else round(first_token_at - started, 4),
                "duration_s": round(time.monotonic() - started, 4),
            }
            self._running.pop(client_id, None)
            await self._send(done)
        except asyncio.CancelledError:
            self._running.pop(client_id, None)
            with contextlib.suppress(Exception):  # the socket may be the reason
                await self._send({"type": "cancelled", "id": client_id})
        except Exception as error:
            self._running.pop(client_id, None)
            with contextlib.suppress(Exception):
                await self._send_error(client_id, as_blazr_error(error))
        finally:
            # ``deliver`` doesn't close it when the socket broke before.
            if generation is not None:
                await asyncio.shield(run_in_background(generation.close()))

    async def _send_error(self, client_id: str | None, error: BlazrError) -> None:
        await self._send(
            {"type": "error", "id": client_id, "error": error.to_openai()["error"], "status": error.http_status}
        )

    async def _send_place(self, client_id: str, place: QueuePlace | None) -> None:
        if place is not None:
            await self._send({"type": "queue", "id": client_id, "queue": place.to_dict()})

    async def _send(self, payload: dict[str, Any]) -> None:
        await self._send_text(orjson.dumps(payload))

    async def _send_text(self, frame: bytes) -> None:
        # One frame at a time: the server below isn't made for concurrent writers.
        async with self._write_lock:
            await self.send(text_data=frame.decode())


class _FrameWriter(StreamReader):
    """Writes a generation as frames, a chunk each.

    Attributes:
        first_token_at: ``time.monotonic()`` of the first token; None before.
    """

    def __init__(self, generation: Generation, client_id: str, send_frame: Callable[[bytes], Awaitable[None]]) -> None:
        super().__init__(generation)
        self.first_token_at: float | None = None
        self._client_id = client_id
        self._send_frame = send_frame
        self._format = output_format(generation)
        self._put_chunks(self._format.opening())

    def take(self, number: int, event: GenerationEvent) -> None:
        """Put the frames of an event."""
        if self.first_token_at is None and event.get("token_ids"):
            self.first_token_at = time.monotonic()
        self._put_chunks(self._format.chunks(number, event))

    async def send(self, parts: list[bytes]) -> None:
        """Send each frame by itself."""
        for frame in parts:
            await self._send_frame(frame)

    async def flush_usage(self) -> None:
        """Send the usage, if it was asked for."""
        if self.generation.plan.include_usage:
            self._put_chunks([self._format.usage_chunk()])
        await self.flush()

    def _put_chunks(self, chunks: Iterable[Any]) -> None:
        for chunk in chunks:
            self.put(orjson.dumps({"type": "chunk", "id": self._client_id, "chunk": chunk}))
