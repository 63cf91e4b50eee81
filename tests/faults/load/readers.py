"""F38: clients that read nothing, or a byte now and then; other clients' streams, and the memory meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from tests.faults.load.client import Connection, Stream, completion, stream
from tests.faults.load.disconnects import quantile
from tests.faults.load.site import LoadSite

CHAT = "/v1/chat/completions"
RECEIVE_BUFFER_BYTES = 2048
NUM_NEIGHBOURS = 4
KINDS = ("sse", "json", "websocket")


@dataclass
class SlowReaders:
    """What slow readers did to others.

    Attributes:
        alone_s, beside_s: Median seconds per token of other streams, beside normal readers and beside slow ones.
        alone_p95_s, beside_p95_s: The 95th percentile.
        memory_bytes: Growth of the largest web process while the slow readers were connected, for each of them.
        ended_s: Seconds from the last request to the end of the last connection.
        problems: What is left behind.
    """

    alone_s: float = 0.0
    beside_s: float = 0.0
    alone_p95_s: float = 0.0
    beside_p95_s: float = 0.0
    memory_bytes: int = 0
    ended_s: float = 0.0
    problems: list[str] = field(default_factory=list)


def chat(num_tokens: int, **members: Any) -> dict[str, Any]:
    """Body of a chat whose response has about 1.6 KB for each token."""
    return {
        "model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": num_tokens, "temperature": 0,
        "ignore_eos": True, "logprobs": True, "top_logprobs": 20, **members,
    }  # fmt: skip


class SlowReader:
    """A connection that reads next to nothing; the system keeps next to nothing for it."""

    def __init__(self, url: str, kind: str, num_tokens: int) -> None:
        address = urlsplit(url)
        self._raw = socket.socket()
        self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self._raw.settimeout(20)
        self._raw.connect((address.hostname, address.port))
        if kind == "websocket":
            self._send_frame({"type": "chat", "id": "a", "request": chat(num_tokens)})
        else:
            body = json.dumps(chat(num_tokens, stream=kind == "sse")).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            self._raw.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def _send_frame(self, frame: dict[str, Any]) -> None:
        self._raw.sendall(
            b"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert self._raw.recv(1024).startswith(b"HTTP/1.1 101")
        data = json.dumps(frame).encode()
        self._raw.sendall(b"\x81\xfe" + len(data).to_bytes(2, "big") + bytes(4) + data)  # RFC 6455, mask of zeros

    def read_byte(self) -> None:
        """Read one byte, if one has come."""
        self._raw.setblocking(False)
        with contextlib.suppress(OSError):  # nothing has come, or the server has closed the connection
            self._raw.recv(1)

    def close(self) -> None:
        """Leave."""
        self._raw.close()


class Neighbours:
    """Measures other streams beside readers of two kinds."""

    def __init__(self, site: LoadSite, *, num_slow: int, num_tokens: int, num_neighbour_tokens: int) -> None:
        self._site = site
        self._num_slow = num_slow
        self._num_tokens = num_tokens
        self._num_neighbour_tokens = num_neighbour_tokens

    async def run(self) -> SlowReaders:
        """Measure beside readers that read everything, then beside readers that read nothing."""
        found = SlowReaders()
        await asyncio.gather(*(stream(url, CHAT, chat(4, stream=True)) for url in self._site.urls))
        before = self._site.holdings()
        normal = [asyncio.create_task(self._read_all(number)) for number in range(self._num_slow)]
        found.alone_s, found.alone_p95_s = await self._neighbours()
        await asyncio.gather(*normal)
        memory = self._site.web_memory()
        slow = [
            await asyncio.to_thread(SlowReader, self._url(number), KINDS[number % len(KINDS)], self._num_tokens)
            for number in range(self._num_slow)
        ]
        sent_at = time.monotonic()
        reads = asyncio.create_task(self._read_bytes(slow[::2]))
        found.beside_s, found.beside_p95_s = await self._neighbours()
        found.memory_bytes = max(0, self._site.web_memory() - memory) * len(self._site.urls) // self._num_slow
        found.problems += await asyncio.to_thread(self._site.left_behind, before)
        found.ended_s = time.monotonic() - sent_at
        reads.cancel()
        for reader in slow:
            reader.close()
        return found

    def _url(self, number: int) -> str:
        return self._site.urls[number % len(self._site.urls)]

    async def _read_all(self, number: int) -> None:
        kind = KINDS[number % len(KINDS)]
        if kind == "json":
            connection = await Connection.opened(self._url(number))
            await connection.send(connection.request(CHAT, chat(self._num_tokens)))
            await connection.head()
            await connection.content()
            connection.leave()
        else:
            await stream(self._url(number), CHAT, chat(self._num_tokens, stream=True))

    async def _neighbours(self) -> tuple[float, float]:
        """Median and 95th percentile of the seconds per token of some streams."""
        body = completion([40, 50], self._num_neighbour_tokens)
        streams: list[Stream] = await asyncio.gather(
            *(stream(self._url(number), "/v1/completions", body) for number in range(NUM_NEIGHBOURS))
        )
        assert [item.ends for item in streams] == [["done"]] * NUM_NEIGHBOURS, streams
        gaps = [gap for item in streams for gap in item.gaps_s()]
        return median(gaps), quantile(gaps, 0.95)

    @staticmethod
    async def _read_bytes(readers: list[SlowReader]) -> None:
        while True:
            await asyncio.sleep(1)
            for reader in readers:
                reader.read_byte()
