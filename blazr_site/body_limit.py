"""Limit request bodies while they arrive, as an ASGI wrapper.

Without the wrapper, Django spools a body of any length to disk before a view can refuse it.
"""

from __future__ import annotations

import asyncio
import contextlib
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
"""Longest pause in seconds within a body; the connection of a slower client is closed."""
LINGER_S = 1.0
"""Seconds for which the rest of a refused body is read and dropped, so that its client gets the response."""


class BodyLimit:
    """Responds 413 to bodies over ``max_bytes`` and closes the connection.

    Args:
        app: The wrapped application.
        max_bytes: Limit of a body; a larger declared length is refused without reading the body.
        larger: Paths with a larger limit, for authenticated callers only, so that others can't fill the disk.
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
            await self._refuse(receive, send, max_bytes)
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
            await self._refuse(receive, send, max_bytes)

    async def _refuse(self, receive: Receive, send: Send, max_bytes: int) -> None:
        """Send the error, then close. Closing while the client still writes would reset the connection at once."""
        error = RequestTooLarge(f"The request body has more than {max_bytes} bytes, the limit of this server.")
        body = orjson.dumps(error.to_openai())
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b""})


async def _is_known(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the caller is authenticated; the view reports errors of the key."""
    authorization = headers.get(b"authorization")
    try:
        return await principal_from_headers(authorization.decode("latin1") if authorization else None) is not None
    except BlazrError:
        return False


class _TooLarge(Exception):
    """Raised in ``receive`` to unwind the application."""
