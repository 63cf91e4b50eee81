"""Limit what the client of a WebSocket may send, and end stalled readers; uvicorn's setting ``ws`` takes the class.

uvicorn limits the bytes of a message only: not the frames, nor what many connections hold, nor what comes after a close
(docs/decisions/0042-bodies.md).
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import OPEN

from blazr_site.body_budget import MAX_ANONYMOUS_BODY_BYTES, BodyBudget
from blazr_site.stalled_readers import StallGuard
from inference.errors import BlazrError

MAX_CLOSING_BYTES = 16 << 10
"""Bytes that are read, and dropped, between the server's close and the client's reply."""
MAX_FRAMES_PER_READ = 512
"""A frame takes 15 µs of the event loop, and a read of uvloop has up to 256,000 bytes: 42,666 empty frames."""
MAX_FRAGMENTS = 1 << 14
"""Fragments of a message; a small one takes ten times its bytes."""
MAX_UNREAD_PONGS = 512
"""Pongs for a client that reads nothing; the transport keeps them."""
_PIECE_BYTES = 1 << 10
"""Bytes that are parsed between two looks at the limits."""
_CLOSE_POLICY, _CLOSE_TOO_BIG, _CLOSE_TRY_AGAIN = 1008, 1009, 1013


class WebSocketProtocol(StallGuard, WebSocketsSansIOProtocol):
    """uvicorn's protocol for WebSockets, which closes the connection of a client that sends too much or reads nothing.

    Messages are held from the arrival of their bytes until the application asks for the next message. Until it has
    called ``scope["state"]["admit"]``, the caller is unknown, and all of them together are small.
    """

    _budget: BodyBudget | None = None
    _caller = ""
    _num_held = 0
    _num_complete = 0
    _num_frames = 0
    _num_closing_bytes = 0
    _num_unread_pongs = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn.max_message_size = MAX_ANONYMOUS_BODY_BYTES
        self.app_state = {**self.app_state, "admit": self.admit}

    def admit(self, budget: BodyBudget, caller: str) -> None:
        """Take messages of the full size from now on, and count them as bodies of the caller."""
        self._budget, self._caller, self._num_held = budget, caller, 0
        self.conn.max_message_size = self.config.ws_max_size

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._release_but(0)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read bytes of the client."""
        self._num_frames = 0
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            super().data_received(piece)
            if self.transport.is_closing():
                return
            if self.conn.handshake_exc is not None:  # a header is too long
                self.transport.write(b"".join(self.conn.data_to_send()))
                self.transport.close()
            elif self.close_sent:
                self._drop(len(piece))
            elif self.handshake_initiated:
                self._check_limits()

    def handle_events(self) -> None:
        """Handle the frames of a piece."""
        self._num_frames += len(self.conn.events)
        super().handle_events()

    def send_receive_event_to_app(self) -> None:
        """Queue a complete message."""
        self._num_complete += sum(map(len, self.frames))
        super().send_receive_event_to_app()

    def handle_ping(self) -> None:
        """Send a pong."""
        super().handle_ping()
        self._num_unread_pongs = self._num_unread_pongs + 1 if self._is_paused else 0

    def handle_parser_exception(self) -> None:
        """Close the connection of a client that breaks the protocol, perhaps before its handshake was accepted."""
        if self.conn.close_sent is None:
            self.transport.close()
        else:
            super().handle_parser_exception()

    async def receive(self) -> Any:
        """Return the next message; the application is done with those before."""
        if self.queue.empty():
            self._num_complete = 0
            self._release_but(self._num_unfinished)
        message: Any = await super().receive()
        if self.queue.empty():  # otherwise, further messages of the same read are held
            self._num_complete = len(message.get("text") or message.get("bytes") or b"")
            self._release_but(self._num_complete + self._num_unfinished)
        return message

    @property
    def _num_unfinished(self) -> int:
        """Bytes of the message that has begun to arrive."""
        return len(self.conn.reader.buffer) + (self.conn.current_size or 0)

    def _drop(self, num_bytes: int) -> None:
        self.frames.clear()
        self._num_closing_bytes += num_bytes
        if self._num_closing_bytes > MAX_CLOSING_BYTES or self._num_frames > MAX_FRAMES_PER_READ:
            self.transport.close()

    def _check_limits(self) -> None:
        num_bytes = self._num_complete + self._num_unfinished
        if self._num_frames > MAX_FRAMES_PER_READ:
            self._fail(_CLOSE_POLICY, f"more than {MAX_FRAMES_PER_READ} frames at once")
        elif self._num_unread_pongs > MAX_UNREAD_PONGS:
            self._fail(_CLOSE_POLICY, f"more than {MAX_UNREAD_PONGS} pings of a client that reads nothing")
        elif len(self.frames) > MAX_FRAGMENTS:
            self._fail(_CLOSE_POLICY, f"a message of more than {MAX_FRAGMENTS} fragments")
        elif self._budget is None and num_bytes > MAX_ANONYMOUS_BODY_BYTES:
            self._fail(_CLOSE_TOO_BIG, f"more than {MAX_ANONYMOUS_BODY_BYTES} bytes of an unknown caller")
        elif self._budget is not None and num_bytes > self._num_held:
            try:
                self._budget.hold(self._caller, num_bytes - self._num_held)
            except BlazrError:
                self._fail(_CLOSE_TRY_AGAIN, "the bodies of this caller, or of all, have too many bytes")
            else:
                self._num_held = num_bytes

    def _release_but(self, num_bytes: int) -> None:
        if self._budget is not None and num_bytes < self._num_held:
            self._budget.release(self._caller, self._num_held - num_bytes)
            self._num_held = num_bytes

    def _fail(self, code: int, reason: str) -> None:
        if self.conn.state is OPEN:
            self.conn.fail(code, reason)
        self.handle_parser_exception()
