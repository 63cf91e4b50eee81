"""Close connections of clients that read nothing, and limit what the kernel holds for them; uvicorn has no settings.

A client that stops reading keeps its connection, and all that waits for it, for ever: ``transport.close`` first sends
what waits, and TCP asks a living client for ever whether it reads again.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, cast

STALL_S = 30.0
"""Seconds without progress, while bytes wait, after which a connection is closed. The kernel reports progress in steps
of half its buffer, so a client has to read some 4 KiB a second."""
CHECKS = 4
"""Looks at a connection within ``STALL_S``."""
SEND_BUFFER_BYTES = 128 << 10
"""Bytes that the kernel holds for a client; it takes twice as many with its own data. Without this it takes 4 MiB."""

if TYPE_CHECKING:
    _Base = asyncio.Protocol
else:
    _Base = object


class StallGuard(_Base):
    """Base of a protocol that closes the connection of a client that has read nothing for ``STALL_S``."""

    _transport: asyncio.Transport
    _check_timer: asyncio.TimerHandle | None = None
    _is_paused = False
    _num_unsent = 0
    _progress_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start a connection."""
        super().connection_made(transport)
        self._transport = cast("asyncio.Transport", transport)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._schedule_check()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        if self._check_timer is not None:
            self._check_timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Stop sending: much is waiting for the client."""
        self._is_paused = True
        super().pause_writing()

    def resume_writing(self) -> None:
        """Send again: the client has read nearly all, and what comes next isn't compared with it."""
        self._is_paused = False
        self._num_unsent = 0
        super().resume_writing()

    def _schedule_check(self) -> None:
        self._check_timer = asyncio.get_running_loop().call_later(STALL_S / CHECKS, self._check)

    def _check(self) -> None:
        transport = self._transport
        if transport.get_protocol() is not self:
            return  # the connection has become a WebSocket
        now = asyncio.get_running_loop().time()
        num_unsent = transport.get_write_buffer_size()
        # Otherwise the application may add as many bytes as the client reads, and the number shows no progress.
        is_measured = self._is_paused or transport.is_closing()
        if not (is_measured and num_unsent and num_unsent >= self._num_unsent > 0):
            self._progress_at = now
        elif now - self._progress_at >= STALL_S * (1 - 1 / CHECKS):  # no progress since the look before
            raw = transport.get_extra_info("socket")
            if raw is not None:  # RST, or the kernel keeps what it has for the client after the close
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
            return
        self._num_unsent = num_unsent
        self._schedule_check()
