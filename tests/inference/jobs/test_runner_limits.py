"""Jobs start within the limits per minute of their key; what can't start waits, and others go on."""

from __future__ import annotations

import pytest
import redis

from inference.access import limit_store, start_limits
from inference.access.api_keys import api_key_create, principal_of_tenant
from inference.jobs import hints
from inference.jobs import runner as job_runner
from inference.jobs.runner import JobRunner
from inference.models import GenerationJob, JobState
from inference.transport import keys as redis_keys
from inference.values.limits import KeyLimits
from inference.values.principal import LOCAL, Principal
from tests.inference.jobs.submissions import request, submit
from tests.inference.worker.scripted_manager import ScriptedManager


@pytest.fixture(autouse=True)
def counters(redis_urls_in_settings, monkeypatch):
    """Buckets that fill only when a test says so."""
    monkeypatch.setattr(limit_store, "WINDOW_S", 1e9)
    monkeypatch.setattr(start_limits, "MAX_PAUSE_S", 0.0)
    monkeypatch.setattr(start_limits, "MIN_PAUSE_S", 0.0)
    client = redis.Redis.from_url(redis_urls_in_settings.client)
    yield client
    client.flushall()
    client.close()


@pytest.fixture
def manager(model) -> ScriptedManager:
    return ScriptedManager(str(model.pk))


@pytest.fixture
def runner(manager, monkeypatch) -> JobRunner:
    for name in ("POLL_S", "FLUSH_S", "HEARTBEAT_S", "SWEEP_S", "MIN_AGE_ELSEWHERE_S"):
        monkeypatch.setattr(job_runner, name, 0.0)
    monkeypatch.setattr(hints, "wake_workers", lambda: None)
    return JobRunner(manager, owner="w", window=16)


def key_with(**limits: int) -> Principal:
    row, _ = api_key_create(name="limited", limits=KeyLimits(**limits))
    return principal_of_tenant(f"key:{row.pk}")


def states(principal: Principal) -> dict[str, int]:
    counts = GenerationJob.objects.filter(tenant=principal.tenant).count_by_state()
    return {name: number for name, number in counts.items() if number}


def finish_all(runner: JobRunner, manager: ScriptedManager) -> None:
    for request_id in list(manager.messages):
        if request_id not in manager.ended:
            manager.event(request_id, "start", prompt_tokens=3)
            manager.tokens(request_id, "a", 1, finish_reason="stop", stop_reason=None)
            manager.done(request_id)
    runner.turn()


def test_jobs_over_the_limit_wait_and_others_run(runner, manager, counters):
    limited = key_with(requests=4)
    submit(*(request() for _ in range(9)), principal=limited)
    submit(*(request() for _ in range(9)))
    for _ in range(3):
        runner.turn()
    assert states(limited) == {"queued": 6, "running": 3}
    assert states(LOCAL) == {"running": 9}
    waiting = GenerationJob.objects.filter(tenant=limited.tenant, state=JobState.QUEUED)
    assert set(waiting.values_list("attempts", "error")) == {(0, "")}
    for _ in range(2):
        finish_all(runner, manager)
        counters.hset(redis_keys.limit_counters(limited.tenant), "requests", 4)
        runner.turn()
    finish_all(runner, manager)
    assert states(limited) == {"succeeded": 9}


def test_a_job_s_tokens_are_reserved_and_corrected(runner, manager, counters):
    limited = key_with(tokens=400)
    submit(*(request(max_tokens=200) for _ in range(2)), principal=limited)
    runner.turn()
    assert states(limited) == {"queued": 1, "running": 1}
    finish_all(runner, manager)
    runner.turn()
    assert states(limited) == {"running": 1, "succeeded": 1}
    finish_all(runner, manager)
    runner.turn()
    assert float(counters.hget(redis_keys.limit_counters(limited.tenant), "tokens")) == pytest.approx(400 - 2 * 4)


def test_a_suspect_over_the_limit_holds_up_nobody(runner, manager, counters):
    limited = key_with(requests=1)
    (suspect,) = submit(request(), principal=limited)
    GenerationJob.objects.update(attempts=2)
    counters.hset(redis_keys.limit_counters(limited.tenant), mapping={"requests": 0, "at": 10**12})
    submit(request())
    limits = start_limits.StartLimits()
    runner._limits = limits
    limits._paused[limited.tenant] = float("inf")
    runner.turn()
    assert states(LOCAL) == {"running": 1}
    suspect.refresh_from_db()
    assert (suspect.state, suspect.attempts) == ("queued", 2)


def test_a_suspect_of_a_key_whose_places_are_taken_holds_up_nobody(runner, manager, counters):
    limited = key_with(concurrent=1)
    counters.zadd(redis_keys.limit_open(limited.tenant), {"another": 10**12})
    submit(request(), principal=limited)
    GenerationJob.objects.update(attempts=2)
    for number in (1, 2):  # also beside what runs
        submit(request())
        runner.turn()
        assert states(LOCAL) == {"running": number}
    counters.zrem(redis_keys.limit_open(limited.tenant), "another")
    submit(request())
    runner.turn()
    assert states(LOCAL) == {"running": 2, "queued": 1}, "the window is emptied for the suspect"
    finish_all(runner, manager)
    runner.turn()
    assert states(limited) == {"running": 1}


def test_a_draining_worker_frees_the_places_of_its_jobs(runner, manager, counters):
    limited = key_with(concurrent=8)
    submit(*(request() for _ in range(3)), principal=limited)
    runner.turn()
    assert counters.zcard(redis_keys.limit_open(limited.tenant)) == 3
    runner._hand_back()
    assert counters.zcard(redis_keys.limit_open(limited.tenant)) == 0
