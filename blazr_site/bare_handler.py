"""Serve the API through Django's ASGI handler, without a thread and a second task per request.

Django's own handler starts a thread per request for synchronous signal receivers, and runs each request in two tasks.
That costs about half of the web process's time for a short request
(docs/decisions/0013-the-way-outside-the-network.md). Clients see no difference: a disconnect ends the request, and a
request that uses the database gets a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from io import SEEK_END, BytesIO
from typing import Any, cast

from asgiref.sync import sync_to_async
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import ResolverMatch, set_script_prefix

from blazr_site.request_thread import has_connections
from blazr_site.routes import BLOB_ROUTE, FILE_ROUTES
from inference.api.event_stream import EventStream
from inference.api.exception_handler import error_response
from inference.errors import StorageFull
from inference.host.disk import full_disk_as_error
from models_registry.storage import uploads_dir

_DISK_FULL = "the server's disk has no room for this body; send it again later, or a smaller one."
_WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class BareHandler(ASGIHandler):
    """Serves requests without middleware and, unless a view needs one, without a thread.

    Runs within ``request_thread``.
    """

    def load_middleware(self, is_async: bool = False) -> None:
        """Load none, because each synchronous middleware costs a thread hop."""

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        """Call the view of the request's route; ``ApiView`` turns its own exceptions into responses."""
        try:
            found = self.resolve_request(request)
            response: HttpResponseBase = await found.func(request, *found.args, **found.kwargs)
        except Exception as error:
            return error_response(error)
        return response

    def resolve_request(self, request: HttpRequest) -> ResolverMatch:
        """Return the route that was found for the request."""
        request.resolver_match = found = cast("Any", request).scope["route"]
        return cast("ResolverMatch", found)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            name = "" if scope["route"] is None else scope["route"].view_name
            is_file = name == BLOB_ROUTE or (name in FILE_ROUTES and scope["method"] == "POST")
            body = await (read_to_disk(receive) if is_file else self.read_body(receive))
        except RequestAborted:
            return
        except StorageFull as error:
            await self.send_response(error_response(error), send)
            return
        set_script_prefix(get_script_prefix(scope))
        request, refusal = self.create_request(scope, body)
        response: HttpResponseBase | None = refusal
        try:
            with _UntilDisconnect(receive):
                if request is not None:
                    request.META.setdefault("CONTENT_LENGTH", str(body.seek(0, SEEK_END)))  # chunked, so undeclared
                    body.seek(0)
                    response = await self.run_get_response(request)
                if response is not None:
                    await self._send_until_cancelled(response, send)
        finally:
            finish = self._finish_without_response if response is None else response.close
            # Both send Django's signal request_finished, which closes the database connections of its thread.
            if has_connections():
                await sync_to_async(finish)()
            else:
                finish()
            body.close()

    def _finish_without_response(self) -> None:
        signals.request_finished.send(sender=type(self))

    async def read_body(self, receive: Receive) -> Any:
        """Read the whole body; the body of a single message stays in memory.

        Raises:
            RequestAborted: The client disconnected before the end of the body.
            StorageFull: Django keeps a large body on disk, which is full.
        """
        message: Message | None = await receive()
        if message is not None and message["type"] == "http.request" and not message.get("more_body", False):
            return BytesIO(message.get("body", b""))

        async def from_the_first() -> Message:
            nonlocal message
            taken, message = message, None
            return await receive() if taken is None else taken

        with full_disk_as_error(_DISK_FULL):
            return await super().read_body(from_the_first)

    async def _send_until_cancelled(self, response: HttpResponseBase, send: Send) -> None:
        """Send a response; close the connection if the client stalls or disconnects, or the server ends."""
        try:
            await self.send_response(response, send)
        except asyncio.CancelledError:
            cast("asyncio.Task[None]", asyncio.current_task()).uncancel()

    async def send_response(self, response: HttpResponseBase, send: Send) -> None:
        """Send a response; each part of an event stream is one message."""
        if not isinstance(response, EventStream):
            if isinstance(response, HttpResponse) and response.status_code not in _WITHOUT_BODY:
                response.headers.setdefault("Content-Length", str(len(response.content)))
            await super().send_response(response, send)
            return
        headers = [(name.encode("ascii"), value.encode("latin1")) for name, value in response.items()]
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})

        async def send_part(part: bytes) -> None:
            await send({"type": "http.response.body", "body": part, "more_body": True})

        await response.write_to(send_part)
        await send({"type": "http.response.body"})


async def read_to_disk(receive: Receive) -> Any:
    """Return a body as a file without a name on the disk of the uploads; it goes with its process.

    Raises:
        RequestAborted: The client disconnected before the end of the body.
        StorageFull: The disk is full.
    """
    file = tempfile.TemporaryFile(dir=uploads_dir())  # noqa: SIM115 - the request closes it
    is_complete = False
    try:
        with full_disk_as_error(_DISK_FULL):
            while not is_complete:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RequestAborted
                await asyncio.to_thread(file.write, message.get("body", b""))
                is_complete = not message.get("more_body", False)
            file.seek(0)
    except BaseException:
        # Closing writes what a full disk has left in the buffer, and fails in the same way.
        with contextlib.suppress(OSError):
            file.close()
        raise
    return file


class _UntilDisconnect:
    """Cancels the block when the client disconnects, and suppresses that cancellation.

    Any other cancellation passes through.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_gone = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> bool:
        self._watcher.cancel()
        if not self._is_gone:
            return False
        self._task.uncancel()
        return isinstance(error, asyncio.CancelledError)

    async def _watch(self) -> None:
        message = await self._receive()
        # After the body, only a disconnect can arrive (ASGI's HTTP specification).
        assert message["type"] == "http.disconnect", message["type"]
        self._is_gone = True
        self._task.cancel()
