"""A TCP proxy in a thread that delays, cuts, holds, drops, throttles or rewrites what passes through it.

Clients connect to ``port``; each connection is passed on to a TCP port or a unix socket. Faults apply to open
connections and to new ones, from the next piece that is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

PIECE_BYTES = 1 << 16


@dataclass(slots=True)
class Faults:
    """What happens to the bytes of both directions.

    Attributes:
        delay_s: Seconds that each piece waits.
        is_held: Nothing passes, and connections stay open: a server that can't be reached any more (half-open).
        is_refused: New connections are closed at once.
        drops_replies: What the server sends is thrown away.
        bytes_per_s: Most bytes a second of each direction of a connection; 0: no limit.
        rewrite: Called with what a client sends; returns what the server gets.
    """

    delay_s: float = 0.0
    is_held: bool = False
    is_refused: bool = False
    drops_replies: bool = False
    bytes_per_s: int = 0
    rewrite: Callable[[bytes], bytes] = field(default=lambda piece: piece)


class Proxy:
    """Passes connections on to a server.

    Args:
        target: ``(host, port)``, or the path of a unix socket.

    Attributes:
        port: TCP port on the loopback interface.
        faults: The faults; assign another value at any time, from any thread.
    """

    def __init__(self, target: tuple[str, int] | str) -> None:
        self._target = target
        self.faults = Faults()
        self.port = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._handlers: set[asyncio.Task[None] | None] = set()
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        self._started.wait(10)

    @property
    def num_connections(self) -> int:
        """Connections that are open now."""
        return len(self._open) // 2

    def cut(self) -> None:
        """Reset all connections; new ones are taken."""
        self._loop.call_soon_threadsafe(self._abort)

    def stop(self) -> None:
        """Close all connections, and end the thread."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(10)
        self._loop.close()

    # --- the thread

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stopped.wait()
        server.close()
        while self._handlers:
            self._abort()
            await asyncio.sleep(0.01)

    def _abort(self) -> None:
        for writer in self._open:
            _reset(writer)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.current_task()
        self._handlers.add(handler)
        try:
            await self._connect(reader, writer)
        finally:
            self._handlers.discard(handler)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.faults.is_refused:
            _reset(writer)
            return
        try:
            if isinstance(self._target, str):
                server_reader, server_writer = await asyncio.open_unix_connection(self._target)
            else:
                server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            return
        both = {writer, server_writer}
        self._open |= both
        await asyncio.gather(self._pass(reader, server_writer, is_reply=False),
                             self._pass(server_reader, writer, is_reply=True))  # fmt: skip
        self._open -= both

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                faults = self.faults
                await asyncio.sleep(faults.delay_s)
                if faults.bytes_per_s:
                    await asyncio.sleep(len(piece) / faults.bytes_per_s)
                while self.faults.is_held and not writer.is_closing():
                    await asyncio.sleep(0.02)
                if is_reply and faults.drops_replies:
                    continue
                writer.write(piece if is_reply else faults.rewrite(piece))
                await writer.drain()
        writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with RST, as a machine does that has lost it."""
    connection: socket.socket = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):  # closed already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
