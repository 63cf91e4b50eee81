"""HTTP clients on one event loop that check the order of what a stream sends, and leave whenever they are told to."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 300.0
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with which a close sends RST in place of FIN."""
ENDS = ("response.completed", "response.incomplete", "response.failed")


def completion(prompt: list[int], max_tokens: int, **members: Any) -> dict[str, Any]:
    """Body of a streamed greedy completion of so many tokens."""
    return {
        "model": "demo", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True,
        "temperature": 0, "stream": True, **members,
    }  # fmt: skip


@dataclass
class Stream:
    """What came of a request.

    Attributes:
        status: 0 until the response begins.
        sent_at: ``time.monotonic()`` when the request was sent.
        began_at: When the response's head had come.
        arrivals: (time, number of tokens) of each delta.
        tokens: Token ids of each choice.
        text: Text of a response (``/v1/responses``), from its deltas.
        final_text: The same, from its last event.
        next_number: The next sequence number.
        gaps: Sequence numbers that weren't the next ones, as sentences.
        ends: ``done``, ``error``, ``status``, or the exception that ended it; exactly one is right.
        usage: Completion tokens by the server's count; None: not sent.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    sent_at: float = 0.0
    began_at: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    text: str = ""
    final_text: str | None = None
    next_number: int = 0
    gaps: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    error: str = ""
    usage: int | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of all choices."""
        return sum(map(len, self.tokens.values()))

    @property
    def ttft_s(self) -> float:
        """Seconds from sending to the first delta; infinite if none came."""
        return self.arrivals[0][0] - self.sent_at if self.arrivals else float("inf")

    def gaps_s(self) -> list[float]:
        """Seconds per token between deltas."""
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return [(now - before) / max(1, number) for (before, _), (now, number) in pairs]

    def take(self, event: bytes) -> None:
        """Take one server-sent event."""
        data = b"".join(line[6:] for line in event.split(b"\n") if line.startswith(b"data: "))
        if not data:
            return  # a heartbeat
        if data == b"[DONE]":
            self.ends += [] if self.ends == ["error"] else ["done"]
            return
        chunk = json.loads(data)
        if self.ends:
            self.gaps.append(f"an event after the end: {data[:100]!r}")
        if "type" in chunk:
            self._take_response(chunk)
        if chunk.get("error"):
            self.ends.append("error")
            self.error = str(chunk["error"])
        if chunk.get("usage"):
            self.usage = chunk["usage"]["completion_tokens"]
        count = 0
        for choice in chunk.get("choices", ()):
            ids = choice.get("token_ids") or ()
            self.tokens.setdefault(choice["index"], []).extend(ids)
            count += len(ids)
        if count:
            self.arrivals.append((time.monotonic(), count))

    def _take_response(self, event: dict[str, Any]) -> None:
        number, kind = event["sequence_number"], event["type"]
        if number != self.next_number:
            self.gaps.append(f"event {number} ({kind}), {self.next_number} was next")
        self.next_number = number + 1
        if kind == "response.output_text.delta":
            self.text += event["delta"]
            self.arrivals.append((time.monotonic(), 1))
        if kind in ENDS:
            self.ends.append("error" if kind == ENDS[2] else "done")
            parts = [part for item in event["response"]["output"] for part in item.get("content", ())]
            self.final_text = "".join(part["text"] for part in parts)


class Connection:
    """One connection for one request; ``opened`` makes it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, found: Stream) -> None:
        self._reader = reader
        self._writer = writer
        self._host = host
        self.stream = found

    @classmethod
    async def opened(cls, url: str, found: Stream | None = None) -> Connection:
        """Connect to a web process; what comes is written to ``found``."""
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        return cls(reader, writer, address.netloc, found or Stream())

    def request(self, path: str, body: dict[str, Any], key: str = "") -> bytes:
        """Return the bytes of a POST."""
        content = json.dumps(body).encode()
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nConnection: close\r\n{authorization}"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content

    async def send(self, data: bytes) -> None:
        """Send bytes of the request."""
        self.stream.sent_at = time.monotonic()
        self._writer.write(data)
        await self._writer.drain()

    async def head(self) -> int:
        """Read status and headers; return the status."""
        raw = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin1").split("\r\n")
        stream = self.stream
        stream.status, stream.began_at = int(first.split()[1]), time.monotonic()
        stream.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return stream.status

    async def content(self) -> bytes:
        """Read a body that isn't a stream."""
        length = self.stream.headers.get("content-length")
        if length is not None:
            return await self._reader.readexactly(int(length))
        return b"".join([piece async for piece in self._pieces()])

    async def events(self) -> AsyncIterator[None]:
        """Read the stream into ``stream``, a step for each piece."""
        rest = b""
        async for piece in self._pieces():
            *events, rest = (rest + piece).split(b"\n\n")
            for event in events:
                self.stream.take(event)
            yield

    async def server_events(self) -> AsyncIterator[bytes]:
        """Yield the server-sent events as they are."""
        rest = b""
        async for piece in self._pieces():
            *events, rest = (rest + piece).split(b"\n\n")
            for event in events:
                yield event

    async def _pieces(self) -> AsyncIterator[bytes]:
        """Yield the chunks of a chunked body."""
        while size := int(await self._reader.readline(), 16):
            yield await self._reader.readexactly(size)
            await self._reader.readexactly(2)

    def leave(self, *, reset: bool = False) -> float:
        """Close the connection with FIN or RST; return the time of it."""
        if reset:
            raw: socket.socket = self._writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        at = time.monotonic()
        self._writer.transport.abort()
        return at


async def stream(url: str, path: str, body: dict[str, Any], key: str = "", found: Stream | None = None) -> Stream:
    """Send a request, and read its stream, or its refusal, to the end, into ``found`` if that is given."""
    found = found or Stream()
    try:
        connection = await Connection.opened(url, found)
    except OSError as error:
        found.ends.append(repr(error))
        return found
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await connection.send(connection.request(path, body, key))
            if await connection.head() != 200:
                found.error = (await connection.content()).decode()
                found.ends.append("status")
            else:
                async for _ in connection.events():
                    pass
    except (OSError, EOFError, ValueError, TimeoutError) as error:
        found.ends.append(repr(error))
    finally:
        connection.leave()
    return found
