"""Hold the leases on delivered messages, and return the messages of dead workers to their queues.

The heartbeat of a worker is the lease on all its messages: its peers return them once it is missing. Celery by itself
redelivers a message that is older than the visibility timeout, by the clocks of the machines. A held message therefore
gets an age that no clock reaches, and a returned message one that every clock has passed.

A worker that was stopped and goes on finds that its peers have declared it dead, and ends: its messages are theirs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import redis
from redis.exceptions import RedisError

from inference.host.outage import Outage
from inference.transport import keys as redis_keys
from inference.transport.crash_record import ALONE_AFTER
from inference.transport.redis_time import redis_now_sync
from inference.values.states import WorkerState

logger = logging.getLogger(__name__)

TAGS_EXPIRE_S = 3600
RENEW_INTERVAL_S = 2.0
DEAD_AFTER_S = 10.0
"""Seconds without a heartbeat, by Redis's clock, after which a worker's peers take its messages."""
HELD_SCORE = 1e12
OVERDUE_SCORE = 1.0

# KEYS: tags, index of unacknowledged messages, fence. ARGV: expiry, score, 1 if these are all tags, (tag, request)…
# XX: a message that was acknowledged in the meantime must not come back. Returns whether the worker is fenced.
_RECORD = """
if redis.call('EXISTS', KEYS[3]) == 1 then return 1 end
local held = {}
for index = 4, #ARGV, 2 do
  held[ARGV[index]] = true
  redis.call('HSET', KEYS[1], ARGV[index], ARGV[index + 1])
  redis.call('ZADD', KEYS[2], 'XX', ARGV[2], ARGV[index])
end
if ARGV[3] == '1' then
  for _, tag in ipairs(redis.call('HKEYS', KEYS[1])) do
    if not held[tag] then redis.call('HDEL', KEYS[1], tag) end
  end
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 0
"""

# KEYS: tags, index of unacknowledged messages, state, workers, request that runs alone, fence.
# ARGV: worker, score, prefix of the crash records, their expiry, crashes after which a request runs alone,
# latest heartbeat of a dead worker ('' if it is known to be dead), expiry of the fence.
_RELEASE = """
if ARGV[6] ~= '' then
  local beat = redis.call('ZSCORE', KEYS[4], ARGV[1])
  if not beat or tonumber(beat) > tonumber(ARGV[6]) then return -1 end
  redis.call('SET', KEYS[6], '1', 'EX', ARGV[7])
end
local alone = redis.call('GET', KEYS[5])
local counted, number = {}, 0
local entries = redis.call('HGETALL', KEYS[1])
for index = 1, #entries, 2 do
  local tag, request = entries[index], entries[index + 1]
  if redis.call('ZSCORE', KEYS[2], tag) then
    redis.call('ZADD', KEYS[2], ARGV[2], tag)
    number = number + 1
    local key = ARGV[3] .. request
    local is_shared = not alone and tonumber(redis.call('HGET', key, 'crashes') or '0') < tonumber(ARGV[5])
    if not counted[request] and (is_shared or alone == request) then
      counted[request] = true
      redis.call('HINCRBY', key, 'crashes', 1)
      redis.call('EXPIRE', key, ARGV[4])
    end
  end
end
redis.call('DEL', KEYS[1], KEYS[3], KEYS[5])
redis.call('ZREM', KEYS[4], ARGV[1])
return number
"""


class LeaseKeeper:
    """Record the messages that this worker holds, and find dead workers.

    Args:
        on_fenced: Called when another worker has declared this one dead and has taken its messages.
    """

    def __init__(self, client: redis.Redis, worker_id: str, *, on_fenced: Callable[[], object]) -> None:
        self._client = client
        self._worker_id = worker_id
        self._on_fenced = on_fenced
        self._held: dict[str, str] = {}
        self._new: dict[str, str] = {}
        self._then: list[Callable[[], object]] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)

    def start(self) -> None:
        """Start the thread; call once."""
        self._thread.start()

    def hold(self, tag: str, request_id: str, then: Callable[[], object] | None = None) -> None:
        """Hold the message of this delivery tag from now on.

        Args:
            tag: The delivery tag.
            request_id: The id of its request.
            then: Called from the thread when the tag is recorded, so that a crash after it counts.
        """
        with self._lock:
            self._held[tag] = self._new[tag] = request_id
            if then is not None:
                self._then.append(then)
        self._wake.set()

    def release(self, tags: Iterable[str]) -> None:
        """Hold these tags no longer."""
        with self._lock:
            for tag in tags:
                self._held.pop(tag, None)
                self._new.pop(tag, None)

    def held(self) -> list[str]:
        """Return the tags that are held."""
        with self._lock:
            return list(self._held)

    def record(self) -> None:
        """Record all held tags as this worker's, and forget recorded tags that are not held any more."""
        self._record(complete=True)

    def stop(self) -> None:
        """End the thread. Held messages go back to their queues by ``hand_back``, or when the heartbeat is missing."""
        self._stopping = True
        self._wake.set()
        self._thread.join(5)

    def _run(self) -> None:
        renewed_at = peers_beat_at = 0.0
        outage = Outage(logger, "the leases of this worker")
        while not self._stopping:
            try:
                if time.monotonic() - renewed_at >= RENEW_INTERVAL_S:
                    self.record()
                    if time.monotonic() >= peers_beat_at:
                        release_dead_workers(self._client)
                    renewed_at = time.monotonic()
                else:
                    self._record(complete=False)
                outage.succeeded()
            except (RedisError, OSError) as error:
                outage.failed(error)
                renewed_at = 0.0
                # Nobody could send a heartbeat; at Redis's return all workers look dead until they have.
                peers_beat_at = time.monotonic() + DEAD_AFTER_S
                time.sleep(0.2)
                continue
            self._wake.wait(max(0.0, renewed_at + RENEW_INTERVAL_S - time.monotonic()))
            self._wake.clear()

    def _record(self, *, complete: bool) -> None:
        with self._lock:
            tags, new, then = dict(self._held if complete else self._new), self._new, self._then
            self._new, self._then = {}, []
        if not (tags or complete or then):
            return
        try:
            is_fenced = record_tags(self._client, self._worker_id, tags, complete=complete)
        except (RedisError, OSError):
            with self._lock:
                self._new, self._then = new | self._new, then + self._then
            raise
        if is_fenced:
            self._on_fenced()
            return
        for call in then:
            try:
                call()
            except Exception:
                logger.exception("a held request could not be started")


def record_tags(client: redis.Redis, worker_id: str, tags: dict[str, str], *, complete: bool = False) -> bool:
    """Record the tags as this worker's, and keep kombu from redelivering their messages.

    Args:
        client: Redis client.
        worker_id: The worker.
        tags: Request ids by delivery tag.
        complete: Whether these are all tags of the worker.

    Returns:
        Whether the worker is fenced: its peers have declared it dead, and nothing was recorded.
    """
    keys = redis_keys.tags(worker_id), redis_keys.UNACKED_INDEX, redis_keys.fenced(worker_id)
    pairs = [value for pair in tags.items() for value in pair]
    return bool(client.eval(_RECORD, len(keys), *keys, str(TAGS_EXPIRE_S), str(HELD_SCORE), str(int(complete)), *pairs))


def recorded_tags(client: redis.Redis, worker_id: str) -> set[str]:
    """Return the tags that are recorded as this worker's."""
    members: Any = client.hkeys(redis_keys.tags(worker_id))
    return {_text(tag) for tag in members}


def hand_back(client: redis.Redis, worker_id: str, tags: Iterable[str]) -> None:
    """Make messages overdue, so that the next sweep of any worker (every 2 s) puts them back into their queues."""
    overdue = dict.fromkeys(tags, OVERDUE_SCORE)
    if overdue:
        pipe: Any = client.pipeline(transaction=True)
        pipe.zadd(redis_keys.UNACKED_INDEX, overdue, xx=True)
        pipe.hdel(redis_keys.tags(worker_id), *overdue)
        pipe.execute()


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
        redis_keys.tags(worker_id),
        redis_keys.UNACKED_INDEX,
        redis_keys.worker(worker_id),
        redis_keys.WORKERS,
        redis_keys.alone(worker_id),
        redis_keys.fenced(worker_id),
    )
    number: Any = client.eval(
        _RELEASE, len(keys), *keys, worker_id, str(OVERDUE_SCORE), redis_keys.attempt(""),
        str(redis_keys.ATTEMPT_EXPIRE_S), str(ALONE_AFTER), "" if dead_before is None else repr(dead_before),
        str(TAGS_EXPIRE_S),
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
