"""A link against a real Redis: it outlives what breaks a connection, and never gives an answer to the wrong command."""

from __future__ import annotations

import asyncio

import pytest
import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from inference.transport.link import RedisLink
from tests.inference.transport.cut_connections import cut_once

pytestmark = pytest.mark.asyncio


@pytest.fixture
async def link(redis_urls_in_settings):
    found = RedisLink(redis_urls_in_settings.client, connect_timeout_s=2)
    yield found
    await found.close()


async def test_it_connects_itself_and_gives_answers(link):
    assert await link.call("PING", timeout_s=2) == b"PONG"
    assert await link.call("ECHO", "word", timeout_s=2) == b"word"
    await link.close()
    assert await link.call("ECHO", "again", timeout_s=2) == b"again"


async def test_what_the_server_refuses_leaves_it_usable(link):
    with pytest.raises(ResponseError):
        await link.call("EVAL", "not lua", 0, timeout_s=2)
    assert await link.call("ECHO", "word", timeout_s=2) == b"word"


async def test_an_answer_that_takes_too_long_is_not_taken_for_the_next_one(link):
    with pytest.raises(RedisTimeoutError, match=r"within 0\.05 s"):
        await link.call("BLPOP", "blazr:nothing-there", 1, timeout_s=0.05)
    assert not link.is_busy
    assert await link.call("ECHO", "word", timeout_s=2) == b"word"


async def test_a_caller_that_is_cancelled_leaves_no_answer_behind(link):
    task = asyncio.create_task(link.call("BLPOP", "blazr:nothing-there", 1, timeout_s=5))
    await asyncio.sleep(0.05)
    assert link.is_busy
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await link.call("ECHO", "word", timeout_s=2) == b"word"


@pytest.mark.parametrize("before", [True, False])
async def test_a_cut_connection_is_told_and_replaced(redis_urls_in_settings, before):
    async with cut_once(redis_urls_in_settings.client, b"cut-me", before=before) as (url, cuts):
        link = RedisLink(url, connect_timeout_s=2)
        assert await link.call("PING", timeout_s=2) == b"PONG"
        with pytest.raises(RedisConnectionError):
            await link.call("ECHO", "cut-me", timeout_s=2)
        assert cuts
        assert await link.call("ECHO", "cut-me", timeout_s=2) == b"cut-me"
        await link.close()


async def test_a_server_that_is_not_there_is_a_connection_error(tmp_path):
    link = RedisLink(f"unix://{tmp_path}/none.sock", connect_timeout_s=2)
    with pytest.raises(redis.ConnectionError):
        await link.call("PING", timeout_s=2)
    assert not link.is_busy
