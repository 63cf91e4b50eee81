"""Clients of a Redis that is away, and calls that are cancelled."""

from __future__ import annotations

import asyncio
import time

import pytest

from inference.errors import Unavailable
from inference.transport import queue as broker
from inference.transport.clients import redis_client, redis_repeatable
from inference.transport.control import cancel_generation
from inference.transport.worker_states import model_states, worker_states_sync


async def test_redis_that_is_away_is_unavailable_within_its_time(settings, tmp_path):
    settings.BLAZR_REDIS_URL = f"unix://{tmp_path}/none.sock?db=0"
    settings.BLAZR_REDIS_TIMEOUT_S = 0.5
    for call in (cancel_generation("r"), broker.request_load("a"), model_states()):
        started = time.monotonic()
        with pytest.raises(Unavailable):
            await call
        assert time.monotonic() - started < 40
    with pytest.raises(Unavailable):
        worker_states_sync()


async def test_a_cancellation_is_never_dropped(redis_urls_in_settings):
    """Cancelled after each number of turns of the event loop, one of which is the moment of the reply."""
    await redis_repeatable(lambda client: client.ping())
    num_cancelled = 0
    for num_turns in range(200):
        task = asyncio.create_task(redis_repeatable(lambda client: client.ping()))
        for _ in range(num_turns % 20):
            await asyncio.sleep(0)
        if task.cancel():
            num_cancelled += 1
            with pytest.raises(asyncio.CancelledError):
                await task
    assert num_cancelled > 20


async def test_a_cancellation_before_a_call_does_not_end_the_call(redis_urls_in_settings):
    """What a cancelled request still does to end, it does."""

    async def release() -> bytes:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            async with redis_client() as client:
                return await client.echo(b"released")

    task = asyncio.create_task(release())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == b"released"


async def test_a_connection_that_was_reset_is_made_again(redis_urls_in_settings):
    """uvloop raises a RuntimeError from a connection that was reset over TCP; Redis is there."""
    errors = [RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")]

    async def call(client):
        if errors:
            raise errors.pop()
        return await client.ping()

    assert await redis_repeatable(call)
    errors += [RuntimeError("another fault"), RuntimeError("the handler is closed")]
    with pytest.raises(Unavailable):
        async with redis_client():
            raise errors.pop()
    with pytest.raises(RuntimeError, match="another fault"):
        await redis_repeatable(call)
