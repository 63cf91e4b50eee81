"""Give each request a thread of its own for synchronous code that must not share one, such as the database's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.dispatch import receiver

_connections: ContextVar[list[str] | None] = ContextVar("connections", default=None)
"""Aliases of the database connections that this request has opened; shared with the request's thread."""


@receiver(connection_created)
def _record_connection(connection: BaseDatabaseWrapper, **kwargs: object) -> None:
    opened = _connections.get()
    if opened is not None:
        opened.append(connection.alias)


def has_connections() -> bool:
    """Whether this request has opened a connection to the database."""
    return bool(_connections.get())


@asynccontextmanager
async def request_thread() -> AsyncIterator[None]:
    """Start the request's thread with its first use; at the end, close its database connections and end it."""
    async with ThreadSensitiveContext():
        _connections.set([])
        try:
            yield
        finally:
            if has_connections():
                await sync_to_async(close_old_connections)()
