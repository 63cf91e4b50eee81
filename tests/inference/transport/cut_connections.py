"""A way to Redis that breaks when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

from inference.transport.clients import _clients, redis_client


@contextlib.asynccontextmanager
async def cut_once(redis_url: str, marker: bytes, *, before: bool) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A URL that leads to ``redis_url``; the first connection that sends ``marker`` is cut, later ones aren't.

    Args:
        redis_url: Of a Redis on a Unix socket or TCP.
        marker: Part of a command.
        before: Cut before Redis gets the command; otherwise after its answer, which the client doesn't get.

    Yields:
        The URL, and a list that holds the marker once the cut was made.
    """
    parts = urlsplit(redis_url)
    cuts: list[bytes] = []

    async def carry(client: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if parts.scheme == "unix":
            answers, redis = await asyncio.open_unix_connection(parts.path)
        else:
            answers, redis = await asyncio.open_connection(parts.hostname, parts.port)
        back = asyncio.create_task(_pass_on(answers, writer))
        try:
            while data := await client.read(1 << 16):
                if marker in data and not cuts:
                    cuts.append(marker)
                    back.cancel()
                    await asyncio.gather(back, return_exceptions=True)
                    if not before:
                        redis.write(data)
                        await answers.read(1)
                    return
                redis.write(data)
        finally:
            back.cancel()
            redis.close()
            writer.close()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "redis.sock"
        server = await asyncio.start_unix_server(carry, path)
        try:
            yield f"unix://{path}?{parts.query or 'db=' + parts.path.strip('/')}", cuts
        finally:
            server.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)


async def close_broker() -> None:
    """Close the connections of this loop's broker; the next call opens new ones."""
    async with redis_client() as client:
        await client.aclose()
    _clients.pop(asyncio.get_running_loop(), None)
