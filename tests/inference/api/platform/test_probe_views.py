"""Probes and metrics over HTTP."""

from __future__ import annotations

import re
import time

import httpx
import pytest
import redis

from inference.transport import keys as redis_keys
from inference.values.states import WorkerState
from tests.inference.api.openai.test_views import samples
from tests.inference.api.openai.test_views_openai_client import wait_for
from tests.inference.api.test_base import CHAT


def test_ready_needs_a_worker(live_url, checkpoint, redis_server):
    redis.Redis.from_url(redis_server.client).flushall()
    assert httpx.get(f"{live_url}/livez").json() == {"status": "ok"}
    response = httpx.get(f"{live_url}/readyz")
    assert response.status_code == 503
    assert response.json() == {"status": "unavailable", "reasons": ["no worker has a fresh heartbeat"]}
    assert response.headers["cache-control"] == "no-store"
    assert httpx.get(f"{live_url}/health").json()["status"] == "degraded"


def test_ready_with_a_worker(http):
    wait_for(lambda: http.get("/readyz").status_code == 200)
    wait_for(lambda: http.get("/health").json()["loaded_models"] == ["tiny"])
    health = http.get("/health").json()
    assert health["status"] == "ok"
    assert re.fullmatch(r"\d+\.\d+.*", health["version"])


@pytest.mark.parametrize(
    ("state", "status", "reasons"),
    [
        ({"is_late": True, "step_age_s": 8.0}, 503, ["the engines of all workers hang"]),
        ({"is_late": False, "step_age_s": 200.0}, 200, None),
    ],
    ids=["a step over its allowance", "a long first step within its allowance"],
)
def test_a_worker_is_ready_until_a_step_is_late(live_url, checkpoint, redis_server, state, status, reasons):
    """The age of a step says nothing: a first step may compile kernels for minutes."""
    client = redis.Redis.from_url(redis_server.client)
    client.flushall()
    client.set(redis_keys.worker("w-late"), WorkerState("w-late", **state).to_json())
    client.zadd(redis_keys.WORKERS, {"w-late": client.time()[0]})
    try:
        response = httpx.get(f"{live_url}/readyz")
    finally:
        client.flushall()
        client.close()
    assert (response.status_code, response.json().get("reasons")) == (status, reasons)


def test_not_ready_without_redis_or_database(http, settings, monkeypatch):
    from django.db import OperationalError

    from inference.api.platform import probe_views

    def down() -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(probe_views, "_query_database", down)
    settings.BLAZR_REDIS_URL = "unix:///nowhere/redis.sock?db=0"
    started = time.monotonic()
    response = http.get("/readyz")
    assert time.monotonic() - started < 15
    assert response.status_code == 503
    reasons = response.json()["reasons"]
    assert any("database" in reason for reason in reasons)
    assert any("Redis" in reason for reason in reasons)


def test_metrics_count_what_happened(http, worker):
    label = (("model", "tiny"),)
    # What the test before this one broke off is settled in the background.
    wait_for(lambda: samples(http).get(("blazr_requests_active", label), 0) == 0)
    before = samples(http)

    def grown(name: str, labels: tuple[tuple[str, str], ...] = label) -> float:
        return samples(http)[name, labels] - before.get((name, labels), 0.0)

    http.post("/v1/chat/completions", json=CHAT)
    http.post("/v1/chat/completions", json={**CHAT, "model": "missing"})
    assert grown("blazr_prompt_tokens_total") == 5
    assert grown("blazr_generated_tokens_total") == 2
    assert grown("blazr_time_to_first_token_seconds_count") == 1
    assert grown("blazr_inter_token_seconds_count") <= 1
    done = (("endpoint", "chat"), ("model", "tiny"), ("outcome", "completed"))
    assert grown("blazr_requests_total", done) == 1
    # Workers of tests before this one share the Redis until their heartbeats lapse, and this test's own worker lapses
    # for a moment where the machine is busy: one answer has to say it all.
    found: dict = {}

    def is_settled() -> bool:
        found.clear()
        found.update(samples(http))
        wanted = {("blazr_workers", ()): 1, ("blazr_model_ready", label): 1, ("blazr_requests_active", label): 0}
        return {name: found.get(name) for name in wanted} == wanted

    wait_for(is_settled)
    assert ("blazr_jobs", (("state", "queued"),)) in found
    assert not any("missing" in dict(labels).values() for _, labels in found)


def test_metrics_answer_without_redis(http, settings):
    settings.BLAZR_REDIS_URL = "unix:///nowhere/redis.sock?db=0"
    assert samples(http)["blazr_workers", ()] == 0
