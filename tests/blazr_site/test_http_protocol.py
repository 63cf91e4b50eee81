"""Clients that don't complete their headers lose their connection; others don't notice."""

from __future__ import annotations

import asyncio
import itertools
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn

from blazr_site import http_protocol
from blazr_site.http_protocol import MAX_HEADERS_BYTES, HttpProtocol

TIMEOUT_S = 0.3
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch):
    monkeypatch.setattr(http_protocol, "HEADERS_TIMEOUT_S", TIMEOUT_S)


async def hello(scope, receive, send) -> None:
    await asyncio.sleep(2 * TIMEOUT_S if scope["path"] == "/slow" else 0)
    if scope["path"] == "/then-quickly":
        http_protocol.HEADERS_TIMEOUT_S = TIMEOUT_S
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


@asynccontextmanager
async def serving() -> AsyncIterator[uvicorn.Server]:
    """A server of ``hello``, which ends with the block."""
    server = uvicorn.Server(
        uvicorn.Config(hello, port=0, http=HttpProtocol, lifespan="off", log_level="critical", timeout_keep_alive=600)
    )
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server
    server.should_exit = True
    await task


async def connect(server: uvicorn.Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.servers[0].sockets[0].getsockname()[1])


@asynccontextmanager
async def connection() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server of ``hello``."""
    async with serving() as server:
        reader, writer = await connect(server)
        async with asyncio.timeout(60):
            yield reader, writer
        writer.close()


async def is_cut(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes the connection without a response; nothing else than the time limit lets it do so."""
    try:
        rest = await reader.read()
    except ConnectionResetError:  # it wrote once more
        rest = b""
    return rest == b""


async def response(reader: asyncio.StreamReader) -> bytes:
    await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(5)


async def test_a_silent_client_is_cut():
    async with connection() as (reader, _):
        assert await is_cut(reader)


async def test_a_client_that_sends_its_headers_byte_by_byte_is_cut():
    async with connection() as (reader, writer):

        async def trickle() -> None:
            for byte in itertools.chain(b"GET / HTTP/1.1\r\nHost: a\r\nX: ", itertools.repeat(ord("x"))):
                writer.write(bytes([byte]))
                await asyncio.sleep(TIMEOUT_S / 20)

        trickling = asyncio.create_task(trickle())
        assert await is_cut(reader)
        trickling.cancel()


@pytest.mark.usefixtures("long_timeout")  # until the first request has come
@pytest.mark.parametrize("start", [b"GET", b"\r\n"], ids=["a request", "no request"])
async def test_the_next_request_of_a_connection_has_the_same_limit(start):
    async with connection() as (reader, writer):
        writer.write(b"GET /then-quickly HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await response(reader) == b"hello"
        writer.write(start)
        assert await is_cut(reader)


async def test_responses_may_take_longer_and_connections_are_used_again():
    async with serving() as server, asyncio.timeout(60):
        with socket.socket() as raw:
            # The server gets to the connection when the requests are there, however busy the machine is.
            raw.connect(server.servers[0].sockets[0].getsockname())
            for path in (b"/slow", b"/", b"/slow"):
                raw.sendall(b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path)
            reader, writer = await asyncio.open_connection(sock=raw)
            for _ in range(3):
                assert await response(reader) == b"hello"
            writer.close()


@pytest.fixture
def long_timeout(monkeypatch, short_timeout):
    monkeypatch.setattr(http_protocol, "HEADERS_TIMEOUT_S", 60.0)


@pytest.mark.usefixtures("long_timeout")
async def test_headers_without_an_end_are_refused():
    async with connection() as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * (MAX_HEADERS_BYTES + 1))
        refused = await reader.read()
        assert refused.startswith(b"HTTP/1.1 400")
        assert str(MAX_HEADERS_BYTES).encode() in refused


@pytest.mark.usefixtures("long_timeout")
async def test_a_connection_beyond_the_limit_is_told_and_closed(monkeypatch):
    monkeypatch.setattr(http_protocol, "max_connections", lambda: 1)
    async with connection() as (reader, writer):
        further, second = await asyncio.open_connection(*writer.get_extra_info("peername"))
        assert (await further.read()).startswith(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n")
        second.close()
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await response(reader) == b"hello"


def test_a_quarter_of_the_files_is_left_for_others_than_connections():
    code = (
        "import resource; from blazr_site.http_protocol import max_connections, raise_file_limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512)); print(max_connections())\n"
        "raise_file_limit(); print(resource.getrlimit(resource.RLIMIT_NOFILE), max_connections())\n"
        "raise_file_limit(); print(resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout == "192\n(512, 512) 384\n(512, 512)\n", run.stderr


async def drain(server: uvicorn.Server) -> None:
    server.should_exit = True
    while server.servers[0].is_serving():
        await asyncio.sleep(0.01)


@pytest.mark.usefixtures("long_timeout")
async def test_a_connection_that_a_drain_finds_without_a_request_may_send_one(monkeypatch):
    monkeypatch.setattr(http_protocol, "FIRST_REQUEST_S", 60.0)
    async with serving() as server, asyncio.timeout(60):
        new, used = await connect(server), await connect(server)
        used[1].write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await response(used[0]) == b"hello"
        await drain(server)
        assert await used[0].read() == b""  # an idle one is closed at once
        new[1].write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        whole = await new[0].read()  # up to the close
        assert whole.startswith(b"HTTP/1.1 200") and whole.endswith(b"hello")


async def test_a_drain_does_not_wait_for_silent_connections(monkeypatch):
    monkeypatch.setattr(http_protocol, "FIRST_REQUEST_S", 0.2)
    async with serving() as server, asyncio.timeout(60):
        reader, _ = await connect(server)
        await asyncio.sleep(0.05)
        await drain(server)
        assert await is_cut(reader)
