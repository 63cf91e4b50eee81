"""What the worker shows of its models: holder marks in Redis, and the Celery queues it consumes."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import redis
from redis.exceptions import RedisError

from inference.errors import BlazrError
from inference.transport import keys as redis_keys

logger = logging.getLogger(__name__)


class QueueSelector:
    """Which queues the Celery consumer reads; may be changed from any thread.

    The wish is kept here and carried out on the consumer's event loop, where Celery and kombu belong.
    """

    def __init__(self) -> None:
        self._wanted: set[str] = set()
        self._lock = threading.Lock()
        self._consumer: Any = None

    def attach(self, consumer: Any) -> None:
        """The consumer is there (``worker_ready``)."""
        self._consumer = consumer
        self._apply_soon()

    def add(self, queue: str) -> None:
        """Read this queue."""
        with self._lock:
            self._wanted.add(queue)
        self._apply_soon()

    def remove(self, queue: str) -> None:
        """Read it no longer."""
        with self._lock:
            self._wanted.discard(queue)
        self._apply_soon()

    def _apply_soon(self) -> None:
        if self._consumer is not None:
            self._consumer.call_soon(self._apply)

    def _apply(self) -> None:
        with self._lock:
            wanted = set(self._wanted)
        queues = self._consumer.app.amqp.queues
        present = {name for name in queues.consume_from if name.startswith("m.")}
        try:
            for name in wanted - present:
                self._consumer.add_task_queue(name)
            for name in present - wanted:
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

    def appear(self, checkpoint_id: str) -> None:
        """Announce the model, then read its queue."""
        until = time.time() + redis_keys.HOLDER_EXPIRE_S
        try:
            pipe: Any = self._client.pipeline(transaction=True)
            pipe.zadd(redis_keys.holders(checkpoint_id), {self._worker_id: until})
            pipe.expire(redis_keys.holders(checkpoint_id), 24 * 3600)
            pipe.delete(redis_keys.asked(checkpoint_id))
            pipe.execute()
        except (RedisError, OSError) as error:
            logger.warning("model %s could not be announced (%s)", checkpoint_id, error)
        self._queues.add(redis_keys.model_queue(checkpoint_id))

    def vanish(self, checkpoint_id: str) -> bool:
        """Withdraw first, look at the queue then: who pushes before sees a holder, who pushes after sees none."""
        self._queues.remove(redis_keys.model_queue(checkpoint_id))
        try:
            self._client.zrem(redis_keys.holders(checkpoint_id), self._worker_id)
            return bool(self._client.llen(redis_keys.model_queue(checkpoint_id)))
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
        """Keep the error for people, or drop an older one."""
        try:
            if error is None:
                self._client.hdel(redis_keys.FAILURES, checkpoint_id)
            else:
                failure = {"at": time.time(), "worker": self._worker_id, "error": error.to_dict()}
                self._client.hset(redis_keys.FAILURES, checkpoint_id, json.dumps(failure))
        except (RedisError, OSError) as redis_error:
            logger.warning("the end of a load could not be noted (%s)", redis_error)

    def changed(self) -> None:
        """Let the heartbeat tell it."""
        self._changed()
