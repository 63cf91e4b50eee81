"""Limit connections by the process's files, the time and the bytes of request headers, and end stalled readers.

uvicorn has no settings for these. Its setting ``http`` takes the class in place of a name.
"""

from __future__ import annotations

import asyncio
import resource

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from blazr_site.stalled_readers import StallGuard

HEADERS_TIMEOUT_S = 20.0
"""Seconds from a connection's start, or from a request's first byte, to the end of the request's headers."""
FIRST_REQUEST_S = 0.5
"""Seconds of a drain in which a connection that has sent no request yet may send one."""
MAX_HEADERS_BYTES = 1 << 16
"""Bytes that may be read of headers which aren't complete."""
MAX_CONNECTIONS = 4096
"""Connections of the web process, if it may open enough files."""
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def raise_file_limit() -> None:
    """Raise this process's limit of open files, usually 1024, to what its connections need, if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = 2 * MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(2 * MAX_CONNECTIONS, hard)
    if resource.RLIM_INFINITY != soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


def max_connections() -> int:
    """Return how many connections leave a quarter of the process's files for the database, Redis and models."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, soft * 3 // 4)


class HttpProtocol(StallGuard, HttpToolsProtocol):
    """uvicorn's protocol, which closes connections beyond the limit, and those of clients without complete headers."""

    _timer: asyncio.TimerHandle | None = None
    _is_within_headers = False
    _has_request = False
    _is_draining = False
    _num_header_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start a connection."""
        super().connection_made(transport)
        if len(self.connections) > max_connections():
            self.transport.write(_TOO_MANY)
            self.transport.close()
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Begin the drain.

        A connection that was accepted just before it has a request on its way, which a close would answer with a reset.
        """
        if not self._has_request:
            self._is_draining = True
            self._stop_timer()
            self._timer = self.loop.call_later(FIRST_REQUEST_S, self._expire)
        else:
            super().shutdown()

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
        self._has_request = self.cycle is not None  # an upgraded connection has none
        if self._is_draining and self._has_request:
            self.cycle.keep_alive = False

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
