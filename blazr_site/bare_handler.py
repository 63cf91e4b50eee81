"""Django's ASGI handler for the API, without a thread and a second task for each request.

Django's own starts (and joins) a thread for every request, because it runs its signals' synchronous receivers there,
and runs every request in two tasks. That was about half of the web process's time for a short request
(docs/decisions/0013-the-way-outside-the-network.md). What a client sees is the same:
requests end when the client goes away, and a thread with a database connection exists for requests that need one.
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
    """Serves requests without middleware and, unless a view asks for it, without a thread."""

    def load_middleware(self, is_async: bool = False) -> None:
        """What Django does for an empty list of middleware: each one that isn't async costs a hop through a thread."""
        self._fixed_routes: dict[str, ResolverMatch] = {}
        self._view_middleware: list[Any] = []
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []
        self._middleware_chain = convert_exception_to_response(
            self._get_response_async  # type: ignore[attr-defined]
        )

    def resolve_request(self, request: HttpRequest) -> ResolverMatch:
        """As Django's; a path that is a route as it stands is looked up once: there are only so many of those."""
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
        """The whole body; one that comes in a single message stays in memory.

        Raises:
            RequestAborted: The client went away before its end.
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
        """Send it, unless the client leaves, takes nothing, or the server ends: the connection is closed then."""
        try:
            await self.send_response(response, send)
        except asyncio.CancelledError:
            cast("asyncio.Task[None]", asyncio.current_task()).uncancel()

    async def send_response(self, response: HttpResponseBase, send: Send) -> None:
        """Send a response; of an event stream each part as it is, in one message."""
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
    """Cancels the block when the client goes away, and ends it quietly then.

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
        # The body was read: nothing else can come (ASGI's HTTP specification).
        assert message["type"] == "http.disconnect", message["type"]
        self._is_gone = True
        self._task.cancel()
