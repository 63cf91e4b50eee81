"""What the client of a WebSocket may send: before its caller is known, afterwards, and after the close."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from blazr_site.body_budget import MAX_ANONYMOUS_BODY_BYTES, BodyBudget
from blazr_site.http_protocol import HttpProtocol
from blazr_site.socket_protocol import MAX_CLOSING_BYTES, MAX_FRAGMENTS, MAX_FRAMES_PER_READ, WebSocketProtocol

REQUEST = (
    b"GET %b HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
CONTINUATION, TEXT, CLOSE, PING = 0, 1, 8, 9
READ_BYTES = 256_000
"""What uvloop reads at once."""


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True) -> bytes:
    """A frame as a client sends it, masked with zeros."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else struct.pack("!BQ", 0x80 | 127, size)
    return bytes([fin << 7 | opcode]) + length + bytes(4) + payload


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self._is_closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self._is_closed = True

    def is_closing(self) -> bool:
        return self._is_closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Application:
    """Accepts, and takes messages as long as it may; of a path ``/key`` it knows the caller."""

    def __init__(self, budget: BodyBudget) -> None:
        self.budget = budget
        self.messages: list[str] = []
        self.may_receive = asyncio.Event()
        self.may_receive.set()
        self.may_accept = asyncio.Event()
        self.may_accept.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await self.may_accept.wait()
        if scope["path"] == "/key":
            scope["state"]["admit"](self.budget, "key:1")
        await send({"type": "websocket.accept"})
        if scope["path"] == "/refused":
            await send({"type": "websocket.close", "code": 4401})
        while True:
            await self.may_receive.wait()
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            self.messages.append(message["text"])


@pytest.fixture
def app() -> Application:
    return Application(BodyBudget(total_bytes=1 << 20, caller_bytes=1 << 19))


@contextlib.asynccontextmanager
async def connected(app: Application, path: bytes) -> AsyncIterator[tuple[WebSocketProtocol, Transport]]:
    """A connection of the application, without a network."""
    config = uvicorn.Config(app, ws=WebSocketProtocol, ws_per_message_deflate=False, log_level="critical")
    config.load()
    protocol, transport = WebSocketProtocol(config=config, server_state=ServerState(), app_state={}), Transport()
    protocol.connection_made(transport)
    protocol.data_received(REQUEST % path)
    await until(lambda: protocol.handshake_complete or not app.may_accept.is_set())
    yield protocol, transport
    protocol.connection_lost(None)
    await until(lambda: not protocol.tasks)


async def until(is_reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_reached():
            await asyncio.sleep(0)


def close_code(transport: Transport) -> int:
    """The code of the close frame that was written last, with a reason."""
    at = transport.written.rindex(b"\x88")
    return int.from_bytes(transport.written[at + 2 : at + 4], "big")


@pytest.mark.parametrize("num", [1, 2, 4])
async def test_an_unknown_caller_s_message_is_small_in_however_many_fragments(app, num):
    size = MAX_ANONYMOUS_BODY_BYTES // num
    async with connected(app, b"/") as (protocol, transport):
        for number in range(num):
            protocol.data_received(frame(TEXT if number == 0 else CONTINUATION, b"x" * size, fin=number == num - 1))
        await until(lambda: app.messages == ["x" * MAX_ANONYMOUS_BODY_BYTES])
        await asyncio.sleep(0)
        for number in range(num):
            protocol.data_received(frame(TEXT if number == 0 else CONTINUATION, b"x" * size, fin=False))
        assert not transport.is_closing()
        protocol.data_received(frame(CONTINUATION, b"x", fin=False))
        assert transport.is_closing() and close_code(transport) == 1009


async def test_an_unknown_caller_s_messages_are_few(app):
    app.may_receive.clear()
    async with connected(app, b"/") as (protocol, transport):
        protocol.data_received(3 * frame(TEXT, bytes(MAX_ANONYMOUS_BODY_BYTES // 2)))
        assert transport.is_closing() and close_code(transport) == 1009
        app.may_receive.set()


async def test_after_the_close_nothing_is_held_and_little_is_read(app):
    async with connected(app, b"/refused") as (protocol, transport):
        await until(lambda: protocol.close_sent)
        piece = frame(TEXT, bytes(1000), fin=False) + frame(CONTINUATION, bytes(1000), fin=False)
        protocol.data_received(piece)
        assert not protocol.frames and not transport.is_closing()
        protocol.data_received(frame(CONTINUATION, bytes(MAX_CLOSING_BYTES), fin=False))
        assert transport.is_closing() and not protocol.frames


async def test_after_the_close_the_client_s_reply_ends_the_connection(app):
    async with connected(app, b"/refused") as (protocol, transport):
        await until(lambda: protocol.close_sent)
        protocol.data_received(frame(TEXT, b"the first request") + frame(CLOSE, struct.pack("!H", 4401)))
        assert transport.is_closing() and not app.messages


@pytest.mark.parametrize("path", [b"/", b"/key", b"/refused"])
@pytest.mark.parametrize("flood", [frame(PING), frame(CONTINUATION, fin=False), frame(TEXT)])
async def test_many_frames_at_once_do_not_stop_the_event_loop(app, flood, path):
    """42,666 of them took 0.5 s."""
    async with connected(app, path) as (protocol, transport):
        start = frame(TEXT, b"x", fin=False) if flood == frame(CONTINUATION, fin=False) else b""
        before = time.thread_time()
        protocol.data_received(start + flood * (READ_BYTES // len(flood)))
        assert time.thread_time() - before < 0.05
        assert transport.is_closing()


async def test_as_many_frames_as_programs_send_are_taken(app):
    async with connected(app, b"/key") as (protocol, transport):
        for _ in range(10):
            protocol.data_received(frame(PING) * MAX_FRAMES_PER_READ)
        protocol.data_received(frame(TEXT, b"x"))
        await until(lambda: app.messages == ["x"])
        assert not transport.is_closing()


async def test_a_client_that_reads_nothing_gets_few_pongs(app):
    """They would be kept until it reads."""
    async with connected(app, b"/key") as (protocol, transport):
        for _ in range(3):  # a client that reads
            protocol.pause_writing()
            protocol.data_received(frame(PING) * MAX_FRAMES_PER_READ)
            protocol.resume_writing()
            protocol.data_received(frame(PING))
        assert not transport.is_closing()
        protocol.pause_writing()
        for _ in range(2):
            protocol.data_received(frame(PING) * MAX_FRAMES_PER_READ)
        assert transport.is_closing() and close_code(transport) == 1008


async def test_a_message_has_so_many_fragments_at_most(app):
    async with connected(app, b"/key") as (protocol, transport):
        protocol.data_received(frame(TEXT, fin=False))
        for _ in range(MAX_FRAGMENTS // 512 - 1):
            protocol.data_received(frame(CONTINUATION, fin=False) * 512)
        assert not transport.is_closing()
        protocol.data_received(frame(CONTINUATION, fin=False) * 512)
        assert transport.is_closing() and close_code(transport) == 1008


async def test_a_known_caller_s_connections_share_a_budget(app):
    async with connected(app, b"/key") as (first, _), connected(app, b"/key") as (second, transport):
        first.data_received(frame(TEXT, bytes(1 << 18), fin=False))
        assert app.budget.held_bytes == 1 << 18
        second.data_received(frame(TEXT, bytes(1 << 18))[:-1])  # one byte is missing
        assert app.budget.held_bytes == (1 << 19) - 1
        first.data_received(frame(CONTINUATION, b"x", fin=False))
        second.data_received(b"\0")
        assert transport.is_closing() and close_code(transport) == 1013
    assert app.budget.held_bytes == 0


async def test_a_message_is_held_until_the_application_asks_for_the_next(app):
    async with connected(app, b"/key") as (protocol, transport):
        await until(lambda: app.budget.held_bytes == 0)
        app.may_receive.clear()
        for number in range(1, 4):
            protocol.data_received(2 * frame(TEXT, b"x" * 1000) + frame(PING))
            await asyncio.sleep(0.01)
            assert app.budget.held_bytes == 2000  # one is with the application, or was
            app.may_receive.set()
            await until(lambda expected=2 * number: len(app.messages) == expected)
            await until(lambda: app.budget.held_bytes == 0)
            app.may_receive.clear()
        assert not transport.is_closing()


async def test_a_message_before_the_accept_is_small_too_and_breaks_nothing(app):
    app.may_accept.clear()
    async with connected(app, b"/key") as (protocol, transport):
        protocol.data_received(frame(TEXT, bytes(MAX_ANONYMOUS_BODY_BYTES + 1)))
        assert transport.is_closing() and not transport.written
        app.may_accept.set()


@contextlib.asynccontextmanager
async def serving(app: Application) -> AsyncIterator[int]:
    """A server's port."""
    config = uvicorn.Config(
        app, port=0, http=HttpProtocol, ws=WebSocketProtocol, ws_per_message_deflate=False, lifespan="off",
        log_level="critical",
    )  # fmt: skip
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await task


async def test_a_client_talks_with_the_server(app):
    async with serving(app) as port, asyncio.timeout(60):
        async with connect(f"ws://127.0.0.1:{port}/key") as socket:
            for _ in range(3):
                await socket.send("x" * 200_000)
            await socket.send(["y" * 50_000] * 4)
            await until_taken(app, socket)
        assert [len(text) for text in app.messages] == [200_000] * 4 and app.budget.held_bytes == 0
        async with connect(f"ws://127.0.0.1:{port}/refused") as socket:
            with pytest.raises(ConnectionClosed):
                await socket.recv()
            assert socket.close_code == 4401


async def until_taken(app: Application, socket: ClientConnection) -> None:
    while len(app.messages) < 4:
        await (await socket.ping())


async def test_a_handshake_with_a_long_header_is_refused_and_closed(app):
    async with serving(app) as port, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((REQUEST % b"/").replace(b"Host: a", b"Host: a\r\nX: " + b"x" * 9000))
        assert (await reader.read()).startswith(b"HTTP/1.1 431")
        writer.close()
