"""Reply to queries on the control stream: requests that run here, whether a model fits, orders for adapters."""

from __future__ import annotations

import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import redis
from redis.exceptions import RedisError

from inference.errors import BlazrError
from inference.transport import keys as redis_keys
from inference.worker.interfaces import LoadSizes

logger = logging.getLogger(__name__)

_ADAPTER_ORDERS = ("load-adapter", "unload-adapter")


class Manager(Protocol):
    """The methods of ``inference.worker.model_manager.ModelManager`` that replies need."""

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests that are here."""
        ...

    def fit(self, checkpoint_id: str, requested: LoadSizes | None = None) -> dict[str, Any]:
        """Return whether a model would fit, with sizes in place of its settings if they are given."""
        ...

    def load_adapter(self, checkpoint_id: str, adapter_id: str) -> dict[str, Any] | None:
        """Load a LoRA adapter ahead of its requests; return it, or None if its model isn't loaded."""
        ...

    def unload_adapter(self, checkpoint_id: str, adapter_id: str) -> dict[str, Any] | None:
        """Let a LoRA adapter leave the memory; return it if requests still go through it."""
        ...


class Questions:
    """Reply to queries, in a thread of its own; orders for adapters have another one.

    Args:
        client: Redis client for the replies.
        worker_id: The worker's id, part of each reply.
        manager: Manager of the requests and models.
    """

    def __init__(self, client: redis.Redis, worker_id: str, manager: Manager) -> None:
        self._client = client
        self._worker_id = worker_id
        self._manager = manager
        # Reading a checkpoint's inspection is slow, and the control stream must not wait for it.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="questions")
        # Reading an adapter is slower still, and may wait for a place in memory.
        self._adapter_thread = ThreadPoolExecutor(1, thread_name_prefix="adapter-orders")

    def take(self, subject: str) -> None:
        """Queue one query: a JSON object with ``id`` and ``kind``.

        For ``fit`` it has ``checkpoint_id`` and ``sizes``, for ``load-adapter`` and ``unload-adapter``
        ``checkpoint_id`` and ``adapter_id``. ``expires_at``, if it is there, is the Unix time after which nobody waits
        for the reply: the query is dropped.
        """
        query = json.loads(subject)
        threads = self._adapter_thread if query.get("kind") in _ADAPTER_ORDERS else self._threads
        threads.submit(self._reply_to, query)

    def stop(self) -> None:
        """End the threads."""
        for threads in (self._threads, self._adapter_thread):
            threads.shutdown(wait=False, cancel_futures=True)

    def _reply_to(self, query: dict[str, Any]) -> None:
        expires_at = query.get("expires_at")
        if expires_at is not None and time.time() >= expires_at:
            logger.warning("a query of kind %s was dropped: it came to its turn too late", query["kind"])
            return
        reply: dict[str, Any] = {"worker_id": self._worker_id}
        try:
            if query["kind"] == "requests":
                reply["requests"] = self._manager.requests()
            elif query["kind"] in _ADAPTER_ORDERS:
                is_load = query["kind"] == "load-adapter"
                order = self._manager.load_adapter if is_load else self._manager.unload_adapter
                reply["adapter"] = order(query["checkpoint_id"], query["adapter_id"])
            else:
                sizes = query.get("sizes")
                reply["fit"] = self._manager.fit(query["checkpoint_id"], LoadSizes(*sizes) if sizes else None)
        except BlazrError as error:
            reply["error"] = error.to_dict()
        except Exception:
            logger.exception("the reply to a query of kind %s failed", query.get("kind"))
            return
        key = redis_keys.replies(query["id"])
        try:
            pipe: Any = self._client.pipeline(transaction=True)
            pipe.rpush(key, json.dumps(reply))
            pipe.expire(key, redis_keys.REPLIES_EXPIRE_S)
            pipe.execute()
        except (RedisError, OSError) as error:
            logger.warning("a reply could not be sent (%s)", error)
