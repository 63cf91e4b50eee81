"""Who may open a WebSocket: pages of this site with their cookies, and programs without any."""

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

    Browsers send cookies along with a WebSocket handshake that any page starts, and no CSRF token protects it. So:

    - With an Origin header, its host must be the Host header's (which must be one of ALLOWED_HOSTS), or the origin
      be one of CSRF_TRUSTED_ORIGINS. Channels' own validator would accept every origin when ALLOWED_HOSTS is "*".
    - Without one the client is no browser: it is let in, but its cookies are taken away, so that it needs a key.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serve one handshake."""
        headers = dict(scope.get("headers", ()))
        host = headers.get(b"host", b"").decode("latin1")
        origin = headers.get(b"origin")
        if not validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS):
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
