"""Read the states of workers and models that the workers report in Redis."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from inference.transport import keys as redis_keys
from inference.transport.clients import redis_client_sync, redis_repeatable
from inference.values.states import ModelState, WorkerState, merge_models


async def worker_states() -> dict[str, WorkerState]:
    """Return the live workers by name."""

    async def read(client: Any) -> Sequence[bytes | None]:
        names = await client.zrangebyscore(redis_keys.WORKERS, _oldest_heartbeat(), "+inf")
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
            pipe.llen(redis_keys.model_queue(checkpoint_id))
        return await pipe.execute()

    return _with_failures(merged, ordered, await redis_repeatable(read))


def worker_states_sync() -> dict[str, WorkerState]:
    """``worker_states`` for synchronous code."""
    with redis_client_sync() as client:
        names: Any = client.zrangebyscore(redis_keys.WORKERS, _oldest_heartbeat(), "+inf")
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
            pipe.llen(redis_keys.model_queue(checkpoint_id))
        replies = pipe.execute()
    return _with_failures(merged, ordered, replies)


def _oldest_heartbeat() -> float:
    return time.time() - redis_keys.HEARTBEAT_EXPIRE_S


def _parse_workers(payloads: Sequence[bytes | None]) -> dict[str, WorkerState]:
    workers = [WorkerState.from_json(payload) for payload in payloads if payload]
    return {worker.worker_id: worker for worker in workers}


def _with_failures(
    merged: dict[str, ModelState], ordered: Sequence[str], replies: Sequence[Any]
) -> dict[str, ModelState]:
    states = {key: replace(merged[key], num_queued=int(num)) for key, num in zip(ordered, replies[1:], strict=True)}
    failures: Mapping[bytes, bytes] = replies[0]
    for key, payload in failures.items():
        checkpoint_id, failure = key.decode(), json.loads(payload)
        if checkpoint_id not in states and failure["at"] > time.time() - redis_keys.FAILED_EXPIRE_S:
            states[checkpoint_id] = ModelState(checkpoint_id, status="failed", error=failure["error"])
    return states
