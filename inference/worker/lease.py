"""Renew the leases on delivered messages, and return the messages of dead workers to their queues.

Celery redelivers a message that stays unacknowledged for longer than the visibility timeout. That timeout is short
here, so that the requests of a killed worker continue within seconds. A thread renews the leases of all running
requests, because the worker's event loop stops during a drain.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable
from typing import Any

import redis
from redis.exceptions import RedisError

from inference.transport import keys as redis_keys

logger = logging.getLogger(__name__)

TAGS_EXPIRE_S = 3600


class LeaseKeeper:
    """Renew the leases of held delivery tags, and find dead workers.

    Args:
        visibility_timeout_s: Celery's visibility timeout; leases are renewed five times within it.
    """

    def __init__(self, client: redis.Redis, worker_id: str, *, visibility_timeout_s: float) -> None:
        self._client = client
        self._worker_id = worker_id
        self._interval_s = visibility_timeout_s / 5
        self._tags: set[str] = set()
        self._new: list[str] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)

    def start(self) -> None:
        """Start the thread; call once."""
        self._thread.start()

    def hold(self, tag: str) -> None:
        """Renew this tag from now on, and record the tag as this worker's."""
        with self._lock:
            self._tags.add(tag)
            self._new.append(tag)
        self._wake.set()

    def release(self, tags: Iterable[str]) -> None:
        """Stop renewing these tags."""
        with self._lock:
            self._tags.difference_update(tags)

    def held(self) -> list[str]:
        """Return the tags that are renewed."""
        with self._lock:
            return list(self._tags)

    def stop(self) -> None:
        """End the thread. Held messages go back to their queues by Celery's time-out, or by ``hand_back``."""
        self._stopping = True
        self._wake.set()
        self._thread.join(5)

    def _run(self) -> None:
        renewed_at = 0.0
        while not self._stopping:
            try:
                if time.monotonic() - renewed_at >= self._interval_s:
                    self._renew()
                    release_dead_workers(self._client)
                    renewed_at = time.monotonic()
                else:
                    record_tags(self._client, self._worker_id, self._take_new())
            except (RedisError, OSError) as error:
                logger.warning("leases could not be renewed (%s), trying again", error)
                renewed_at = 0.0
                time.sleep(0.2)
                continue
            self._wake.wait(max(0.0, renewed_at + self._interval_s - time.monotonic()))
            self._wake.clear()

    def _renew(self) -> None:
        """Renew the held tags, and forget recorded tags that are not held any more."""
        recorded = recorded_tags(self._client, self._worker_id)  # only this thread records tags
        tags = self.held()
        renew(self._client, self._worker_id, tags, gone=recorded.difference(tags))

    def _take_new(self) -> list[str]:
        with self._lock:
            new, self._new = [tag for tag in self._new if tag in self._tags], []
        return new


def record_tags(client: redis.Redis, worker_id: str, tags: list[str]) -> None:
    """Record the tags as this worker's, so that their messages are redelivered at once when the worker dies."""
    if tags:
        key = redis_keys.tags(worker_id)
        pipe: Any = client.pipeline(transaction=True)
        pipe.sadd(key, *tags)
        pipe.expire(key, TAGS_EXPIRE_S)
        pipe.execute()


def recorded_tags(client: redis.Redis, worker_id: str) -> set[str]:
    """Return the tags that are recorded as this worker's."""
    members: Any = client.smembers(redis_keys.tags(worker_id))
    return {_text(tag) for tag in members}


def renew(client: redis.Redis, worker_id: str, tags: list[str], *, gone: Collection[str] = ()) -> None:
    """Reset the age of ``tags``, record them as this worker's, and remove ``gone`` from its record."""
    key = redis_keys.tags(worker_id)
    pipe: Any = client.pipeline(transaction=True)
    if gone:
        pipe.srem(key, *gone)
    if tags:
        # XX: a tag that was acknowledged in the meantime must not come back.
        pipe.zadd(redis_keys.UNACKED_INDEX, dict.fromkeys(tags, time.time()), xx=True)
        pipe.sadd(key, *tags)
        pipe.expire(key, TAGS_EXPIRE_S)
    pipe.execute()


def hand_back(client: redis.Redis, tags: Iterable[str]) -> None:
    """Make messages overdue, so that the next sweep of any worker (every 2 s) puts them back into their queues."""
    overdue = dict.fromkeys(tags, 1.0)
    if overdue:
        client.zadd(redis_keys.UNACKED_INDEX, overdue, xx=True)


def release_worker(client: redis.Redis, worker_id: str) -> int:
    """Return the messages of a dead worker to their queues, and delete its heartbeat.

    Returns:
        The number of returned messages.
    """
    key = redis_keys.tags(worker_id)
    tags = recorded_tags(client, worker_id)
    hand_back(client, tags)
    pipe: Any = client.pipeline(transaction=True)
    pipe.delete(key, redis_keys.worker(worker_id))
    pipe.zrem(redis_keys.WORKERS, worker_id)
    pipe.execute()
    return len(tags)


def release_dead_workers(client: redis.Redis) -> None:
    """Call ``release_worker`` for every worker whose heartbeat has expired."""
    limit = time.time() - redis_keys.HEARTBEAT_EXPIRE_S
    names: Any = client.zrangebyscore(redis_keys.WORKERS, "-inf", limit)
    for name in names:
        worker_id = _text(name)
        num = release_worker(client, worker_id)
        logger.warning("worker %s has no heartbeat, %d of its requests were returned to their queues", worker_id, num)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
