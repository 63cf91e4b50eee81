"""Celery's view of a worker: tasks run in threads; the pool starts and ends the parts of the worker."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from inference.errors import EngineError
from inference.transport import keys as redis_keys
from inference.worker import runtime as worker_runtime
from inference.worker.pool import EnginePool
from inference.worker.runtime import current
from tests.inference.transport.queued import queued_ids
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
    made.worker, made.plans = w, w.plans
    made.on_start()
    yield made
    made._threads.shutdown(wait=True)


def test_tasks_run_in_threads(pool):
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


def test_a_task_that_has_not_begun_can_be_revoked(pool):
    begun, may_end, results = [], threading.Event(), []

    def trace(name: str, task_id: str, *args: Any) -> tuple[int, str, float]:
        begun.append(task_id)
        may_end.wait(60)
        return (0, "done", 0.1)

    handles = [
        pool.on_apply(trace, ("t", f"t{n}", {}), {}, callback=results.append, accept_callback=lambda *_: None)
        for n in range(5)  # one more than threads
    ]
    handles[-1].terminate()
    may_end.set()
    wait_until(lambda: len(results) == 4)
    assert sorted(begun) == ["t0", "t1", "t2", "t3"]


def test_termination_hands_running_requests_back(pool, client):
    pool.worker.deliver(message("r", max_tokens=10_000))
    wait_until(lambda: "a" in pool.plans.llms and pool.plans.llms["a"].running)
    pool.on_terminate()
    assert pool.worker.acked == []
    assert queued_ids(client, redis_keys.model_queues("a")[0]) == ["r"]
