"""Advertise the worker's models in Redis, and choose the models whose messages the worker takes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import redis
from redis.exceptions import RedisError

from inference.errors import BlazrError
from inference.transport import keys as redis_keys
from inference.transport.held_messages import wake_worker
from inference.transport.redis_time import redis_now_sync
from inference.worker.intake import Intake

logger = logging.getLogger(__name__)


class RedisPresence:
    """``Presence`` over Redis and an ``Intake``."""

    def __init__(self, client: redis.Redis, worker_id: str, intake: Intake, *, changed: Callable[[], None]) -> None:
        self._client = client
        self._worker_id = worker_id
        self._intake = intake
        self._changed = changed

    def advertise(self, checkpoint_id: str) -> None:
        """Advertise the model, and take its messages unless they are paused."""
        self._intake.add(checkpoint_id)
        try:
            until = redis_now_sync(self._client) + redis_keys.HOLDER_EXPIRE_S
            pipe: Any = self._client.pipeline(transaction=True)
            pipe.zadd(redis_keys.holders(checkpoint_id), {self._worker_id: until})
            pipe.expire(redis_keys.holders(checkpoint_id), 24 * 3600)
            pipe.delete(redis_keys.load_requested(checkpoint_id))
            wake_worker(pipe, self._worker_id)
            pipe.execute()
        except (RedisError, OSError) as error:
            logger.warning("model %s could not be announced (%s)", checkpoint_id, error)

    def withdraw(self, checkpoint_id: str) -> bool:
        """Withdraw the model, then check its queues.

        This order loses no message: the check finds a message queued before the withdrawal, and the sender of a later
        message sees no holder and requests a load.
        """
        self._intake.remove(checkpoint_id)
        try:
            self._client.zrem(redis_keys.holders(checkpoint_id), self._worker_id)
            return bool(self._client.exists(*redis_keys.model_queues(checkpoint_id)))
        except (RedisError, OSError) as error:
            logger.warning("model %s could not be withdrawn (%s); the mark expires", checkpoint_id, error)
            return False

    def pause(self, checkpoint_id: str) -> None:
        """Take none of the model's messages."""
        self._intake.pause(checkpoint_id)

    def resume(self, checkpoint_id: str) -> None:
        """Take the model's messages again, if it is advertised."""
        self._intake.resume(checkpoint_id)

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
