"""Jobs and lines are counted in the buckets of their key's interactive requests, and leave these a part."""

from __future__ import annotations

import time

import pytest

from inference.access import limit_store, start_limits
from inference.access.api_keys import api_key_create, api_key_revoke
from inference.access.start_limits import StartLimits
from inference.errors import RateLimitExceeded
from inference.transport import keys as redis_keys
from inference.values.limits import KeyLimits
from tests.inference.access.limited import attempt, caller, run, settled

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def still(monkeypatch, counters):
    """Buckets that don't fill again by themselves."""
    monkeypatch.setattr(limit_store, "WINDOW_S", 1e9)


def tenant_with(**limits: int) -> str:
    row, _ = api_key_create(name="limited", limits=KeyLimits(**limits))
    return f"key:{row.pk}"


def interactive(tenant: str, number: int, **limits: int) -> list[bool]:
    """Whether each of so many requests of the key's clients is admitted."""
    principal = caller(**limits)
    object.__setattr__(principal, "tenant", tenant)

    async def work():
        return [await attempt(principal) for _ in range(number)]

    return [not isinstance(reply, RateLimitExceeded) for reply in run(work)]


def started(limits: StartLimits, tenant: str, number: int, tokens: int = 1) -> int:
    return sum(limits.admit(tenant, f"line-{time.monotonic_ns()}", tokens=tokens) for _ in range(number))


def test_callers_without_limits_need_no_redis(monkeypatch):
    monkeypatch.setattr(start_limits, "redis_client_sync", None)
    limits = StartLimits()
    for tenant in ("local", "user:1", tenant_with(lines=3), "key:999999"):
        assert limits.capacity(tenant) is None
        assert limits.admit(tenant, "a", tokens=10**6)
    limits.release("a", tokens=3)
    limits.flush()


def test_together_with_interactive_requests_never_more_than_the_limit():
    tenant, limits = tenant_with(requests=8), StartLimits()
    assert limits.capacity(tenant) == 6
    assert started(limits, tenant, 8) == 6  # a quarter is left to interactive requests
    assert limits.paused() == {tenant}
    assert limits.capacity(tenant) == 0
    assert interactive(tenant, 5, requests=8) == [True, True, False, False, False]


def test_interactive_requests_take_the_room_of_lines():
    tenant, limits = tenant_with(requests=8), StartLimits()
    assert interactive(tenant, 5, requests=8) == [True] * 5
    assert limits.capacity(tenant) == 1
    assert started(limits, tenant, 3) == 1


def test_tokens_are_reserved_and_what_was_used_replaces_them(counters):
    tenant, limits = tenant_with(tokens=1000), StartLimits()
    assert limits.admit(tenant, "a", tokens=600)
    assert not limits.admit(tenant, "b", tokens=600)
    assert limits.paused() == {tenant}
    limits.release("a", tokens=40)
    limits.release("a", tokens=999)  # only the first call counts
    limits.flush()
    assert float(counters.hget(redis_keys.limit_counters(tenant), "tokens")) == pytest.approx(960)
    assert limits.paused() == frozenset()
    assert limits.admit(tenant, "b", tokens=600)


def test_work_of_more_than_a_minute_s_tokens_starts_when_the_bucket_is_full():
    tenant, limits = tenant_with(tokens=1000), StartLimits()
    assert limits.admit(tenant, "a", tokens=10**9)
    limits.release("a", tokens=3000)
    limits.flush()
    assert not limits.admit(tenant, "b", tokens=1)  # the bucket is 2,000 below zero


def test_what_has_counted_already_counts_no_request():
    tenant, limits = tenant_with(requests=1), StartLimits()
    assert started(limits, tenant, 3) == 1
    assert limits.admit(tenant, "b", tokens=1, requests=0)


def test_open_work_is_a_lease(counters, monkeypatch):
    tenant, limits = tenant_with(concurrent=4), StartLimits()
    assert limits.capacity(tenant) == 3
    assert [limits.admit(tenant, name, tokens=1) for name in "abcd"] == [True, True, True, False]
    assert interactive(tenant, 2, concurrent=4) == [True, False]
    monkeypatch.setattr(start_limits, "RENEW_S", 0.0)
    begun = time.time()
    counters.zadd(redis_keys.limit_open(tenant), {"a": begun + 1})
    limits.flush()
    assert counters.zscore(redis_keys.limit_open(tenant), "a") > begun + 20
    limits.release("a", tokens=1)
    limits.flush()
    assert counters.zscore(redis_keys.limit_open(tenant), "a") is None


def test_without_redis_nothing_limited_starts_and_others_do(settings):
    tenant, limits = tenant_with(requests=8), StartLimits()
    settings.BLAZR_REDIS_URL = "redis://127.0.0.1:1/0"
    started_at = time.monotonic()
    assert limits.capacity(tenant) == 0
    assert not limits.admit(tenant, "a", tokens=1)
    assert limits.admit("local", "b", tokens=1)
    limits.flush()
    assert time.monotonic() - started_at < 30
    assert limits.paused() == {tenant}


def test_a_void_key_has_no_limits_because_its_work_is_ended_elsewhere():
    tenant = tenant_with(requests=1)
    from inference.models import ApiKey

    api_key_revoke(prefix=ApiKey.objects.get(pk=tenant.removeprefix("key:")).prefix)
    assert StartLimits().capacity(tenant) is None


def test_a_release_is_in_the_interactive_bucket():
    tenant, limits = tenant_with(tokens=100), StartLimits()
    assert limits.admit(tenant, "a", tokens=75)

    async def work():
        principal = caller(tokens=100)
        object.__setattr__(principal, "tenant", tenant)
        refused = await attempt(principal, 50)
        limits.release("a", tokens=5)
        limits.flush()
        passed = await attempt(principal, 50)
        await settled()
        return refused, passed

    refused, passed = run(work)
    assert isinstance(refused, RateLimitExceeded)
    assert not isinstance(passed, RateLimitExceeded)
