"""Read the states of workers and models that the workers report in Redis."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from inference.transport import keys as redis_keys
from inference.transport.clients import redis_client_sync, redis_repeatable
from inference.transport.redis_time import redis_now, redis_now_sync
from inference.values.states import ModelState, WorkerState, merge_models


async def worker_states() -> dict[str, WorkerState]:
    """Return the live workers by name."""

    async def read(client: Any) -> Sequence[bytes | None]:
        oldest = await redis_now(client) - redis_keys.HEARTBEAT_FRESH_S
        names = await client.zrangebyscore(redis_keys.WORKERS, oldest, "+inf")
        return await client.mget([redis_keys.worker(name.decode()) for name in names]) if names else []

    return _parse_workers(await redis_repeatable(read))


async def model_states() -> dict[str, ModelState]:
    """Return the models that are loading, ready or failed, by checkpoint id; other models are unloaded."""
    merged = merge_models((await worker_states()).values())
    ordered = sorted(merged)

    async def read(client: Any) -> Any:
        pipe = client.pipeline(transaction=False)
        pipe.hgetall(redis_keys.FAILURES)
        for checkpoint_id in ordered:
            for queue in redis_keys.model_queues(checkpoint_id):
                pipe.llen(queue)
        return await redis_now(client), await pipe.execute()

    now, replies = await redis_repeatable(read)
    return _with_failures(merged, ordered, replies, now)


def worker_states_sync() -> dict[str, WorkerState]:
    """``worker_states`` for synchronous code."""
    with redis_client_sync() as client:
        oldest = redis_now_sync(client) - redis_keys.HEARTBEAT_FRESH_S
        names: Any = client.zrangebyscore(redis_keys.WORKERS, oldest, "+inf")
        payloads: Any = client.mget([redis_keys.worker(name.decode()) for name in names]) if names else []
    return _parse_workers(payloads)


def model_states_sync() -> dict[str, ModelState]:
    """``model_states`` for synchronous code."""
    merged = merge_models(worker_states_sync().values())
    ordered = sorted(merged)
    with redis_client_sync() as client:
        pipe = client.pipeline(transaction=False)
        pipe.hgetall(redis_keys.FAILURES)
        for checkpoint_id in ordered:
            for queue in redis_keys.model_queues(checkpoint_id):
                pipe.llen(queue)
        replies = pipe.execute()
        now = redis_now_sync(client)
    return _with_failures(merged, ordered, replies, now)


def _parse_workers(payloads: Sequence[bytes | None]) -> dict[str, WorkerState]:
    workers = [WorkerState.from_json(payload) for payload in payloads if payload]
    return {worker.worker_id: worker for worker in workers}


def _with_failures(
    merged: dict[str, ModelState], ordered: Sequence[str], replies: Sequence[Any], now: float
) -> dict[str, ModelState]:
    failures: Mapping[bytes, bytes] = replies[0]
    lengths = iter(replies[1:])
    states = {
        key: replace(merged[key], num_queued=sum(int(next(lengths)) for _ in redis_keys.model_queues(key)))
        for key in ordered
    }
    for key, payload in failures.items():
        checkpoint_id, failure = key.decode(), json.loads(payload)
        if checkpoint_id not in states and failure["at"] > now - redis_keys.FAILED_EXPIRE_S:
            states[checkpoint_id] = ModelState(checkpoint_id, status="failed", error=failure["error"])
    return states
