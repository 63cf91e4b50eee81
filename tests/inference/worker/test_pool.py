"""Celery's view of a worker: what it hands over is done and acknowledged once, whatever it is."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from inference.errors import EngineError
from inference.transport import keys as redis_keys
from inference.worker import runtime as worker_runtime
from inference.worker.pool import EnginePool
from inference.worker.runtime import current
from tests.inference.worker.fakes import FakeLLM, message, wait_until


@pytest.fixture
def pool(worker, monkeypatch):
    monkeypatch.setattr(worker_runtime, "_current", None)
    w = worker(make=lambda _: FakeLLM(step_s=0.01))
    monkeypatch.setattr(w.runtime, "start", lambda: None)  # the fixture has started it

    class Pool(EnginePool):
        def make_runtime(self):
            return w.runtime

    made = Pool(4)
    made.plans = w.plans
    made.on_start()
    yield made
    made._threads.shutdown(wait=True)


def apply(pool: EnginePool, request_id: str, args: list[Any], callback: Any = lambda result: None) -> Any:
    request = {"args": args, "properties": {"delivery_tag": request_id}, "delivery_info": {"redelivered": False}}
    return pool.on_apply(lambda *_: None, (redis_keys.GENERATE_TASK, request_id, request), {}, callback=callback)


def test_a_generation_takes_no_thread_and_is_acknowledged_when_it_ends(pool):
    results: list[Any] = []
    accepted: list[int] = []
    request = {"args": [message("r")], "properties": {"delivery_tag": "t"}, "delivery_info": {}}
    pool.on_apply(
        None,  # Celery's trace function, which a generation never calls
        (redis_keys.GENERATE_TASK, "r", request),
        {},
        callback=results.append,
        accept_callback=lambda pid, at: accepted.append(pid),
    )
    assert len(accepted) == 1
    assert results == []
    assert pool._get_info()["active"] == 1
    wait_until(lambda: results)
    (code, value, runtime_s) = results[0]
    assert (code, value) == (0, None)
    assert runtime_s > 0
    assert pool._get_info()["active"] == 0


@pytest.mark.parametrize("args", [[], ["text"], [{"request_id": "r"}]])
def test_a_message_that_is_no_request_is_dropped(pool, args):
    results: list[Any] = []
    apply(pool, "r", args, results.append)
    assert [result[:2] for result in results] == [(0, None)]
    assert pool.plans.loads == []


def test_revoke_ends_a_generation(pool):
    results: list[Any] = []
    handle = apply(pool, "r", [message("r", max_tokens=10_000)], results.append)
    wait_until(lambda: "a" in pool.plans.llms and pool.plans.llms["a"].running)
    handle.terminate()
    wait_until(lambda: results)
    assert pool.runtime.manager.num_active == 0


def test_other_tasks_run_in_threads(pool):
    ran: list[tuple[str, str]] = []
    results: list[Any] = []

    def trace(name: str, *args: Any) -> tuple[int, str, float]:
        ran.append((name, threading.current_thread().name))
        return (0, "done", 0.1)

    pool.on_apply(trace, ("inference.sweep", "id", {}), {}, callback=results.append, accept_callback=lambda *_: None)
    wait_until(lambda: results)
    assert results == [(0, "done", 0.1)]
    assert ran[0][0] == "inference.sweep"
    assert ran[0][1].startswith("task")


def test_the_pools_runtime_is_this_processes(pool, monkeypatch):
    assert current() is pool.runtime
    monkeypatch.setattr(worker_runtime, "_current", None)
    with pytest.raises(EngineError, match="no engine pool"):
        current()


def test_termination_hands_running_requests_back(pool, client):
    results: list[Any] = []
    client.zadd(redis_keys.UNACKED_INDEX, {"r": 2e9})
    apply(pool, "r", [message("r", max_tokens=10_000)], results.append)
    wait_until(lambda: "a" in pool.plans.llms and pool.plans.llms["a"].running)
    pool.on_terminate()
    assert results == []
    assert client.zscore(redis_keys.UNACKED_INDEX, "r") == 1.0
    client.zrem(redis_keys.UNACKED_INDEX, "r")
