"""Limit the time and the bytes of request headers, for which uvicorn has no setting, and end stalled readers.

uvicorn's settings ``http`` and ``ws`` take the classes in place of names.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from blazr_site.stalled_readers import StallGuard

HEADERS_TIMEOUT_S = 20.0
"""Seconds from a connection's start, or from a request's first byte, to the end of the request's headers."""
MAX_HEADERS_BYTES = 1 << 16
"""Bytes that may be read of headers which aren't complete."""


MAX_CONNECTIONS = 4096
"""Connections of the web process; a request beyond them gets 503 from uvicorn."""


class HttpProtocol(StallGuard, HttpToolsProtocol):
    """uvicorn's protocol, which closes the connection of a client that doesn't complete its headers."""

    _timer: asyncio.TimerHandle | None = None
    _is_within_headers = False
    _num_header_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start a connection."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read bytes of the client."""
        if self.cycle is not None and self.cycle.response_complete:
            # Bytes end uvicorn's wait for the next request, even if they don't begin one.
            self._start_timer()
        super().data_received(data)
        if not self._is_within_headers or self.transport.is_closing():
            return
        self._num_header_bytes += len(data)
        if self._num_header_bytes > MAX_HEADERS_BYTES:
            self.send_400_response(f"The request headers have more than {MAX_HEADERS_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._is_within_headers, self._num_header_bytes = True, 0
        self._start_timer()

    def on_headers_complete(self) -> None:
        """End a request's headers."""
        self._is_within_headers = False
        self._stop_timer()
        super().on_headers_complete()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEADERS_TIMEOUT_S, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()


class WebSocketProtocol(StallGuard, WebSocketsSansIOProtocol):
    """uvicorn's protocol for WebSockets, which closes the connection of a client that reads nothing."""
