"""Admit messages to the models' queues within limits of requests and bytes, and release them at their end.

One script of Redis admits a message: it counts the open requests of the model and of the caller, and the bytes of all
open messages, and queues the message in the same call. An open message stays in Redis until its request has ended. It
is in a queue of its model, or held by the worker that has taken it (``inference.transport.held_messages``). The script
also releases requests past their deadline.

A caller with ``DEFERRED_FROM`` open requests of a model sends further ones to the model's deferred queue, from which
workers take when the other queues are empty. So a caller with few requests doesn't wait behind another caller's
thousands. One of ``PROMOTED_EVERY`` ends moves a deferred request to the other queue, so that deferred ones always
advance.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from inference.errors import BlazrError, QueueFull, RequestTooLarge, Unavailable
from inference.host.units import format_bytes
from inference.transport import keys as redis_keys

MAX_CALLER_BYTES = 128 << 20
MAX_MODEL_BYTES = 256 << 20
MAX_BYTES = 512 << 20
"""Bytes of open messages in Redis: of one caller, of one model, and of all; less in a Redis with less than twice the
last (``inference.transport.redis_memory``)."""
MIN_BYTES = 16 << 20
"""Bytes of all open messages in the smallest Redis."""
RESERVED_SHARE = 4
"""One of so many places of a model is only for callers with less than an equal share of the places."""
DEFERRED_FROM = 16
PROMOTED_EVERY = 4
EXPIRED_AT_ONCE = 100
"""Requests past their deadline that one call releases."""
RETRY_AFTER_S = 2
RETRY_JITTER_S = 3
"""Refused callers get one of so many further seconds as their time to retry, so that they don't return together."""

LUA_QUEUES = f"""
local MESSAGES, MESSAGE_WORKERS = '{redis_keys.MESSAGES}', '{redis_keys.MESSAGE_WORKERS}'
local QUEUES = {{'{redis_keys.RETURNED}', '', '{redis_keys.DEFERRED}'}}
local function queue_of(model, kind) return '{redis_keys.MODEL_QUEUES}' .. model .. kind end
local function origin_of(id)
  return string.match(redis.call('HGET', '{redis_keys.OPEN_ORIGINS}', id) or '', '^(%S+) (.*)$')
end
local function wake_one(model)
  local key = queue_of(model, '{redis_keys.ARRIVED}')
  if redis.call('EXISTS', key) == 0 then redis.call('LPUSH', key, '1') end
end
"""
"""Lua: ``MESSAGES`` and ``MESSAGE_WORKERS``, keys; ``QUEUES``, the ends of the names of a model's queues in the order
of taking; ``queue_of(model, end)``; ``origin_of(request id)``: model and caller, or nothing; ``wake_one(model)``: wake
one worker that waits for the model.
"""

# release(request id): forget an open request and subtract what it held; returns its model.
# expire(now): release some requests past their deadline; returns their number.
# Both begin with a deletion: Redis at its memory limit refuses a script whose first write could take memory, and checks
# none after the first.
_LUA_RELEASE = (
    LUA_QUEUES
    + f"""
local OPEN, TOTALS = '{redis_keys.OPEN_REQUESTS}', '{redis_keys.OPEN_TOTALS}'
local function add(field, number)
  local total = redis.call('HINCRBY', TOTALS, field, number)
  if total <= 0 then redis.call('HDEL', TOTALS, field) end
  return total
end
local function fields_of(model, caller)
  local all = '{redis_keys.num_open_field("")}' .. model
  return all, all .. ':' .. caller, 'callers:' .. model
end
local function byte_fields(model, caller)
  return {{'bytes-of-caller:' .. caller, 'bytes-of-model:' .. model, 'bytes'}}
end
local function release(id)
  local model, caller = origin_of(id)
  if not model then return end
  local all, own, callers = fields_of(model, caller)
  local size = redis.call('HSTRLEN', MESSAGES, id)
  for _, hash in ipairs({{MESSAGES, MESSAGE_WORKERS, '{redis_keys.OPEN_ORIGINS}'}}) do redis.call('HDEL', hash, id) end
  redis.call('ZREM', OPEN, id)
  for _, field in ipairs(byte_fields(model, caller)) do add(field, -size) end
  add(all, -1)
  if add(own, -1) <= 0 then add(callers, -1) end
  return model
end
local function expire(now)
  local expired = redis.call('ZRANGEBYSCORE', OPEN, '-inf', now, 'LIMIT', 0, {EXPIRED_AT_ONCE})
  for _, id in ipairs(expired) do
    local model = release(id)
    for _, kind in ipairs(model and QUEUES or {{}}) do redis.call('LREM', queue_of(model, kind), 1, id) end
  end
  return #expired
end
"""
)

# ARGV: Redis's time.
_EXPIRE = f"{_LUA_RELEASE} return expire(ARGV[1])"

# KEYS: holders of the model. ARGV: 1 if the message is published again, seconds until the deadline, request id,
# message, model, caller, limit of requests, and the budgets of caller, model and Redis. All times are those of Redis.
# A request that is open already was queued by a call whose reply was lost.
# The ZADD adds nothing. A Redis at its memory limit refuses it; expired requests are released nevertheless.
_ADMIT = (
    _LUA_RELEASE
    + f"""
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local is_again, id, message, model, caller = ARGV[1] == '1', ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local limit, size = tonumber(ARGV[7]), #message
local function reply(verdict, number) return {{verdict, number, redis.call('ZCOUNT', KEYS[1], now, '+inf')}} end
local function total(field) return tonumber(redis.call('HGET', TOTALS, field) or 0) end
if redis.call('HEXISTS', MESSAGES, id) == 1 then return reply('admitted', 0) end
local probe = redis.pcall('ZADD', OPEN, 'XX', 0, '')
expire(now)
if type(probe) == 'table' and probe.err then return probe end
local all, own, callers = fields_of(model, caller)
local num_all, num_own, num_callers = total(all), total(own), total(callers)
local byte_totals = byte_fields(model, caller)
if not is_again then
  if num_all >= limit then return reply('requests', num_all) end
  if num_own == 0 then num_callers = num_callers + 1 end
  local is_scarce = num_all >= limit - math.floor(limit / {RESERVED_SHARE})
  if caller ~= '' and is_scarce and num_own >= math.floor(limit / (num_callers + 1)) then
    return reply('share', num_own)
  end
  for index, verdict in ipairs({{'caller_bytes', 'model_bytes', 'bytes'}}) do
    local held = total(byte_totals[index])
    if held + size > tonumber(ARGV[7 + index]) then return reply(verdict, held) end
  end
end
redis.call('HSET', MESSAGES, id, message)
redis.call('HSET', '{redis_keys.OPEN_ORIGINS}', id, model .. ' ' .. caller)
redis.call('ZADD', OPEN, now + tonumber(ARGV[2]), id)
for _, field in ipairs(byte_totals) do add(field, size) end
if num_own == 0 then add(callers, 1) end
add(all, 1)
add(own, 1)
local is_deferred = caller ~= '' and num_own >= {DEFERRED_FROM}
local kind = is_again and '{redis_keys.RETURNED}' or is_deferred and '{redis_keys.DEFERRED}' or ''
redis.call('LPUSH', queue_of(model, kind), id)
wake_one(model)
return reply('admitted', num_all)
"""
)

# ARGV: worker, ids of requests that have ended. A worker that was declared dead holds none: it can't end a request that
# another worker runs.
_RELEASE = (
    _LUA_RELEASE
    + f"""
for index = 2, #ARGV do
  local id = ARGV[index]
  local model = redis.call('HGET', MESSAGE_WORKERS, id) == ARGV[1] and release(id)
  if model then
    local deferred = queue_of(model, '{redis_keys.DEFERRED}')
    if redis.call('EXISTS', deferred) == 0 then
      redis.call('HDEL', TOTALS, 'ends:' .. model)
    elseif redis.call('HINCRBY', TOTALS, 'ends:' .. model, 1) % {PROMOTED_EVERY} == 0 then
      redis.call('RPOPLPUSH', deferred, queue_of(model, ''))
    end
  end
end
"""
)


class NoPlace(QueueFull):
    """The caller gets no place in the model's queue, however small the request is."""

    def again(self) -> NoPlace:
        """Return the error for the caller's next request, with a time to retry of its own."""
        return NoPlace(self.message, retry_after_s=_retry_after_s())


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to admit.

    Attributes:
        model: Checkpoint id.
        caller: Tenant of the caller; empty: unknown, and no limit of a caller applies.
        left_s: Seconds until the deadline, at which the request is released however it went.
        body: The message as JSON.
    """

    request_id: str
    model: str
    caller: str
    left_s: float
    body: bytes


async def admit_message(
    client: Any, message: NewMessage, *, max_requests: int, memory_bytes: int = 0, is_again: bool = False
) -> bool:
    """Add a message to its model's queue, or refuse it; idempotent.

    Args:
        client: Client of redis-py.
        message: The message.
        max_requests: Most open requests of a model.
        memory_bytes: Memory that Redis may take; 0: no limit.
        is_again: Whether the message was admitted before, and Redis has forgotten it. No limit applies.

    Returns:
        Whether a worker holds the model.

    Raises:
        NoPlace: The open requests of the model or of the caller are as many as they may be.
        QueueFull: The open messages of the model or of the caller take all of their bytes.
        Unavailable: The open messages of all callers take all of their bytes.
        RequestTooLarge: The message alone exceeds the caller's bytes.
    """
    size, limits = len(message.body), byte_limits(memory_bytes)
    if size > limits[0]:
        raise RequestTooLarge(
            f"The request takes {format_bytes(size)} in the queue, one caller may have "
            f"{format_bytes(limits[0])} there; shorten the prompt."
        )
    verdict, number, num_holders = await client.eval(
        _ADMIT, 1, redis_keys.holders(message.model),
        int(is_again), repr(message.left_s), message.request_id, message.body, message.model, message.caller,
        max_requests, *limits,
    )  # fmt: skip
    if verdict != b"admitted":
        raise _refusal(verdict.decode(), number, size, max_requests, limits)
    return bool(num_holders)


def byte_limits(memory_bytes: int) -> tuple[int, int, int]:
    """Return the bytes of open messages that a Redis of ``memory_bytes`` holds: of a caller, of a model, and of all.

    They take at most half of its memory, so that it always has some for events and ends. ``memory_bytes``: 0: no limit.
    """
    share = min(1.0, max(MIN_BYTES, memory_bytes // 2) / MAX_BYTES) if memory_bytes else 1.0
    return int(share * MAX_CALLER_BYTES), int(share * MAX_MODEL_BYTES), int(share * MAX_BYTES)


def expire_messages(client: redis.Redis, now: float) -> int:
    """Release some of the requests past their deadline at Redis's time ``now``; return their number."""
    number: Any = client.eval(_EXPIRE, 0, repr(now))
    return int(number)


def _refusal(verdict: str, number: int, size: int, max_requests: int, limits: tuple[int, int, int]) -> BlazrError:
    if verdict == "requests":
        reason = f"{number} requests of this model are queued or running, the limit is {max_requests}"
        return NoPlace(f"{reason}; try again later.", retry_after_s=_retry_after_s())
    if verdict == "share":
        reason = (
            f"{number} of your requests of this model are queued or running, and the last places of its "
            f"{max_requests} are for callers with fewer"
        )
        return NoPlace(f"{reason}; try again later.", retry_after_s=_retry_after_s())
    cls, whose, limit = {
        "caller_bytes": (QueueFull, "your open requests", limits[0]),
        "model_bytes": (QueueFull, "the open requests of this model", limits[1]),
        "bytes": (Unavailable, "the open requests of this server", limits[2]),
    }[verdict]
    return cls(
        f"The request takes {format_bytes(size)} in the queue, and {whose} take {format_bytes(number)} of "
        f"{format_bytes(limit)} there; try again later.",
        retry_after_s=RETRY_AFTER_S,
    )


def _retry_after_s() -> int:
    return RETRY_AFTER_S + secrets.randbelow(RETRY_JITTER_S)


def release_messages(pipe: Any, worker_id: str, request_ids: Sequence[str]) -> None:
    """Add the release of requests that have ended to a pipeline; only those that the worker holds are released."""
    pipe.eval(_RELEASE, 0, worker_id, *request_ids)
