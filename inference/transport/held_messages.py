"""Take messages from the models' queues for a worker, and return the messages of workers that are gone.

Taking a message and recording it as the worker's is one script of Redis, so that no message is lost between the two.
A message whose worker is gone goes to its model's queue of returned messages, which is taken first. The worker that
takes the message knows from the queue that another worker had it. The heartbeat of a worker is the lease on all its
messages: when the heartbeat is missing, other workers return them. A worker that was declared dead is fenced: it takes
nothing more, and can't end a request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import redis

from inference.transport import keys as redis_keys
from inference.transport.crash_record import ALONE_AFTER
from inference.transport.open_requests import LUA_QUEUES
from inference.transport.redis_time import redis_now_sync
from inference.values.states import WorkerState

logger = logging.getLogger(__name__)

MAX_MESSAGES = 16
MAX_BYTES = 4 << 20
"""Most messages, and the bytes after which no further message is taken, in one call."""
DEAD_AFTER_S = 10.0
"""Seconds without a heartbeat, by Redis's clock, after which a worker's peers take its messages."""
FENCE_EXPIRE_S = 3600
WAKE_EXPIRE_S = 60

# KEYS: fence. ARGV: worker, most messages, most bytes, models in the order of turns.
# Each model's share is what its holders would take alike. Returns ids and messages, each with 1 if a worker had it
# before, and the number of ids without a message; nothing if the worker is fenced. The first write is an RPOP, which a
# Redis at its memory limit allows; so it allows the others.
_TAKE = (
    LUA_QUEUES
    + f"""
if redis.call('EXISTS', KEYS[1]) == 1 then return false end
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local left, left_bytes, shares = tonumber(ARGV[2]), tonumber(ARGV[3]), {{}}
local function num_queued(model)
  local number = 0
  for _, kind in ipairs(QUEUES) do number = number + redis.call('LLEN', queue_of(model, kind)) end
  return number
end
for index = 4, #ARGV do
  local model = ARGV[index]
  local num_holders = redis.call('ZCOUNT', '{redis_keys.holders("")}' .. model, now, '+inf')
  shares[model] = math.ceil(num_queued(model) / math.max(num_holders, 1))
end
local taken, unknown = {{}}, 0
for number, kind in ipairs(QUEUES) do
  for index = 4, #ARGV do
    local model = ARGV[index]
    while left > 0 and left_bytes > 0 and shares[model] > 0 do
      local id = redis.call('RPOP', queue_of(model, kind))
      if not id then break end
      local message = redis.call('HGET', MESSAGES, id)
      if message and redis.call('HSETNX', MESSAGE_WORKERS, id, ARGV[1]) == 1 then
        table.insert(taken, {{id, message, number == 1 and 1 or 0}})
        left, left_bytes, shares[model] = left - 1, left_bytes - #message, shares[model] - 1
      elseif not message then
        unknown = unknown + 1
      end
    end
  end
end
-- Peers look for the messages of workers that are in this set.
if #taken > 0 then redis.call('ZADD', '{redis_keys.WORKERS}', 'NX', now, ARGV[1]) end
for index = 4, #ARGV do
  local model = ARGV[index]
  if num_queued(model) > 0 then wake_one(model) else redis.call('DEL', queue_of(model, '{redis_keys.ARRIVED}')) end
end
return {{taken, unknown}}
"""
)

# return_message(request id): return a held message to its model.
_LUA_RETURN_MESSAGE = (
    LUA_QUEUES
    + f"""
local function return_message(id)
  local model = origin_of(id)
  if not model then return end
  redis.call('HDEL', MESSAGE_WORKERS, id)  -- first, because a full Redis checks the first write of a script only
  redis.call('LPUSH', queue_of(model, '{redis_keys.RETURNED}'), id)
  wake_one(model)
end
"""
)

# ARGV: worker, ids.
_RETURN_MESSAGES = (
    _LUA_RETURN_MESSAGE
    + """
for index = 2, #ARGV do
  if redis.call('HGET', MESSAGE_WORKERS, ARGV[index]) == ARGV[1] then return_message(ARGV[index]) end
end
"""
)

# KEYS: state, workers, request that runs alone, fence.
# ARGV: worker, prefix of the crash records, their expiry, crashes after which a request runs alone,
# latest heartbeat of a dead worker ('' if it is known to be dead), expiry of the fence.
_RELEASE_WORKER = (
    _LUA_RETURN_MESSAGE
    + """
if ARGV[5] ~= '' then
  local beat = redis.call('ZSCORE', KEYS[2], ARGV[1])
  if not beat or tonumber(beat) > tonumber(ARGV[5]) then return -1 end
  redis.call('ZREM', KEYS[2], ARGV[1])  -- first, as in return_message
  redis.call('SET', KEYS[4], '1', 'EX', ARGV[6])
end
local alone = redis.call('GET', KEYS[3])
local number = 0
local held = redis.call('HGETALL', MESSAGE_WORKERS)
for index = 1, #held, 2 do
  local id = held[index]
  if held[index + 1] == ARGV[1] then
    return_message(id)
    number = number + 1
    local key = ARGV[2] .. id
    local is_shared = not alone and tonumber(redis.call('HGET', key, 'crashes') or '0') < tonumber(ARGV[4])
    if is_shared or alone == id then
      redis.call('HINCRBY', key, 'crashes', 1)
      redis.call('EXPIRE', key, ARGV[3])
    end
  end
end
redis.call('DEL', KEYS[1], KEYS[3])
redis.call('ZREM', KEYS[2], ARGV[1])
return number
"""
)


class HeldMessage(NamedTuple):
    """A message that a worker has taken, as JSON; ``had_before``: whether a worker had it before."""

    request_id: str
    body: bytes
    had_before: bool


class Taken(NamedTuple):
    """What a worker took in one call.

    Attributes:
        messages: The messages.
        unknown: Number of the queues' elements that are no ids of open requests; they are removed.
    """

    messages: list[HeldMessage]
    unknown: int


def take_messages(
    client: redis.Redis, worker_id: str, checkpoint_ids: Sequence[str], *, max_messages: int = MAX_MESSAGES
) -> Taken | None:
    """Take messages of these models, and record them as the worker's, in one step.

    Returned messages come first, then new ones, then deferred ones. With several holders of a model, each takes its
    share of the queued messages.

    Args:
        client: Redis client.
        worker_id: The worker.
        checkpoint_ids: The models, in the order of turns.
        max_messages: Most messages.

    Returns:
        The messages; None: the worker is fenced, and has taken nothing.
    """
    limits = str(min(max_messages, MAX_MESSAGES)), str(MAX_BYTES)
    found: Any = client.eval(_TAKE, 1, redis_keys.fenced(worker_id), worker_id, *limits, *checkpoint_ids)
    if found is None:
        return None
    messages, unknown = found
    return Taken([HeldMessage(_text(id_), body, bool(had_before)) for id_, body, had_before in messages], unknown)


def wait_for_messages(
    client: redis.Redis, worker_id: str, checkpoint_ids: Iterable[str], timeout_s: float
) -> str | None:
    """Wait until messages of these models have arrived, the worker is woken, or ``timeout_s`` has passed.

    Returns:
        The model whose messages have arrived; no other worker is woken for them. None: another reason.
    """
    by_key = {redis_keys.arrived(item): item for item in checkpoint_ids}
    found: Any = client.blpop([redis_keys.wake(worker_id), *by_key], timeout=timeout_s)
    return by_key.get(_text(found[0])) if found else None


def wake_others(client: redis.Redis, checkpoint_id: str) -> None:
    """Wake another worker for messages that the woken one doesn't take."""
    client.lpush(redis_keys.arrived(checkpoint_id), "1")


def wake_worker(pipe: Any, worker_id: str) -> None:
    """End the wait of a worker in ``wait_for_messages``, now or when it begins."""
    pipe.lpush(redis_keys.wake(worker_id), "1")
    pipe.expire(redis_keys.wake(worker_id), WAKE_EXPIRE_S)


def held_messages(client: redis.Redis, worker_id: str) -> set[str]:
    """Return the ids of the requests whose messages a worker has taken."""
    workers: Any = client.hgetall(redis_keys.MESSAGE_WORKERS)
    return {_text(request_id) for request_id, worker in workers.items() if _text(worker) == worker_id}


def return_messages(client: redis.Redis, worker_id: str, request_ids: Iterable[str]) -> None:
    """Return messages that a worker holds to their queues."""
    ids = list(request_ids)
    if ids:
        client.eval(_RETURN_MESSAGES, 0, worker_id, *ids)


def release_worker(client: redis.Redis, worker_id: str, *, dead_before: float | None = None) -> int:
    """Return the messages of a dead worker to their queues, and delete its heartbeat.

    The crash counts against each request that may have caused it (``inference.transport.crash_record``).

    Args:
        client: Redis client.
        worker_id: The worker.
        dead_before: Latest heartbeat of a dead worker. The worker is then fenced, because it may still run; None: its
            process has ended.

    Returns:
        The number of returned messages; -1: the worker has a later heartbeat.
    """
    payload: Any = client.get(redis_keys.worker(worker_id))
    keys = (
        redis_keys.worker(worker_id),
        redis_keys.WORKERS,
        redis_keys.alone(worker_id),
        redis_keys.fenced(worker_id),
    )
    number: Any = client.eval(
        _RELEASE_WORKER, len(keys), *keys, worker_id, redis_keys.attempt(""), str(redis_keys.ATTEMPT_EXPIRE_S),
        str(ALONE_AFTER), "" if dead_before is None else repr(dead_before), str(FENCE_EXPIRE_S),
    )  # fmt: skip
    if number >= 0 and payload:
        # Its models have one holder less, so that the next request for them needs no expiry to have one loaded.
        pipe: Any = client.pipeline(transaction=False)
        for model in WorkerState.from_json(payload).models:
            pipe.zrem(redis_keys.holders(model.checkpoint_id), worker_id)
        pipe.execute()
    return int(number)


def release_dead_workers(client: redis.Redis) -> None:
    """Call ``release_worker`` for every worker whose heartbeat is missing."""
    limit = redis_now_sync(client) - DEAD_AFTER_S
    names: Any = client.zrangebyscore(redis_keys.WORKERS, "-inf", limit)
    for name in names:
        worker_id = _text(name)
        number = release_worker(client, worker_id, dead_before=limit)
        if number >= 0:
            logger.warning(
                "worker %s has no heartbeat, %d of its requests were returned to their queues", worker_id, number
            )


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
