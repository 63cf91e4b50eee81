"""Publish requests to the models' queues with admission control, and request model loads.

A generation is a message as JSON (``inference.transport.open_requests``). The request of a load is a Celery message
(``app.amqp.as_task_v2`` in kombu's envelope), pushed by the async Redis client, because ``apply_async`` would block the
event loop; a test compares the envelope with kombu's own. Every call has a timeout, and errors of Redis become
``Unavailable``.
"""

from __future__ import annotations

import base64
import functools
import time
import uuid
from collections.abc import Sequence
from typing import Any

import orjson
from celery import current_app
from django.conf import settings

from inference.errors import BlazrError
from inference.transport import keys as redis_keys
from inference.transport.clients import redis_client_sync, redis_repeatable
from inference.transport.open_requests import NewMessage, admit_message
from inference.transport.redis_memory import redis_memory_bytes
from inference.transport.redis_time import redis_now
from inference.transport.subscription import Subscription
from inference.values.messages import GenerateMessage

_REQUEST_LOAD = """
if redis.call('SET', KEYS[1], '1', 'NX', 'EX', ARGV[1]) then redis.call('LPUSH', KEYS[2], ARGV[2]) end
"""


async def publish_generation(message: GenerateMessage, subscription: Subscription | None = None) -> None:
    """Queue a request for the workers of its model; request a load if no worker holds the model.

    Args:
        message: The request; its deadline is of this machine's clock, and is sent as one of Redis's clock.
        subscription: The request's registered subscription; this function sets its model, deadline and message.

    Raises:
        QueueFull: A limit of the model's or the caller's open requests is reached.
        RequestTooLarge: The message alone exceeds the caller's bytes.
        Unavailable: Redis can't be reached, or has no memory for the message.
    """
    checkpoint_id = message["model"]
    left_s = message["deadline"] - time.time()
    if subscription is not None:
        subscription.checkpoint_id, subscription.deadline = checkpoint_id, time.monotonic() + left_s
    message = {**message, "deadline": left_s + await redis_repeatable(redis_now)}
    admitted = NewMessage(message["request_id"], checkpoint_id, message.get("owner", ""), left_s, orjson.dumps(message))
    is_held = await redis_repeatable(lambda client: _admit(client, admitted, max_requests=settings.BLAZR_MAX_IN_FLIGHT))
    if subscription is not None:
        subscription.published = admitted
    if not is_held:
        await request_load(checkpoint_id)


async def _admit(client: Any, message: NewMessage, *, max_requests: int) -> bool:
    memory_bytes = await redis_memory_bytes(client)
    return await admit_message(client, message, max_requests=max_requests, memory_bytes=memory_bytes)


async def fail_queued(request_id: str, error: BlazrError) -> None:
    """End a request that no worker has taken with an error for its client; other requests are left alone.

    Raises:
        Unavailable: Redis can't be reached.
    """

    async def read(client: Any) -> tuple[bytes | None, bytes | None]:
        return await client.hget(redis_keys.MESSAGES, request_id), await client.hget(
            redis_keys.MESSAGE_WORKERS, request_id
        )

    body, worker = await redis_repeatable(read)
    if body is None or worker is not None:
        return
    stream = redis_keys.out(orjson.loads(body)["web_id"])
    fields = redis_keys.pack_failure(request_id, error.to_dict())
    await redis_repeatable(lambda client: client.xadd(stream, fields))


async def request_load(checkpoint_id: str) -> None:
    """Request that a worker loads the model, at most once in ``LOAD_REQUESTED_EXPIRE_S`` seconds."""
    queue = redis_keys.DEFAULT_QUEUE
    envelope = task_envelope(redis_keys.LOAD_TASK, (checkpoint_id,), task_id=str(uuid.uuid4()), queue=queue)
    mark = redis_keys.load_requested(checkpoint_id)
    await redis_repeatable(
        lambda client: client.eval(_REQUEST_LOAD, 2, mark, queue, redis_keys.LOAD_REQUESTED_EXPIRE_S, envelope)
    )


# --- for code without an event loop: the command line, management commands, synchronous views


def request_load_sync(checkpoint_id: str) -> None:
    """``request_load`` for synchronous code."""
    queue = redis_keys.DEFAULT_QUEUE
    envelope = task_envelope(redis_keys.LOAD_TASK, (checkpoint_id,), task_id=str(uuid.uuid4()), queue=queue)
    mark = redis_keys.load_requested(checkpoint_id)
    with redis_client_sync() as client:
        client.eval(_REQUEST_LOAD, 2, mark, queue, redis_keys.LOAD_REQUESTED_EXPIRE_S, envelope)


# --- messages


def task_envelope(task: str, args: Sequence[Any], *, task_id: str, queue: str) -> bytes:
    """Return a Celery message as kombu's Redis transport writes it to a queue."""
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
                "delivery_tag": str(uuid.uuid4()),
            },
        }
    )


@functools.cache
def _static_parts(task: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the headers and the last part of the body, which all messages of a task share."""
    # argsrepr would copy the arguments into the headers.
    message = current_app.amqp.as_task_v2(
        "", task, args=(), kwargs={}, ignore_result=True, argsrepr="…", kwargsrepr="{}"
    )
    return message.headers, message.body[2]
