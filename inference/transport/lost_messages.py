"""Find messages that are neither in a queue of their model nor held by a worker.

A worker that is killed between taking a message and recording it loses the message. Numbers show whether that has
happened: a model has as many open requests as queued and held messages. Only if messages are missing, their queues are
read, ``PAGE`` messages at a time, because a message can have many megabytes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from inference.transport import keys as redis_keys

PAGE = 16

# KEYS: requests of the model, its queue, its deferred queue. ARGV: ids of requests.
# Returns the number of missing messages of the model, and of the ids those that Redis doesn't know as open.
_MISSING = f"""
local details, unacked = '{redis_keys.OPEN_DETAILS}', '{redis_keys.UNACKED}'
local clock = redis.call('TIME')
local missing = -(redis.call('LLEN', KEYS[2]) + redis.call('LLEN', KEYS[3]))
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], clock[1], '+inf')) do
  local tag = string.match(redis.call('HGET', details, id) or '', '^%d+ (%S+)')
  if tag and redis.call('HEXISTS', unacked, tag) == 0 then missing = missing + 1 end
end
local unknown = {{}}
for _, id in ipairs(ARGV) do
  if redis.call('HEXISTS', details, id) == 0 then table.insert(unknown, id) end
end
return {{missing, unknown}}
"""

# KEYS: a queue. ARGV: number of the first message, number of messages.
_TAGS = (
    redis_keys.LUA_TAG_OF
    + """
local tags = {}
for number = ARGV[1], ARGV[1] + ARGV[2] - 1 do
  local item = redis.call('LINDEX', KEYS[1], number)
  if not item then break end
  table.insert(tags, tag_of(item) or '')
end
return tags
"""
)


async def lost_candidates(client: Any, checkpoint_id: str, request_ids: Sequence[str]) -> set[str]:
    """Return those requests of a model whose messages may be lost, by numbers alone.

    Args:
        client: Client of redis-py.
        checkpoint_id: The model.
        request_ids: Requests that no worker holds.
    """
    flight, *queues = redis_keys.flight(checkpoint_id), *redis_keys.model_queues(checkpoint_id)
    missing, unknown = await client.eval(_MISSING, 3, flight, *queues, *request_ids)
    return set(request_ids) if missing > 0 else {item.decode() for item in unknown}


async def queued_tags(client: Any, checkpoint_id: str, tags: Collection[str]) -> set[str]:
    """Return those delivery tags whose messages are in a queue of the model.

    A queue is read from its new end, so that messages that arrive or leave meanwhile don't move another one into the
    part that was read. The deferred queue comes first, because its messages move to the other one.
    """
    found: set[str] = set()
    for queue in reversed(redis_keys.model_queues(checkpoint_id)):
        first = 0
        while not found.issuperset(tags):
            page = await client.eval(_TAGS, 1, queue, first, PAGE)
            found.update(tag.decode() for tag in page)
            if len(page) < PAGE:
                break
            first += PAGE
    return found.intersection(tags)
