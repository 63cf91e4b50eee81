"""Messages that are in no queue and with no worker: found, without reading queues that are whole."""

from __future__ import annotations

import json

import pytest
import redis
import redis.asyncio

from inference.transport import keys as redis_keys
from inference.transport import lost_messages, queue
from inference.transport.lost_messages import lost_candidates, queued_tags
from tests.inference.worker.fakes import message

NAMES = [f"r{number}" for number in range(40)]


@pytest.fixture
async def reader(redis_urls_in_settings):
    found = redis.asyncio.Redis.from_url(redis_urls_in_settings.client, protocol=2)
    yield found
    await found.aclose()


@pytest.fixture
async def tags(client):
    """40 requests of one caller, in both queues; their delivery tags."""
    for name in NAMES:
        await queue.publish_generation(message(name) | {"owner": "a"})
    return {name: client.hget(redis_keys.OPEN_DETAILS, name).decode().split()[1] for name in NAMES}


def take(client, name="m.a"):
    """Take a message as a worker does that is killed at once."""
    return json.loads(client.rpop(name))["headers"]["id"]


def num_read(client):
    return sum(client.info("commandstats").get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("lindex", "lrange"))


async def test_whole_queues_are_not_read(client, reader, tags):
    held = take(client)
    client.hset(redis_keys.UNACKED, tags[held], "x")
    client.config_resetstat()
    assert await lost_candidates(reader, "a", NAMES[1:]) == set()
    assert num_read(client) == 0


async def test_lost_messages_are_found_in_pages(client, reader, tags):
    lost = {take(client), take(client, redis_keys.deferred_queue("a"))}
    assert await lost_candidates(reader, "a", NAMES) == set(NAMES)
    client.config_resetstat()
    found = await queued_tags(reader, "a", set(tags.values()))
    assert found == {tag for name, tag in tags.items() if name not in lost}
    assert client.info("commandstats")["cmdstat_eval"]["calls"] >= len(NAMES) / lost_messages.PAGE
    newest = tags[NAMES[-1]]
    client.config_resetstat()
    assert await queued_tags(reader, "a", {newest}) == {newest}
    assert num_read(client) <= lost_messages.PAGE


async def test_a_redis_that_forgot_everything_has_lost_all(client, reader, tags):
    client.flushall()
    assert await lost_candidates(reader, "a", NAMES) == set(NAMES)
    assert await queued_tags(reader, "a", set(tags.values())) == set()
