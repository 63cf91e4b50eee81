"""ASGI wrapper that stops request bodies at a limit, while they arrive.

Django would spool a body of any length to disk before a view could refuse it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import orjson

from inference.access.authentication import principal_from_headers
from inference.errors import BlazrError, RequestTooLarge

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

BODY_TIMEOUT_S = 60.0
"""Longest pause within a body; a client that drips for longer is cut."""


class BodyLimit:
    """Answers 413 to bodies over ``max_bytes`` and closes the connection.

    Args:
        app: The application behind.
        max_bytes: Most bytes of a body; a declared length over it is refused unread.
        larger: Paths with a limit of their own, for callers who may call at all: strangers can't fill the disk.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, larger: Mapping[str, int] | None = None) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.larger = dict(larger or {})

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        max_bytes = self.max_bytes
        if scope["path"] in self.larger and await _is_known(headers):
            max_bytes = self.larger[scope["path"]]
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > max_bytes:
            await self._refuse(send, max_bytes)
            return
        received = 0
        complete = False

        async def limited() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout(BODY_TIMEOUT_S):
                    message = await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > max_bytes:
                raise _TooLarge
            return message

        try:
            await self.app(scope, limited, send)
        except _TooLarge:
            # Django reads the whole body before its view runs, so nothing has been sent yet.
            await self._refuse(send, max_bytes)

    async def _refuse(self, send: Send, max_bytes: int) -> None:
        error = RequestTooLarge(f"The request body has more than {max_bytes} bytes, the limit of this server.")
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
        await send({"type": "http.response.body", "body": orjson.dumps(error.to_openai())})


async def _is_known(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the caller gets past the door; what is wrong with the key is told by the view."""
    authorization = headers.get(b"authorization")
    try:
        return await principal_from_headers(authorization.decode("latin1") if authorization else None) is not None
    except BlazrError:
        return False


class _TooLarge(Exception):
    """Unwinds the application from inside ``receive``."""
