"""Read the one Redis stream of this web process and pass its events to the requests.

Workers write entries with the events of many requests (``out:<web_id>``); one task here unpacks them. A request gets
its events once, in order and without a gap, from any worker and any attempt:

- ``index`` is dense within an attempt. An event with a lower index than expected is a repetition and is dropped. A
  higher index means that the stream was cut: the request fails rather than skip tokens.
- When a worker dies, its messages return to their queues. A Redis that restarts may have forgotten messages; the hub
  then publishes them again.
- The next worker first queries, on the same stream, which tokens the client already has. The hub's reply begins a new
  attempt: the hub drops later events of older attempts, and the new worker continues after the delivered tokens.

Requests end with an error when no worker is alive or their deadline has passed, so that every registered request
gets exactly one terminal event.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import redis.asyncio as aioredis
from django.conf import settings
from redis.exceptions import RedisError

from inference.errors import BlazrError, Unavailable
from inference.host.outage import Outage
from inference.transport import keys as redis_keys
from inference.transport.control import cancel_generation
from inference.transport.open_requests import admit_message
from inference.transport.queue import request_load
from inference.transport.redis_time import redis_now
from inference.transport.subscription import Subscription
from inference.values.messages import GenerationEvent

logger = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 3.0
READ_BLOCK_MS = 5000
READ_TIMEOUT_S = READ_BLOCK_MS / 1000 + 5
CONNECT_TIMEOUT_S = 2.0
DEADLINE_GRACE_S = 5.0
WORKER_LOST_TIMEOUT_S = 60
"""Seconds that a request waits while no worker is alive. A worker needs a few of them to start, many more on a busy
machine, and may be lost again before it has come back."""
MISSED_BEFORE_LOST = 2
"""Consecutive heartbeats at which Redis doesn't know a message before the message is published again."""


class StreamHub:
    """Read the event stream of one web process, on one event loop.

    Args:
        redis_url: A URL of redis-py.
        web_id: Name of the event stream; generated when None.
        worker_lost_timeout_s: Seconds that requests wait while no worker is alive.
        cancel: Called on the event loop with the id of a request that the hub has failed.
        request_load: Called with the id of a model that has waiting requests and no worker.
    """

    def __init__(
        self,
        redis_url: str,
        *,
        web_id: str | None = None,
        worker_lost_timeout_s: float = 20.0,
        cancel: Callable[[str], Awaitable[None]] | None = None,
        request_load: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self.web_id = web_id or f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._redis_url = redis_url
        self._worker_lost_timeout_s = worker_lost_timeout_s
        self._cancel = cancel
        self._request_load = request_load
        self._subscriptions: dict[str, Subscription] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_id = b"0-0"
        self._worker_seen_at = time.monotonic()
        self._started: asyncio.Future[None] | None = None
        self._client: aioredis.Redis | None = None
        self._closing = False

    # --- start and stop

    async def start(self) -> None:
        """Start reading, once; return after the first attempt to write the heartbeat."""
        if self._started is None:
            self._started = asyncio.get_running_loop().create_future()
            self._client = aioredis.Redis.from_url(
                self._redis_url,
                protocol=2,
                socket_timeout=READ_TIMEOUT_S,
                socket_connect_timeout=CONNECT_TIMEOUT_S,
                **_keepalive(self._redis_url),
            )
            for work in (self._read(), self._send_heartbeats()):
                self._spawn(work)
        if not self._started.done():
            await asyncio.shield(self._started)

    async def close(self) -> None:
        """End open requests with an error, stop reading, and delete the stream and the heartbeat."""
        for subscription in list(self._subscriptions.values()):
            subscription.fail(Unavailable("The server is stopping; send the request again.", retry_after_s=5))
        self._closing = True
        tasks, self._tasks = self._tasks, set()
        while tasks:
            # Repeat: the libraries can swallow a cancellation that arrives as a read finishes.
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=0.5)
        if self._client is not None:
            with contextlib.suppress(RedisError, OSError, asyncio.TimeoutError):
                await asyncio.wait_for(
                    self._client.delete(redis_keys.web(self.web_id), redis_keys.out(self.web_id)), timeout=1
                )
            await self._client.aclose()
        self._client, self._started, self._closing = None, None, False

    @property
    def num_streams(self) -> int:
        """Number of requests that are open in this process."""
        return len(self._subscriptions)

    # --- requests

    def register(self, request_id: str, receive: Callable[[GenerationEvent], None]) -> Subscription:
        """Listen to a request; call it before the request is published.

        Args:
            request_id: Id of the request, unique among the open requests.
            receive: Called with each event (see ``Subscription``).

        Raises:
            ValueError: The id is registered already.
        """
        if request_id in self._subscriptions:
            raise ValueError(f"request {request_id!r} is registered already")
        subscription = self._subscriptions[request_id] = Subscription(self, request_id, receive)
        return subscription

    def forget(self, request_id: str) -> None:
        """Drop a subscription that ended or was closed."""
        self._subscriptions.pop(request_id, None)

    def cancel_soon(self, request_id: str) -> None:
        """Cancel the request at the workers, without waiting."""
        if self._cancel is not None:
            self._spawn(self._cancel(request_id))

    # --- work

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(cast("asyncio.Task[None]", task))
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of the stream hub failed", exc_info=error)

    async def _read(self) -> None:
        assert self._client is not None
        key = redis_keys.out(self.web_id)
        pause_s = 0.05
        outage = Outage(logger, "the events of requests")
        while not self._closing:
            try:
                reply: Any = await self._client.xread({key: self._last_id}, count=512, block=READ_BLOCK_MS)
                pause_s = 0.05
                outage.succeeded()
            except Exception as error:  # any error: all requests of this process depend on this loop
                outage.failed(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 1.0)
                continue
            for _, entries in reply or ():
                for entry_id, fields in entries:
                    self._last_id = entry_id
                    for name, payload in fields.items():
                        await self._handle_field(name, payload)

    async def _handle_field(self, name: bytes, payload: bytes) -> None:
        """Pass on the events of one stream entry, end a request, or reply to a worker's query."""
        try:
            if name == b"e":
                for event in redis_keys.unpack(payload):
                    self._forward(event)
            elif name == b"f":
                request_id, error = redis_keys.unpack(payload)
                if (subscription := self._subscriptions.get(request_id)) is not None:
                    subscription.fail(BlazrError.from_dict(error))
            elif name == b"q":
                await self._reply(*redis_keys.unpack(payload))
        except Exception:  # an entry that isn't a worker's must not end the loop that reads the others
            logger.exception("an entry of the event stream can't be read")

    def _forward(self, event: GenerationEvent) -> None:
        try:
            subscription = self._subscriptions.get(event["request_id"])
            if subscription is not None:
                subscription.accept(event)
        except Exception:  # an entry holds events of many requests
            logger.exception("an event of the event stream can't be passed on")

    async def _reply(self, request_id: str, attempt: int) -> None:
        assert self._client is not None
        subscription = self._subscriptions.get(request_id)
        if subscription is None:
            delivered = None
        elif attempt <= subscription.attempt:
            return  # a stale query of a worker that has died
        else:
            subscription.begin_attempt(attempt)
            delivered = subscription.delivered()
        key = redis_keys.resume(request_id, attempt)
        pipe = self._client.pipeline(transaction=True)
        pipe.lpush(key, redis_keys.pack(delivered))
        pipe.expire(key, redis_keys.RESUME_EXPIRE_S)
        try:
            await pipe.execute()
        except (TimeoutError, RedisError, OSError) as error:
            logger.warning("a reply to a worker was lost (%s)", error)

    async def _send_heartbeats(self) -> None:
        assert self._client is not None
        assert self._started is not None
        outage = Outage(logger, "the heartbeat of the web process")
        while not self._closing:
            try:
                async with asyncio.timeout(HEARTBEAT_INTERVAL_S):
                    await self._send_heartbeat()
                outage.succeeded()
            except Exception as error:  # as in _read
                outage.failed(error)
                self._worker_seen_at = time.monotonic()  # workers may be alive
            if not self._started.done():
                self._started.set_result(None)
            self._expire_waiting()
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)

    async def _send_heartbeat(self) -> None:
        assert self._client is not None
        now = await redis_now(self._client)
        waiting = {
            subscription.checkpoint_id
            for subscription in self._subscriptions.values()
            if subscription.checkpoint_id and time.monotonic() - subscription.last_event_at > HEARTBEAT_INTERVAL_S
        }
        pipe = self._client.pipeline(transaction=False)
        pipe.set(redis_keys.web(self.web_id), b"1", ex=redis_keys.HEARTBEAT_EXPIRE_S)
        pipe.expire(redis_keys.out(self.web_id), redis_keys.OUT_EXPIRE_S)
        pipe.xtrim(redis_keys.out(self.web_id), minid=self._last_id.decode())
        pipe.zcount(redis_keys.WORKERS, now - redis_keys.HEARTBEAT_EXPIRE_S, "+inf")
        ordered = sorted(waiting)
        for checkpoint_id in ordered:
            pipe.zcount(redis_keys.holders(checkpoint_id), now, "+inf")
        replies = await pipe.execute()
        if replies[3]:
            self._worker_seen_at = time.monotonic()
        for checkpoint_id, num_holders in zip(ordered, replies[4:], strict=True):
            if not num_holders and self._request_load is not None:
                await self._request_load(checkpoint_id)
        await self._publish_forgotten()

    async def _publish_forgotten(self) -> None:
        """Publish messages again that a restarted Redis has forgotten; it didn't know them twice in a row."""
        assert self._client is not None
        old = [
            (subscription, subscription.published)
            for subscription in self._subscriptions.values()
            if subscription.published is not None and time.monotonic() - subscription.created_at > HEARTBEAT_INTERVAL_S
        ]
        if not old:
            return
        pipe = self._client.pipeline(transaction=False)
        for _, message in old:
            pipe.hexists(redis_keys.MESSAGES, message.request_id)
        are_known = await pipe.execute()
        for (subscription, message), is_known in zip(old, are_known, strict=True):
            subscription.num_missed = 0 if is_known else subscription.num_missed + 1
            left_s = (subscription.deadline or 0.0) - time.monotonic()
            if subscription.num_missed < MISSED_BEFORE_LOST or subscription.is_ended or left_s <= 0:
                continue
            subscription.num_missed = 0
            logger.warning("Redis has forgotten the message of %s, it is published again", subscription.request_id)
            await admit_message(self._client, replace(message, left_s=left_s), max_requests=0, is_again=True)

    def _expire_waiting(self) -> None:
        now = time.monotonic()
        lost_s = now - self._worker_seen_at
        for subscription in list(self._subscriptions.values()):
            if subscription.deadline is not None and now > subscription.deadline + DEADLINE_GRACE_S:
                subscription.fail(Unavailable("The request did not finish before its deadline.", retry_after_s=5))
                self.cancel_soon(subscription.request_id)
            elif subscription.checkpoint_id and lost_s > self._worker_lost_timeout_s:
                subscription.fail(
                    Unavailable(f"No worker has been running for {lost_s:.0f} s; try again later.", retry_after_s=10)
                )
                self.cancel_soon(subscription.request_id)


def _keepalive(redis_url: str) -> dict[str, bool]:
    """Return the option that detects a dead TCP peer; unix sockets have no such option."""
    return {"socket_keepalive": True} if redis_url.startswith("redis") else {}


_hub: StreamHub | None = None


def get_hub() -> StreamHub:
    """The hub of this process, made from the settings at the first call."""
    global _hub
    if _hub is None:
        _hub = StreamHub(
            settings.BLAZR_REDIS_URL,
            worker_lost_timeout_s=WORKER_LOST_TIMEOUT_S,
            cancel=cancel_generation,
            request_load=request_load,
        )
    return _hub


def set_hub(hub: StreamHub | None) -> None:
    """Replace the hub of this process (tests, and processes that fork)."""
    global _hub
    _hub = hub
