"""RedisLink: a connection of somebody's own, for commands whose time counts.

redis-py's client takes a connection out of its pool for every call and sends in a task of its own, which is half of a
call's processor time (docs/decisions/0037-deltas-in-one-piece.md). It is the same connection here, without either.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import redis.asyncio as aioredis
from redis.exceptions import TimeoutError as RedisTimeoutError


class RedisLink:
    """One connection, one command at a time; belongs to an event loop. It connects itself, and again when it was cut.

    Args:
        url: As redis-py spells it.
        connect_timeout_s: Longest time to connect.
        options: Of redis-py's connections.
    """

    def __init__(self, url: str, *, connect_timeout_s: float, **options: Any) -> None:
        # Without a socket_timeout, or sending would be a task; ``call`` has the time limit.
        pool: Any = aioredis.ConnectionPool.from_url(
            url, protocol=2, socket_timeout=None, socket_connect_timeout=connect_timeout_s, **options
        )
        self._connection = pool.make_connection()
        self._is_busy = False

    @property
    def is_busy(self) -> bool:
        """Whether a command is on its way; another one has to wait."""
        return self._is_busy

    async def call(self, *command: Any, timeout_s: float) -> Any:
        """Send a command and read its answer.

        Raises:
            RedisError: The connection was cut or took longer than ``timeout_s``, or the server refused the command.
        """
        assert not self._is_busy, "a link carries one command at a time"
        self._is_busy = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._connection.send_command(*command, check_health=False)
                return await self._connection.read_response(timeout=math.inf)
        except TimeoutError as error:
            raise RedisTimeoutError(f"no answer within {timeout_s:g} s") from error
        finally:
            self._is_busy = False

    async def close(self) -> None:
        """Close the connection; the next call makes another."""
        await self._connection.disconnect(nowait=True)
