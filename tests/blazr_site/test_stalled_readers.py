"""Clients that read nothing lose their connection; those that read slowly keep theirs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import pytest
import uvicorn

from blazr_site import stalled_readers
from blazr_site.http_protocol import HttpProtocol
from blazr_site.socket_protocol import WebSocketProtocol

STALL_S = 0.4
PIECE_BYTES = 1 << 16
NUM_PIECES = 128
"""More in all than the system keeps for a connection without a limit of its own."""
HTTP = b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n"
WEBSOCKET = (
    b"GET %b HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


async def flood(scope, receive, send) -> None:
    """Send 8 MiB: in one piece that the transport keeps whole, or in pieces, each after the one before."""
    num, size = (1, PIECE_BYTES * NUM_PIECES) if scope["path"] == "/whole" else (NUM_PIECES, PIECE_BYTES)
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        for _ in range(num):
            await send({"type": "websocket.send", "bytes": bytes(size)})
        await send({"type": "websocket.close"})
    else:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        for _ in range(num):
            await send({"type": "http.response.body", "body": bytes(size), "more_body": True})
        await send({"type": "http.response.body"})


@contextlib.asynccontextmanager
async def running_server(loop: str) -> AsyncIterator[tuple[uvicorn.Server, int]]:
    """A server of ``flood``, and its port."""
    config = uvicorn.Config(
        flood, port=0, http=HttpProtocol, ws=WebSocketProtocol, loop=loop, lifespan="off", log_level="critical",
        timeout_keep_alive=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server, server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    async with asyncio.timeout(60):
        await serving


class Clock:
    """In the place of the event loop's clock: its time passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> SimpleNamespace:
        timer = (self.now + delay_s, callback)
        self._timers.append(timer)
        return SimpleNamespace(cancel=lambda: self._timers.remove(timer) if timer in self._timers else None)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for timer in [timer for timer in self._timers if timer[0] <= self.now]:
            self._timers.remove(timer)
            timer[1]()


@contextlib.contextmanager
def asked(port: int, request: bytes, path: bytes):
    """A connection with a small buffer, whose request was sent."""
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", port))
        raw.sendall(request % path)
        raw.setblocking(False)
        yield raw


async def until_idle(server: uvicorn.Server) -> None:
    async with asyncio.timeout(60):
        while server.server_state.connections or server.server_state.tasks:
            await asyncio.sleep(0.02)


async def until_connected(server: uvicorn.Server) -> None:
    async with asyncio.timeout(60):
        while not server.server_state.connections:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("path", [b"/whole", b"/pieces"])
@pytest.mark.parametrize("request_bytes", [HTTP, WEBSOCKET], ids=["http", "websocket"])
async def test_a_client_that_reads_nothing_is_cut(monkeypatch, request_bytes, path):
    monkeypatch.setattr(stalled_readers, "STALL_S", STALL_S)
    async with running_server("asyncio") as (server, port):
        with asked(port, request_bytes, path) as raw:
            await until_connected(server)
            await until_idle(server)
            with pytest.raises(ConnectionResetError):  # not a response that looks complete
                while await asyncio.get_running_loop().sock_recv(raw, 1 << 20):
                    pass


@pytest.mark.parametrize("path", [b"/whole", b"/pieces"])
@pytest.mark.parametrize("request_bytes", [HTTP, WEBSOCKET], ids=["http", "websocket"])
async def test_a_client_that_reads_slowly_gets_everything(monkeypatch, request_bytes, path):
    monkeypatch.setattr(stalled_readers, "STALL_S", STALL_S)
    clock, loop = Clock(), asyncio.get_running_loop()
    monkeypatch.setattr(stalled_readers, "asyncio", SimpleNamespace(get_running_loop=lambda: clock))
    async with running_server("asyncio") as (server, port):
        with asked(port, request_bytes, path) as raw:
            num_bytes = 0
            begun = clock.now
            while clock.now < begun + 3 * STALL_S:
                num_bytes += len(await loop.sock_recv(raw, 16384))
                await asyncio.sleep(0.01)
                clock.pass_time(0.01)
            while num_bytes < PIECE_BYTES * NUM_PIECES:
                received = len(await loop.sock_recv(raw, 1 << 20))
                assert received
                num_bytes += received
        await until_idle(server)


async def test_the_system_keeps_little_for_a_client():
    async with running_server("asyncio") as (server, port):
        with asked(port, HTTP, b"/pieces"):
            await until_connected(server)
            (protocol,) = server.server_state.connections
            sent_bytes = protocol.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            assert sent_bytes == 2 * stalled_readers.SEND_BUFFER_BYTES
