"""Serve the API through Django's ASGI handler, without a thread and a second task per request.

Django's own handler starts a thread per request for synchronous signal receivers, and runs each request in two tasks.
That costs about half of the web process's time for a short request
(docs/decisions/0013-the-way-outside-the-network.md). Clients see no difference: a disconnect ends the request, and a
request that uses the database gets a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from io import BytesIO
from typing import Any, cast

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.exception import convert_exception_to_response
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.dispatch import receiver
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import ResolverMatch, set_script_prefix

from inference.api.event_stream import EventStream

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


_connections: ContextVar[list[str] | None] = ContextVar("connections", default=None)
"""Aliases of the database connections that this request has opened; shared with the request's thread."""


@receiver(connection_created)
def _record_connection(connection: BaseDatabaseWrapper, **kwargs: object) -> None:
    opened = _connections.get()
    if opened is not None:
        opened.append(connection.alias)


class BareHandler(ASGIHandler):
    """Serves requests without middleware and, unless a view needs one, without a thread."""

    def load_middleware(self, is_async: bool = False) -> None:
        """Set up as Django does without middleware, because each synchronous middleware costs a thread hop."""
        self._fixed_routes: dict[str, ResolverMatch] = {}
        self._view_middleware: list[Any] = []
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []
        self._middleware_chain = convert_exception_to_response(
            self._get_response_async  # type: ignore[attr-defined]
        )

    def resolve_request(self, request: HttpRequest) -> ResolverMatch:
        """Resolve a path as Django does, with a cache for routes without parameters, which are few."""
        found = self._fixed_routes.get(request.path_info)
        if found is None:
            found = super().resolve_request(request)
            if request.path_info == f"/{found.route}":
                self._fixed_routes[request.path_info] = found
        request.resolver_match = found
        return found

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        # Code that must not share a thread with other requests (the database's) gets one of this request's own, which
        # starts with its first use and ends with the context.
        async with ThreadSensitiveContext():
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Any, receive: Receive, send: Send) -> None:
        connections: list[str] = []
        _connections.set(connections)
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        set_script_prefix(get_script_prefix(scope))
        request, refusal = self.create_request(scope, body)
        response: HttpResponseBase | None = refusal
        try:
            with _UntilDisconnect(receive):
                if request is not None:
                    response = await self.run_get_response(request)
                if response is not None:
                    await self._send_until_cancelled(response, send)
        finally:
            finish = self._finish_without_response if response is None else response.close
            # Both send Django's signal request_finished, which closes the database connections of its thread.
            if connections:
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
        """
        message: Message | None = await receive()
        if message is not None and message["type"] == "http.request" and not message.get("more_body", False):
            return BytesIO(message.get("body", b""))

        async def from_the_first() -> Message:
            nonlocal message
            taken, message = message, None
            return await receive() if taken is None else taken

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
            await super().send_response(response, send)
            return
        headers = [(name.encode("ascii"), value.encode("latin1")) for name, value in response.items()]
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})

        async def send_part(part: bytes) -> None:
            await send({"type": "http.response.body", "body": part, "more_body": True})

        await response.write_to(send_part)
        await send({"type": "http.response.body"})


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
