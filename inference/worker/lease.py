"""Leases on delivered messages, and what happens to those of a dead worker.

Celery gives a message to somebody else when it stays unacknowledged longer than the visibility timeout.
That timeout is short here, so that a killed worker's requests go on within seconds; this thread renews
the time of everything the worker still works on. A thread with its own connection, not a timer of the
worker's event loop: it has to go on during the drain, when that loop no longer turns.
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


class LeaseKeeper:
    """Renews the leases of the tags that are held; also looks for workers that died.

    Args:
        visibility_timeout_s: Celery's; renewed five times as often.
    """

    def __init__(self, client: redis.Redis, worker_id: str, *, visibility_timeout_s: float) -> None:
        self._client = client
        self._worker_id = worker_id
        self._interval_s = visibility_timeout_s / 5
        self._tags: set[str] = set()
        self._new: list[str] = []
        self._unheld: set[str] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def hold(self, tag: str, *, is_noted: bool = False) -> None:
        """Renew this tag from now on; that it is this worker's is noted at once, unless ``is_noted``: it has been."""
        with self._lock:
            self._tags.add(tag)
            if is_noted:
                return
            self._new.append(tag)
        self._wake.set()

    def release(self, tags: Iterable[str]) -> None:
        """Stop renewing."""
        with self._lock:
            self._tags.difference_update(tags)

    def held(self) -> list[str]:
        """Tags that are renewed."""
        with self._lock:
            return list(self._tags)

    def stop(self) -> None:
        """End the thread. What is still held goes back to its queue by Celery's own time-out, or by ``hand_back``."""
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
                    note(self._client, self._worker_id, self._take_new())
            except (RedisError, OSError) as error:
                logger.warning("leases could not be renewed (%s), trying again", error)
                renewed_at = 0.0
                time.sleep(0.2)
                continue
            self._wake.wait(max(0.0, renewed_at + self._interval_s - time.monotonic()))
            self._wake.clear()

    def _renew(self) -> None:
        """Renew what is held; what is noted and wasn't held the last time either is noted no longer.

        The transport notes a message before anybody holds its tag, so once says nothing.
        """
        unheld = noted(self._client, self._worker_id) - set(self.held())
        # Read after what is unheld: a tag that is held by now stays.
        tags = self.held()
        renew(self._client, self._worker_id, tags, gone=(unheld & self._unheld).difference(tags))
        self._unheld = unheld

    def _take_new(self) -> list[str]:
        with self._lock:
            new, self._new = [tag for tag in self._new if tag in self._tags], []
        return new


def note(client: redis.Redis, worker_id: str, tags: list[str]) -> None:
    """Note that the tags are this worker's, so that they go on at once when it dies."""
    if tags:
        key = redis_keys.tags(worker_id)
        pipe: Any = client.pipeline(transaction=True)
        pipe.sadd(key, *tags)
        pipe.expire(key, 3600)
        pipe.execute()


def noted(client: redis.Redis, worker_id: str) -> set[str]:
    """The tags that are noted as this worker's."""
    members: Any = client.smembers(redis_keys.tags(worker_id))
    return {_text(tag) for tag in members}


def renew(client: redis.Redis, worker_id: str, tags: list[str], *, gone: Collection[str] = ()) -> None:
    """Reset the age of the tags, note whose they are, and that ``gone`` isn't this worker's any more."""
    key = redis_keys.tags(worker_id)
    pipe: Any = client.pipeline(transaction=True)
    if gone:
        pipe.srem(key, *gone)
    if tags:
        # XX: a tag that was acknowledged in the meantime must not come back.
        pipe.zadd(redis_keys.UNACKED_INDEX, dict.fromkeys(tags, time.time()), xx=True)
        pipe.sadd(key, *tags)
        pipe.expire(key, 3600)
    pipe.execute()


def hand_back(client: redis.Redis, tags: Iterable[str]) -> None:
    """Make messages overdue: the next sweep of any worker (every 2 s) puts them back into their queue."""
    overdue = dict.fromkeys(tags, 1.0)
    if overdue:
        client.zadd(redis_keys.UNACKED_INDEX, overdue, xx=True)


def release_worker(client: redis.Redis, worker_id: str) -> int:
    """Give the messages of a worker that is known to be dead back, and forget its heartbeat.

    Returns:
        How many messages went back.
    """
    key = redis_keys.tags(worker_id)
    tags = noted(client, worker_id)
    hand_back(client, tags)
    pipe: Any = client.pipeline(transaction=True)
    pipe.delete(key, redis_keys.worker(worker_id))
    pipe.zrem(redis_keys.WORKERS, worker_id)
    pipe.execute()
    return len(tags)


def release_dead_workers(client: redis.Redis) -> None:
    """``release_worker`` for every worker whose heartbeat has expired."""
    limit = time.time() - redis_keys.HEARTBEAT_EXPIRE_S
    names: Any = client.zrangebyscore(redis_keys.WORKERS, "-inf", limit)
    for name in names:
        worker_id = _text(name)
        num = release_worker(client, worker_id)
        logger.warning("worker %s is gone, %d of its requests go back to their queues", worker_id, num)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
