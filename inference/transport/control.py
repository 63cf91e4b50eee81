"""Write and read the control stream: orders to all workers (cancel, unload, pin, …), queries, job hints."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import redis
import redis as sync_redis
from redis.exceptions import RedisError

from inference.host.outage import Outage
from inference.transport import keys as redis_keys
from inference.transport.clients import redis_client_sync, redis_repeatable

logger = logging.getLogger(__name__)

REMEMBERED_CANCELS = 20_000
BLOCK_MS = 1000


class CancelledRequests:
    """Remember the last cancelled request ids, because their messages may still be queued."""

    def __init__(self, limit: int = REMEMBERED_CANCELS) -> None:
        self._limit = limit
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, request_id: str) -> None:
        """Remember ``request_id``; forget the oldest ids beyond the limit."""
        with self._lock:
            self._ids[request_id] = None
            while len(self._ids) > self._limit:
                self._ids.popitem(last=False)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._ids


class ControlReader:
    """Follow the control stream in a thread.

    Args:
        client: Used by this reader only; its socket timeout must be longer than a second.
        handlers: Functions by action. The reader's thread calls them with a subject: an id.
        cancelled: Receives every cancelled id, including ids cancelled before this worker started.
    """

    def __init__(
        self, client: redis.Redis, handlers: Mapping[str, Callable[[str], object]], cancelled: CancelledRequests
    ) -> None:
        self._client = client
        self._handlers = handlers
        self._cancelled = cancelled
        self._last_id: bytes | str = "0-0"
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Record recent cancellations, then follow the stream from its last entry."""
        entries: Any = self._client.xrevrange(redis_keys.CONTROL_STREAM, count=redis_keys.CONTROL_MAX_ENTRIES)
        if entries:
            self._last_id = entries[0][0]
        for _, fields in reversed(entries):
            if b"cancel" in fields:
                self._cancelled.add(fields[b"cancel"].decode(errors="replace"))
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._thread.join(3)

    def _run(self) -> None:
        pause = threading.Event()
        outage = Outage(logger, "orders to this worker")
        while not self._stopping:
            try:
                reply: Any = self._client.xread({redis_keys.CONTROL_STREAM: self._last_id}, count=256, block=BLOCK_MS)
                outage.succeeded()
            except (RedisError, OSError) as error:
                outage.failed(error)
                pause.wait(0.3)
                continue
            for _, entries in reply or ():
                for entry_id, fields in entries:
                    self._last_id = entry_id
                    # Orders are UTF-8. An entry that isn't names no known action or request, so it has no effect.
                    texts = {
                        key.decode(errors="replace"): value.decode(errors="replace") for key, value in fields.items()
                    }
                    self._handle(texts)

    def _handle(self, orders: Mapping[str, str]) -> None:
        for action, subject in orders.items():
            if action == "cancel":
                self._cancelled.add(subject)
            handler = self._handlers.get(action)
            if handler is None:
                logger.warning("unknown order %r on the control stream", action)
                continue
            try:
                handler(subject)
            except Exception:
                logger.exception("the order %s %s failed", action, subject)


async def cancel_generation(request_id: str) -> None:
    """Cancel a request at all workers; the engine frees its slot within a few steps.

    Raises:
        Unavailable: Redis can't be reached.
    """
    await send_control("cancel", request_id)


async def request_unload(checkpoint_id: str) -> None:
    """Unload the model at every worker that holds it, once its requests have ended."""
    await send_control("unload", checkpoint_id)


def request_unload_sync(checkpoint_id: str) -> None:
    """``request_unload`` for synchronous code."""
    with redis_client_sync() as client:
        _add_control(client, "unload", checkpoint_id)


def forget_adapter_sync(adapter_id: str) -> None:
    """Take a removed LoRA adapter away from the models of all workers."""
    with redis_client_sync() as client:
        _add_control(client, "forget-adapter", adapter_id)


def hint_jobs_sync() -> None:
    """Wake the workers for queued jobs; without this hint the workers poll once a second."""
    with redis_client_sync() as client:
        _add_control(client, "jobs", "new")


async def send_control(action: str, subject: str) -> None:
    """Append an order or a query to the control stream, which every worker reads.

    Raises:
        Unavailable: Redis can't be reached.
    """
    await redis_repeatable(
        lambda client: client.xadd(
            redis_keys.CONTROL_STREAM,
            {action: subject},
            maxlen=redis_keys.CONTROL_MAX_ENTRIES,
            approximate=True,
        )
    )


def _add_control(client: sync_redis.Redis, action: str, subject: str) -> None:
    client.xadd(redis_keys.CONTROL_STREAM, {action: subject}, maxlen=redis_keys.CONTROL_MAX_ENTRIES, approximate=True)
