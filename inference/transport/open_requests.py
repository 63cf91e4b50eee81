"""Admit messages to the models' queues within limits of requests and bytes, and release them at their end.

One script of Redis admits a message: it counts the open requests of the model and of the caller, and the bytes of all
open messages, and pushes the message in the same call. An open message stays in Redis until its request has ended:
first in its queue, then among Celery's unacknowledged messages. The script also releases requests past their deadline.

A caller with ``DEFERRED_FROM`` open requests of a model sends further ones to the model's deferred queue, which workers
read when the other queue is empty. So a caller with few requests doesn't wait behind another caller's thousands. One of
``PROMOTED_EVERY`` ends moves a deferred message to the other queue, so that deferred messages always advance.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inference.errors import BlazrError, QueueFull, RequestTooLarge, Unavailable
from inference.host.units import format_bytes
from inference.transport import keys as redis_keys

MAX_CALLER_BYTES = 128 << 20
MAX_MODEL_BYTES = 256 << 20
MAX_BYTES = 512 << 20
"""Bytes of open messages in Redis: of one caller, of one model, and of all. The embedded Redis holds twice the last."""
RESERVED_SHARE = 4
"""One of so many places of a model is only for callers with less than an equal share of the places."""
DEFERRED_FROM = 16
PROMOTED_EVERY = 4
EXPIRED_AT_ONCE = 100
"""Requests past their deadline that one admission releases, and their messages that it removes from a queue."""
RETRY_AFTER_S = 2

# release(request id): forget an open request and subtract what it held.
_LUA_RELEASE = f"""
local OPEN, DETAILS, TOTALS = '{redis_keys.OPEN_REQUESTS}', '{redis_keys.OPEN_DETAILS}', '{redis_keys.OPEN_TOTALS}'
local function add(field, number)
  local total = redis.call('HINCRBY', TOTALS, field, number)
  if total <= 0 then redis.call('HDEL', TOTALS, field) end
  return total
end
local function count_field(model, caller) return 'requests:' .. model .. ':' .. caller end
local function release(id)
  local details = redis.call('HGET', DETAILS, id)
  if not details then return end
  local size, model, caller = string.match(details, '^(%d+) %S+ (%S+) (.*)$')
  redis.call('HDEL', DETAILS, id)
  redis.call('ZREM', OPEN, id)
  redis.call('ZREM', '{redis_keys.flight("")}' .. model, id)
  add('bytes', -size)
  add('bytes-of-model:' .. model, -size)
  add('bytes-of-caller:' .. caller, -size)
  if add(count_field(model, caller), -1) <= 0 then add('callers:' .. model, -1) end
  return model
end
"""

# remove_expired(queue): remove the oldest messages of a queue up to one of an open request. Without a worker nobody
# else removes them. The id of a message is near its end.
_LUA_REMOVE_EXPIRED = f"""
local function remove_expired(queue)
  for _ = 1, {EXPIRED_AT_ONCE} do
    local item = redis.call('LINDEX', queue, -1)
    local id = item and string.match(string.sub(item, -600), '"correlation_id": ?"([^"]+)"')
    if not id or redis.call('HEXISTS', DETAILS, id) == 1 then return end
    redis.call('RPOP', queue)
  end
end
"""

# KEYS: requests of the model, its queue, its deferred queue, its holders.
# ARGV: limit, seconds until the deadline, request id, message, delivery tag, model, caller, and the budgets of caller,
# model and Redis. All times are those of Redis.
# A request that is open already was pushed by a call whose reply was lost.
# Redis checks its memory limit before the first write of a script only, and not before a deletion. The first write here
# is therefore a ZADD that adds nothing.
_ADMIT = (
    _LUA_RELEASE
    + _LUA_REMOVE_EXPIRED
    + f"""
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local limit, id, message, tag, model, caller = tonumber(ARGV[1]), ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local deadline, size = now + tonumber(ARGV[2]), #message
local function reply(verdict, number) return {{verdict, number, redis.call('ZCOUNT', KEYS[4], now, '+inf')}} end
local function total(field) return tonumber(redis.call('HGET', TOTALS, field) or 0) end
if redis.call('HEXISTS', DETAILS, id) == 1 then return reply('admitted', 0) end
redis.call('ZADD', OPEN, 'XX', 0, '')
local expired_of = {{}}
for _, expired in ipairs(redis.call('ZRANGEBYSCORE', OPEN, '-inf', now, 'LIMIT', 0, {EXPIRED_AT_ONCE})) do
  expired_of[release(expired) or model] = 1
  redis.call('ZREM', OPEN, expired)
end
for other in pairs(expired_of) do
  remove_expired('{redis_keys.MODEL_QUEUES}' .. other)
  remove_expired('{redis_keys.MODEL_QUEUES}' .. other .. '{redis_keys.DEFERRED}')
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local open, own, callers = redis.call('ZCARD', KEYS[1]), total(count_field(model, caller)), total('callers:' .. model)
if open >= limit then return reply('requests', open) end
if own == 0 then callers = callers + 1 end
local is_scarce = open >= limit - math.floor(limit / {RESERVED_SHARE})
if caller ~= '' and is_scarce and own >= math.floor(limit / (callers + 1)) then return reply('share', own) end
local totals = {{'bytes-of-caller:' .. caller, 'bytes-of-model:' .. model, 'bytes'}}
for index, verdict in ipairs({{'caller_bytes', 'model_bytes', 'bytes'}}) do
  local held = total(totals[index])
  if held + size > tonumber(ARGV[7 + index]) then return reply(verdict, held) end
end
redis.call('LPUSH', (caller ~= '' and own >= {DEFERRED_FROM}) and KEYS[3] or KEYS[2], message)
redis.call('ZADD', KEYS[1], deadline, id)
redis.call('ZADD', OPEN, deadline, id)
redis.call('HSET', DETAILS, id, size .. ' ' .. tag .. ' ' .. model .. ' ' .. caller)
for _, field in ipairs(totals) do add(field, size) end
if own == 0 then add('callers:' .. model, 1) end
add(count_field(model, caller), 1)
return reply('admitted', open)
"""
)

# KEYS: requests of the model, its queue, its deferred queue. ARGV: ids of requests that have ended.
_RELEASE = (
    _LUA_RELEASE
    + f"""
for _, id in ipairs(ARGV) do
  redis.call('ZREM', KEYS[1], id)
  release(id)
  if redis.call('EXISTS', KEYS[3]) == 1 then
    if redis.call('HINCRBY', TOTALS, 'ends:' .. KEYS[2], 1) % {PROMOTED_EVERY} == 0 then
      redis.call('RPOPLPUSH', KEYS[3], KEYS[2])
    end
  else
    redis.call('HDEL', TOTALS, 'ends:' .. KEYS[2])
  end
end
"""
)


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to admit.

    Attributes:
        model: Checkpoint id.
        caller: Tenant of the caller; empty: unknown, and no limit of a caller applies.
        left_s: Seconds until the deadline, at which the request is released however it went.
        tag: Delivery tag of the message.
        envelope: The Celery message.
    """

    request_id: str
    model: str
    caller: str
    left_s: float
    tag: str
    envelope: bytes


async def admit_message(client: Any, message: NewMessage, *, max_requests: int) -> bool:
    """Push a message to its model's queue, or refuse it; idempotent.

    Args:
        client: Client of redis-py.
        message: The message.
        max_requests: Most open requests of a model.

    Returns:
        Whether a worker holds the model.

    Raises:
        QueueFull: A limit of the model or of the caller is reached.
        Unavailable: The open messages of all callers take all of their bytes.
        RequestTooLarge: The message alone exceeds the caller's bytes.
    """
    size = len(message.envelope)
    if size > MAX_CALLER_BYTES:
        raise RequestTooLarge(
            f"The request takes {format_bytes(size)} in the queue, one caller may have "
            f"{format_bytes(MAX_CALLER_BYTES)} there; shorten the prompt."
        )
    keys = (
        redis_keys.flight(message.model),
        redis_keys.model_queue(message.model),
        redis_keys.deferred_queue(message.model),
        redis_keys.holders(message.model),
    )
    verdict, number, num_holders = await client.eval(
        _ADMIT,
        len(keys),
        *keys,
        max_requests,
        repr(message.left_s),
        message.request_id,
        message.envelope,
        message.tag,
        message.model,
        message.caller,
        MAX_CALLER_BYTES,
        MAX_MODEL_BYTES,
        MAX_BYTES,
    )
    if verdict != b"admitted":
        raise _refusal(verdict.decode(), number, size, max_requests)
    return bool(num_holders)


def _refusal(verdict: str, number: int, size: int, max_requests: int) -> BlazrError:
    if verdict == "requests":
        reason = f"{number} requests of this model are queued or running, the limit is {max_requests}"
        return QueueFull(f"{reason}; try again later.", retry_after_s=RETRY_AFTER_S)
    if verdict == "share":
        reason = (
            f"{number} of your requests of this model are queued or running, and the last places of its "
            f"{max_requests} are for callers with fewer"
        )
        return QueueFull(f"{reason}; try again later.", retry_after_s=RETRY_AFTER_S)
    cls, whose, limit = {
        "caller_bytes": (QueueFull, "your open requests", MAX_CALLER_BYTES),
        "model_bytes": (QueueFull, "the open requests of this model", MAX_MODEL_BYTES),
        "bytes": (Unavailable, "the open requests of this server", MAX_BYTES),
    }[verdict]
    return cls(
        f"The request takes {format_bytes(size)} in the queue, and {whose} take {format_bytes(number)} of "
        f"{format_bytes(limit)} there; try again later.",
        retry_after_s=RETRY_AFTER_S,
    )


def release_messages(pipe: Any, checkpoint_id: str, request_ids: Sequence[str]) -> None:
    """Add the release of requests of one model that have ended to a pipeline."""
    keys = (
        redis_keys.flight(checkpoint_id),
        redis_keys.model_queue(checkpoint_id),
        redis_keys.deferred_queue(checkpoint_id),
    )
    pipe.eval(_RELEASE, len(keys), *keys, *request_ids)
