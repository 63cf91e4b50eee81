"""What the workers report, read from Redis."""

from __future__ import annotations

import json
import time

from inference.transport import keys as redis_keys
from inference.transport import worker_states as module
from inference.transport.worker_states import model_states, model_states_sync, worker_states, worker_states_sync
from inference.values.states import WorkerState


async def test_failed_loads_are_reported_for_a_while(client):
    error = {"class": "InvalidRequest", "message": "no."}
    client.hset(redis_keys.FAILURES, "a", json.dumps({"at": time.time(), "worker": "w", "error": error}))
    client.hset(redis_keys.FAILURES, "b", json.dumps({"at": time.time() - 10_000, "worker": "w", "error": error}))
    states = await model_states()
    assert (states["a"].status, states["a"].error) == ("failed", error)
    assert "b" not in states
    assert model_states_sync() == states


async def test_a_clock_that_is_ahead_hides_no_worker_and_no_failure(client, monkeypatch):
    clock = time.time
    client.zadd(redis_keys.WORKERS, {"w": clock() + 600})
    client.set(redis_keys.worker("w"), WorkerState("w").to_json())
    failure = {"at": clock(), "worker": "w", "error": {"class": "InvalidRequest", "message": "no."}}
    client.hset(redis_keys.FAILURES, "a", json.dumps(failure))
    monkeypatch.setattr(time, "time", lambda: clock() + 3600)
    assert set(await worker_states()) == set(worker_states_sync()) == {"w"}
    assert (await model_states())["a"].status == "failed"


async def test_a_worker_that_is_silent_for_nine_seconds_is_not_shown(client, monkeypatch):
    """So readiness ends within ten seconds, also where no other worker declares this one dead."""
    now = time.time()

    async def redis_now(client):
        return now

    monkeypatch.setattr(module, "redis_now", redis_now)
    monkeypatch.setattr(module, "redis_now_sync", lambda client: now)
    for name, age_s in (("fresh", 5), ("silent", 9)):
        client.zadd(redis_keys.WORKERS, {name: now - age_s})
        client.set(redis_keys.worker(name), WorkerState(name).to_json())
    assert set(await worker_states()) == set(worker_states_sync()) == {"fresh"}
