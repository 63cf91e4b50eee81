"""Advertise the worker's models in Redis, and select the Celery queues that it consumes."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any

import redis
from redis.exceptions import RedisError

from inference.errors import BlazrError
from inference.transport import keys as redis_keys
from inference.transport.redis_time import redis_now_sync

logger = logging.getLogger(__name__)


class QueueSelector:
    """Selects the queues that the Celery consumer reads; all methods are thread-safe.

    The selection is stored here and applied on the consumer's event loop, because Celery and kombu are not thread-safe.
    """

    def __init__(self) -> None:
        self._selected: set[str] = set()
        self._lock = threading.Lock()
        self._consumer: Any = None

    def attach(self, consumer: Any) -> None:
        """Apply the selection to this consumer from now on (``worker_ready``)."""
        self._consumer = consumer
        self._apply_soon()

    def add(self, queue: str) -> None:
        """Read this queue."""
        with self._lock:
            self._selected.add(queue)
        self._apply_soon()

    def remove(self, queue: str) -> None:
        """Stop reading this queue."""
        with self._lock:
            self._selected.discard(queue)
        self._apply_soon()

    def _apply_soon(self) -> None:
        if self._consumer is not None:
            self._consumer.call_soon(self._apply)

    def _apply(self) -> None:
        with self._lock:
            selected = set(self._selected)
        queues = self._consumer.app.amqp.queues
        present = {name for name in queues.consume_from if name.startswith("m.")}
        try:
            for name in selected - present:
                self._consumer.add_task_queue(name)
            for name in present - selected:
                self._consumer.cancel_task_queue(name)
        except Exception:
            # The connection is gone; the consumer reads its selection again once it has a new one.
            logger.warning("the queues could not be changed now", exc_info=True)


class RedisPresence:
    """``Presence`` over Redis and a ``QueueSelector``."""

    def __init__(
        self, client: redis.Redis, worker_id: str, queues: QueueSelector, *, changed: Callable[[], None]
    ) -> None:
        self._client = client
        self._worker_id = worker_id
        self._queues = queues
        self._changed = changed

    def advertise(self, checkpoint_id: str) -> None:
        """Announce the model, then read its queue."""
        try:
            until = redis_now_sync(self._client) + redis_keys.HOLDER_EXPIRE_S
            pipe: Any = self._client.pipeline(transaction=True)
            pipe.zadd(redis_keys.holders(checkpoint_id), {self._worker_id: until})
            pipe.expire(redis_keys.holders(checkpoint_id), 24 * 3600)
            pipe.delete(redis_keys.load_requested(checkpoint_id))
            pipe.execute()
        except (RedisError, OSError) as error:
            logger.warning("model %s could not be announced (%s)", checkpoint_id, error)
        self._queues.add(redis_keys.model_queue(checkpoint_id))

    def withdraw(self, checkpoint_id: str) -> bool:
        """Withdraw the announcement, then check the queue.

        This order loses no message: the check finds a message pushed before the withdrawal, and the sender of a later
        message sees no holder and requests a load.
        """
        self._queues.remove(redis_keys.model_queue(checkpoint_id))
        try:
            self._client.zrem(redis_keys.holders(checkpoint_id), self._worker_id)
            return bool(self._client.exists(*redis_keys.model_queues(checkpoint_id)))
        except (RedisError, OSError) as error:
            logger.warning("model %s could not be withdrawn (%s); the mark expires", checkpoint_id, error)
            return False

    def pause(self, checkpoint_id: str) -> None:
        """Stop reading the queue."""
        self._queues.remove(redis_keys.model_queue(checkpoint_id))

    def resume(self, checkpoint_id: str) -> None:
        """Read the queue again."""
        self._queues.add(redis_keys.model_queue(checkpoint_id))

    def load_ended(self, checkpoint_id: str, error: BlazrError | None) -> None:
        """Record the error of a load for users; after a successful load, delete an older error."""
        try:
            if error is None:
                self._client.hdel(redis_keys.FAILURES, checkpoint_id)
            else:
                at = redis_now_sync(self._client)
                failure = {"at": at, "worker": self._worker_id, "error": error.to_dict()}
                self._client.hset(redis_keys.FAILURES, checkpoint_id, json.dumps(failure))
        except (RedisError, OSError) as redis_error:
            logger.warning("the result of a load could not be recorded (%s)", redis_error)

    def run_alone(self, request_id: str) -> None:
        """Record which request runs alone in this worker; empty: none does."""
        key = redis_keys.alone(self._worker_id)
        try:
            if request_id:
                self._client.set(key, request_id, ex=redis_keys.ATTEMPT_EXPIRE_S)
            else:
                self._client.delete(key)
        except (RedisError, OSError) as error:
            logger.warning("the request that runs alone could not be recorded (%s)", error)

    def changed(self) -> None:
        """Wake the heartbeat."""
        self._changed()
