"""The way from a web process to the workers: publish, cancel, load, unload, and what the workers are doing.

A generation is an ordinary Celery message (``app.amqp.as_task_v2`` in kombu's envelope) pushed by the
async Redis client: ``apply_async`` would block the event loop for 1 to 2 ms and, if Redis stalls, altogether.
A test compares the envelope with kombu's own. Every call has a timeout and turns trouble with Redis
into ``Unavailable``.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import functools
import math
import time
import uuid
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

import orjson
from celery import current_app
from django.conf import settings
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from inference.errors import QueueFull, Unavailable
from inference.host.coroutines import PerLoop, run_in_background
from inference.transport import keys as redis_keys
from inference.transport.clients import redis_client_sync, redis_repeatable, unavailable_on_redis_error
from inference.transport.link import RedisLink
from inference.transport.subscription import PublishedMessage

if TYPE_CHECKING:
    from inference.values.messages import GenerateMessage


# Admission, push and "does a worker hold the model" in one step: nothing can slip in between. A request that is open
# already was pushed by a call whose answer was lost. ARGV: now, limit, then deadline, id and message of each request.
_PUBLISH = """
local open = -1
local answer = {}
for index = 3, #ARGV, 3 do
  local admitted = 1
  if not redis.call('ZSCORE', KEYS[1], ARGV[index + 1]) then
    if open < 0 then
      redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
      open = redis.call('ZCARD', KEYS[1])
    end
    if open >= tonumber(ARGV[2]) then
      admitted = 0
    else
      redis.call('ZADD', KEYS[1], ARGV[index], ARGV[index + 1])
      redis.call('LPUSH', KEYS[2], ARGV[index + 2])
      open = open + 1
    end
  end
  answer[#answer + 1] = admitted
end
return {open, redis.call('ZCOUNT', KEYS[3], ARGV[1], '+inf'), answer}
"""

_ASK_LOAD = """
if redis.call('SET', KEYS[1], '1', 'NX', 'EX', ARGV[1]) then redis.call('LPUSH', KEYS[2], ARGV[2]) end
"""


async def publish_generation(message: GenerateMessage) -> None:
    """Queue a request for the workers of its model; load the model if none holds it.

    Register the request with the hub first. The subscription learns model and deadline here.

    Raises:
        QueueFull: As many requests of the model are open as may be.
        Unavailable: Redis can't be reached.
    """
    from inference.transport.hub import get_hub

    checkpoint_id = message["model"]
    hub = get_hub()
    await hub.start()
    subscription = hub.get(message["request_id"])
    queue, tag = redis_keys.model_queue(checkpoint_id), str(uuid.uuid4())
    envelope = task_envelope(
        redis_keys.GENERATE_TASK, (message,), task_id=message["request_id"], queue=queue, delivery_tag=tag
    )
    if subscription is not None:
        subscription.checkpoint_id, subscription.deadline = checkpoint_id, message["deadline"]
    admitted, num_open, num_holders = await _outbox().publish(
        checkpoint_id, repr(message["deadline"]), message["request_id"], envelope
    )
    if not admitted:
        raise QueueFull(
            f"{num_open} requests of this model are queued or running, the limit is {settings.BLAZR_MAX_IN_FLIGHT}; "
            "try again later.",
            retry_after_s=2,
        )
    if subscription is not None:
        subscription.published = PublishedMessage(queue, tag, envelope)
    if not num_holders:
        await request_load(checkpoint_id)


PUBLISHED_TOGETHER = 8
"""Messages that share a call at most: a worker begins on the first ones while the next are being made."""
ALONE_AFTER_S = 0.05
"""A message before which none came for so long goes out at once: the workers may have nothing else to do."""
LARGE_BYTES = 1 << 18
"""A message of more than this isn't kept waiting for others: the call takes its time by itself."""

_Published = tuple[bool, int, int]
"""Whether the request was admitted; how many of the model are open; how many workers hold it."""
_Waiting = tuple["asyncio.Future[_Published]", tuple[str, str, bytes]]
"""Who waits for the answer; deadline, id and message of the request."""


class _Outbox:
    """Messages of an event loop that come close together share one call; a call costs more than a message.

    The first one after a pause goes out at once. A loop takes one new connection per turn, so those behind it go out
    with the first turn that brings none, or when there are enough of them.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[_Waiting]] = {}
        self._came_at: dict[str, float] = {}
        self._link: tuple[str, RedisLink] | None = None

    def publish(self, checkpoint_id: str, deadline: str, request_id: str, envelope: bytes) -> Awaitable[_Published]:
        """Queue a message; who is cancelled before it goes out takes it back.

        Raises:
            Unavailable: Redis can't be reached.
        """
        loop = asyncio.get_running_loop()
        found: asyncio.Future[_Published] = loop.create_future()
        now = loop.time()
        is_first = now - self._came_at.get(checkpoint_id, -math.inf) > ALONE_AFTER_S
        self._came_at[checkpoint_id] = now
        waiting = self._waiting.get(checkpoint_id)
        if waiting is None:
            waiting = self._waiting[checkpoint_id] = []
            if not is_first:
                loop.call_soon(self._look, checkpoint_id, waiting, 0)
        waiting.append((found, (deadline, request_id, envelope)))
        if is_first or len(waiting) >= PUBLISHED_TOGETHER or len(envelope) > LARGE_BYTES:
            self._send(checkpoint_id)
        return found

    def _look(self, checkpoint_id: str, waiting: list[_Waiting], seen: int) -> None:
        """Once a turn: send if nothing has come since the last one."""
        if self._waiting.get(checkpoint_id) is not waiting:
            return  # they were enough and have gone out
        if len(waiting) == seen:
            self._send(checkpoint_id)
        else:
            asyncio.get_running_loop().call_soon(self._look, checkpoint_id, waiting, len(waiting))

    def _send(self, checkpoint_id: str) -> None:
        run_in_background(self._call(checkpoint_id, self._waiting.pop(checkpoint_id)))

    async def _call(self, checkpoint_id: str, items: list[_Waiting]) -> None:
        items = [item for item in items if not item[0].done()]
        if not items:
            return
        keys = (
            redis_keys.flight(checkpoint_id),
            redis_keys.model_queue(checkpoint_id),
            redis_keys.holders(checkpoint_id),
        )
        arguments = repr(time.time()), settings.BLAZR_MAX_IN_FLIGHT, *(part for _, parts in items for part in parts)
        try:
            num_open, num_holders, admitted = await self._run(_PUBLISH, len(keys), *keys, *arguments)
        except BaseException as error:
            failure = error if isinstance(error, Unavailable) else unavailable_on_redis_error(error)
            for found, _ in items:
                if not found.done():
                    found.set_exception(copy.copy(failure))  # an exception that several tasks raise mixes their traces
            if failure is not error:
                raise
            return
        for (found, _), is_admitted in zip(items, admitted, strict=True):
            if not found.done():
                found.set_result((bool(is_admitted), num_open, num_holders))

    async def _run(self, *script: Any) -> Any:
        """The script's answer, by the shortest way that is free; safe to run again.

        Raises:
            Unavailable: Redis can't be reached, or doesn't answer in time.
        """
        url, timeout_s = settings.BLAZR_REDIS_URL, settings.BLAZR_REDIS_TIMEOUT_S
        if self._link is None or self._link[0] != url:
            self._link = url, RedisLink(url, connect_timeout_s=timeout_s)
        link = self._link[1]
        if not link.is_busy:
            try:
                return await link.call("EVAL", *script, timeout_s=timeout_s)
            except RedisConnectionError:
                pass  # it was cut, maybe long ago
            except RedisError as error:
                raise unavailable_on_redis_error(error) from error
        return await redis_repeatable(lambda client: client.eval(*script))


_outbox = PerLoop(_Outbox)


async def request_load(checkpoint_id: str) -> None:
    """Ask for the model to be loaded by some worker, unless that was asked for a moment ago."""
    queue = redis_keys.DEFAULT_QUEUE
    envelope = task_envelope(redis_keys.LOAD_TASK, (checkpoint_id,), task_id=str(uuid.uuid4()), queue=queue)
    asked = redis_keys.asked(checkpoint_id)
    await redis_repeatable(lambda client: client.eval(_ASK_LOAD, 2, asked, queue, redis_keys.ASKED_EXPIRE_S, envelope))


# --- for code without an event loop: the command line, management commands, synchronous views


def request_load_sync(checkpoint_id: str) -> None:
    """``request_load`` for synchronous code."""
    queue = redis_keys.DEFAULT_QUEUE
    envelope = task_envelope(redis_keys.LOAD_TASK, (checkpoint_id,), task_id=str(uuid.uuid4()), queue=queue)
    asked = redis_keys.asked(checkpoint_id)
    with redis_client_sync() as client:
        client.eval(_ASK_LOAD, 2, asked, queue, redis_keys.ASKED_EXPIRE_S, envelope)


# --- messages


def task_envelope(
    task: str, args: Sequence[Any], *, task_id: str, queue: str, delivery_tag: str | None = None
) -> bytes:
    """A Celery message as kombu's Redis transport writes it to a queue."""
    headers, embed = _static_parts(task)
    body = orjson.dumps((args, {}, embed))
    return orjson.dumps(
        {
            "body": base64.b64encode(body).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers | {"id": task_id, "root_id": task_id},
            "properties": {
                "correlation_id": task_id,
                "reply_to": "",
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": delivery_tag or str(uuid.uuid4()),
            },
        }
    )


@functools.cache
def _static_parts(task: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Headers, and the last part of the body, that every message of a task has: making them takes Celery 0.1 ms."""
    # argsrepr would copy the prompt into the headers, where tools and logs show it.
    message = current_app.amqp.as_task_v2(
        "", task, args=(), kwargs={}, ignore_result=True, argsrepr="…", kwargsrepr="{}"
    )
    return message.headers, message.body[2]


# --- clients


# --- parsing
