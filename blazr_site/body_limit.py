"""Decide who may send a body, and limit bodies while they arrive, as an ASGI wrapper.

Django reads a whole body before a view can ask for a key. The wrapper therefore authenticates from the headers first,
and counts the bytes, the time and the requests (docs/decisions/0042-bodies.md).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from django.conf import settings
from django.http import HttpResponse
from django.urls import ResolverMatch

from blazr_site.body_budget import ANONYMOUS, MAX_ANONYMOUS_BODY_BYTES, RETRY_AFTER_S, BodyBudget
from blazr_site.callers import body_caller
from blazr_site.request_thread import request_thread
from blazr_site.routes import (
    BLOB_ROUTE,
    DISK_ROUTES,
    FILE_ROUTES,
    LARGE_ROUTES,
    PIECE_ROUTE,
    SMALL_BODY_BYTES,
    api_view,
)
from inference.api.exception_handler import RequestTimeout, error_response
from inference.errors import BlazrError, InvalidRequest, RequestTooLarge, StorageFull, Unavailable
from models_registry.upload_rules import CHUNK_BYTES

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

BODY_TIMEOUT_S = 20.0
"""Seconds for a body, besides those that its bytes take at ``MIN_BYTES_PER_S``."""
MIN_BYTES_PER_S = 64 << 10
LINGER_S = 1.0
"""Seconds for which the rest of a refused body is read and dropped, so that its client gets the response."""
MAX_OPEN_REQUESTS = 2048
"""Requests that the process serves at the same time, streams included."""
_FORM_BYTES = 1 << 16


class BodyLimit:
    """Refuses bodies of unknown callers, that are too large or too slow, or that exceed the budget.

    Args:
        app: The wrapped application.
        budget: Counts the bytes that are held; shared by all wrappers of the process.
        max_bytes: Limit of a body on the routes for prompts.
    """

    def __init__(self, app: ASGIApp, budget: BodyBudget, *, max_bytes: int) -> None:
        self._app = app
        self._budget = budget
        self._limits = {
            **dict.fromkeys(LARGE_ROUTES, max_bytes),
            **dict.fromkeys(FILE_ROUTES, settings.BLAZR_MAX_FILE_BYTES + _FORM_BYTES),
            PIECE_ROUTE: CHUNK_BYTES + _FORM_BYTES,
            BLOB_ROUTE: settings.BLAZR_MAX_UPLOAD_BYTES,
        }
        self._small_bytes = min(max_bytes, SMALL_BODY_BYTES)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._budget.open_request():
            async with request_thread():
                await self._serve(scope, receive, send)

    async def _serve(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        route = scope["route"]
        if scope["http_version"] == "1.1" and [name for name, _ in scope["headers"]].count(b"host") != 1:
            error: BlazrError = InvalidRequest("A request of HTTP/1.1 needs one Host header (RFC 9112, section 3.2).")
            await _refuse(route, error, receive, send)
            return
        if b"transfer-encoding" not in headers and headers.get(b"content-length", b"0") == b"0":
            await self._app(scope, receive, send)
        elif self._budget.num_open > MAX_OPEN_REQUESTS:
            error = Unavailable(
                f"{MAX_OPEN_REQUESTS} requests are open, the limit of this server; try again.",
                retry_after_s=RETRY_AFTER_S,
            )
            await _refuse(route, error, receive, send)
        else:
            await self._serve_with_body(scope, headers, route, receive, send)

    async def _serve_with_body(
        self,
        scope: MutableMapping[str, Any],
        headers: Mapping[bytes, bytes],
        route: ResolverMatch | None,
        receive: Receive,
        send: Send,
    ) -> None:
        name = "" if route is None else route.view_name
        max_bytes = self._limits.get(name, self._small_bytes)
        try:
            caller = await body_caller(scope, route)
            if caller is None:
                caller, max_bytes = ANONYMOUS, min(max_bytes, MAX_ANONYMOUS_BODY_BYTES)
            # Django keeps a file on disk, but for its first bytes.
            is_on_disk = name in DISK_ROUTES
            most_held = min(max_bytes, settings.FILE_UPLOAD_MAX_MEMORY_SIZE) if is_on_disk else max_bytes
            declared = headers.get(b"content-length", b"0")
            if not declared.isdigit() or len(declared) > 18 or int(declared) > max_bytes:
                raise _too_large(max_bytes)
            self._budget.check(caller, min(int(declared), most_held))
        except BlazrError as error:
            await _refuse(route, error, receive, send)
            return
        body = _Body(receive, self._budget, caller, max_bytes, most_held)

        async def send_and_release(message: Message) -> None:
            body.release()
            await send(message)

        try:
            await self._app(scope, body.receive, send_and_release)
        except _Refused as refused:
            # Django reads the whole body before its view runs, so nothing has been sent yet.
            await _refuse(route, refused.error, receive, send)
        except StorageFull as error:  # raised while the body is read, likewise
            await _refuse(route, error, receive, send)
        finally:
            body.release()


class _Body:
    """One request's body: limits its bytes and its time, and counts what the process holds of it."""

    def __init__(self, receive: Receive, budget: BodyBudget, caller: str, max_bytes: int, most_held: int) -> None:
        self._receive = receive
        self._budget = budget
        self._caller = caller
        self._max_bytes = max_bytes
        self._most_held = most_held
        self._num_received = 0
        self._num_held = 0
        self._is_complete = False
        self._started = asyncio.get_running_loop().time()

    async def receive(self) -> Message:
        """Return the next message.

        Raises:
            _Refused: The body exceeds a limit.
        """
        if self._is_complete:
            return await self._receive()
        until = self._started + BODY_TIMEOUT_S + self._num_received / MIN_BYTES_PER_S
        try:
            async with asyncio.timeout_at(until):
                message = await self._receive()
        except TimeoutError:
            raise _Refused(
                RequestTimeout(
                    f"The request body arrived too slowly: {self._num_received} bytes in "
                    f"{until - self._started:.0f} s; {MIN_BYTES_PER_S} bytes a second are needed."
                )
            ) from None
        self._is_complete = not message.get("more_body", False)
        self._num_received += len(message.get("body", b""))
        if self._num_received > self._max_bytes:
            raise _Refused(_too_large(self._max_bytes))
        more = min(self._num_received, self._most_held) - self._num_held
        try:
            self._budget.hold(self._caller, more)
        except BlazrError as error:
            raise _Refused(error) from None
        self._num_held += more
        return message

    def release(self) -> None:
        """Stop to count the body, as soon as the response begins."""
        if self._num_held:
            self._budget.release(self._caller, self._num_held)
            self._num_held = 0


class _Refused(Exception):
    """Raised in ``receive`` to unwind the application."""

    def __init__(self, error: BlazrError) -> None:
        super().__init__(error.message)
        self.error = error


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(
        f"The request body has more than {max_bytes} bytes, the limit of this path; send a smaller one."
    )


async def _refuse(route: ResolverMatch | None, error: BlazrError, receive: Receive, send: Send) -> None:
    """Send the error, then close. Closing while the client still writes would reset the connection at once."""
    response = _error_response(route, error)
    headers = [(name.lower().encode("ascii"), value.encode("latin1")) for name, value in response.items()]
    headers += [(b"content-length", b"%d" % len(response.content)), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": response.content, "more_body": True})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while (await receive()).get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b""})


def _error_response(route: ResolverMatch | None, error: BlazrError) -> HttpResponse:
    """Return the error in the shape of the route's API."""
    view = api_view(route)
    return error_response(error) if view is None else view().error_response(error)
