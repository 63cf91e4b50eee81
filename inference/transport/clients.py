"""Provide this process's Redis clients, and raise their connection errors as ``Unavailable``."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import redis as sync_redis
import redis.asyncio as aioredis
from django.conf import settings
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, RedisError

from inference.errors import Unavailable

T = TypeVar("T")


RECONNECT_PAUSES_S = (0.02, 0.1, 0.3)
"""Seconds to pause before each repetition of a call whose connection was cut."""


_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[str, aioredis.Redis]] = weakref.WeakKeyDictionary()


@contextlib.asynccontextmanager
async def redis_client() -> AsyncIterator[Any]:
    """Yield the Redis client of the running event loop; raise its errors as ``Unavailable``.

    Raises ``CancelledError`` where the client dropped a cancellation: it waits by ``asyncio.wait_for``, which in
    Python 3.11 returns its result when a cancellation arrives at the same moment.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    num_cancellations = 0 if task is None else task.cancelling()
    url = settings.BLAZR_REDIS_URL
    found = _clients.get(loop)
    if found is None or found[0] != url:
        timeout_s = settings.BLAZR_REDIS_TIMEOUT_S
        pool = aioredis.BlockingConnectionPool.from_url(
            url, protocol=2, max_connections=32, timeout=timeout_s, socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
        )  # fmt: skip
        found = _clients[loop] = (url, aioredis.Redis(connection_pool=pool))
    try:
        yield found[1]
    except (TimeoutError, RedisError, OSError) as error:
        raise unavailable_on_redis_error(error) from error
    except RuntimeError as error:
        if not _is_cut(error):
            raise
        raise unavailable_on_redis_error(error) from error
    if task is not None and task.cancelling() > num_cancellations:
        raise asyncio.CancelledError


async def redis_repeatable(call: Callable[[Any], Awaitable[T]]) -> T:
    """Return the reply of ``call``; repeat the call over a new connection when the connection is cut.

    Args:
        call: Called with a client. Must be idempotent: Redis may have executed the command before the cut.

    Raises:
        Unavailable: Redis can't be reached, or doesn't reply in time.
    """
    begun = time.monotonic()
    async with redis_client() as client:
        for pause_s in RECONNECT_PAUSES_S:
            try:
                return await call(client)
            except (RedisConnectionError, RuntimeError) as error:
                if not _is_cut(error):
                    raise
                if time.monotonic() - begun > settings.BLAZR_REDIS_TIMEOUT_S:
                    raise
                await asyncio.sleep(pause_s)
        return await call(client)


def _is_cut(error: Exception) -> bool:
    """Whether a connection was cut; for one that was reset, uvloop raises a RuntimeError at the next write."""
    return isinstance(error, RedisConnectionError) or "the handler is closed" in str(error)


def connect(url: str, *, timeout_s: float = 10, connect_timeout_s: float = 2) -> sync_redis.Redis:
    """Return a synchronous client, whose timeout is by default longer than any blocking read of a worker."""
    # Without a name for CLIENT SETINFO: redis-py would parse its own package's metadata for each connection (5 ms).
    return sync_redis.Redis.from_url(
        url, protocol=2, socket_timeout=timeout_s, socket_connect_timeout=connect_timeout_s, driver_info=None
    )


@contextlib.contextmanager
def redis_client_sync() -> Iterator[sync_redis.Redis]:
    """Yield a client for one synchronous call; raise its errors as ``Unavailable``."""
    timeout_s = settings.BLAZR_REDIS_TIMEOUT_S
    client = connect(settings.BLAZR_REDIS_URL, timeout_s=timeout_s, connect_timeout_s=timeout_s)
    try:
        yield client
    except (RedisError, OSError) as error:
        raise unavailable_on_redis_error(error) from error
    finally:
        client.close()


def unavailable_on_redis_error(error: BaseException) -> Unavailable:
    """Return the ``Unavailable`` to raise for a Redis error."""
    if isinstance(error, OutOfMemoryError):
        return Unavailable(
            "The message broker has reached its memory limit (maxmemory); try again, or give Redis more memory.",
            retry_after_s=5,
        )
    return Unavailable(f"The message broker can't be reached ({type(error).__name__}); try again.", retry_after_s=2)
