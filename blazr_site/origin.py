"""Admit WebSockets from pages of this site with cookies, and from programs without cookies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.http.request import split_domain_port, validate_host

Scope = MutableMapping[str, Any]
ASGIApp = Callable[[Scope, Callable[..., Awaitable[Any]], Callable[..., Awaitable[None]]], Awaitable[None]]


class SameOrigin:
    """Refuses handshakes from pages of other sites.

    A browser sends cookies with a WebSocket handshake of any page, and no CSRF token protects the handshake. So:

    - With an Origin header, the origin's host must equal the Host header, which must be in ALLOWED_HOSTS, or the origin
      must be in CSRF_TRUSTED_ORIGINS. Channels' own validator accepts every origin if ALLOWED_HOSTS is "*".
    - Without an Origin header the client is no browser. It is admitted without its cookies, so it needs a key.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serve one handshake."""
        headers = dict(scope.get("headers", ()))
        host = headers.get(b"host", b"").decode("latin1")
        origin = headers.get(b"origin")
        if not host or not validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS):
            return await self._deny(receive, send)
        if origin is None:
            scope = {**scope, "headers": [item for item in scope["headers"] if item[0] != b"cookie"]}
        elif not _is_ours(origin.decode("latin1"), host):
            return await self._deny(receive, send)
        return await self._app(scope, receive, send)

    async def _deny(self, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.close"})  # before the handshake: the client gets a 403


def _is_ours(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.netloc.lower() == host.lower() or origin in settings.CSRF_TRUSTED_ORIGINS
