"""A client that takes of a streamed chat no more than it is told to; the system keeps next to nothing for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import orjson


@contextmanager
def sent_request(url: str, path: str, body: dict) -> Iterator[socket.socket]:
    """The connection of a request that was sent and of whose response nothing was read; left at the end."""
    address, content = urlsplit(url), orjson.dumps(body)
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(60)
        raw.connect((address.hostname, address.port))
        raw.sendall(
            b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(content), content)
        )
        yield raw


@contextmanager
def slow_chat(url: str, body: dict) -> Iterator[tuple[socket.socket, bytes]]:
    """The connection of a chat whose status line has come, and what was read so far."""
    with sent_request(url, "/v1/chat/completions", body) as raw:
        first = raw.recv(100)
        assert first.startswith(b"HTTP/1.1 200")
        yield raw, first
