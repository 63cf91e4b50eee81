"""The control stream, which every worker reads: orders (cancel, unload, pin), questions, hints about jobs."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import redis
import redis as sync_redis
from redis.exceptions import RedisError

from inference.transport import keys as redis_keys
from inference.transport.clients import redis_client_sync, redis_repeatable

logger = logging.getLogger(__name__)

REMEMBERED_CANCELS = 20_000
BLOCK_MS = 1000


class CancelledRequests:
    """The last request ids that were cancelled, for messages that were still queued then."""

    def __init__(self, limit: int = REMEMBERED_CANCELS) -> None:
        self._limit = limit
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, request_id: str) -> None:
        """Remember one, forget the oldest."""
        with self._lock:
            self._ids[request_id] = None
            while len(self._ids) > self._limit:
                self._ids.popitem(last=False)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._ids


class ControlReader:
    """Follows the control stream in a thread.

    Args:
        client: For this reader alone; its socket timeout must be longer than a second.
        handlers: By action: called with the subject (a request id, a checkpoint id) in the reader's thread.
        cancelled: Records every cancelled id, also those from before this worker's start.
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
        """Record recent cancels, then follow the stream from here on."""
        entries: Any = self._client.xrevrange(redis_keys.CONTROL_STREAM, count=redis_keys.CONTROL_MAX_ENTRIES)
        if entries:
            self._last_id = entries[0][0]
        for _, fields in reversed(entries):
            if b"cancel" in fields:
                self._cancelled.add(fields[b"cancel"].decode())
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._thread.join(3)

    def _run(self) -> None:
        pause = threading.Event()
        while not self._stopping:
            try:
                reply: Any = self._client.xread({redis_keys.CONTROL_STREAM: self._last_id}, count=256, block=BLOCK_MS)
            except (RedisError, OSError) as error:
                logger.warning("the control stream can't be read (%s), trying again", error)
                pause.wait(0.3)
                continue
            for _, entries in reply or ():
                for entry_id, fields in entries:
                    self._last_id = entry_id
                    self._handle({key.decode(): value.decode() for key, value in fields.items()})

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
    """Cancel a request at all workers; its slot is free within some steps.

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


def hint_jobs_sync() -> None:
    """Wake the workers for queued jobs; without a hint they look once a second."""
    with redis_client_sync() as client:
        _add_control(client, "jobs", "new")


def cancel_generation_sync(request_id: str) -> None:
    """``cancel_generation`` for synchronous code."""
    with redis_client_sync() as client:
        _add_control(client, "cancel", request_id)


async def send_control(action: str, subject: str) -> None:
    """Put an order or a question on the control stream, which every worker reads.

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
