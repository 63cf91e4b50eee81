"""Admission on a real Redis: exact under concurrency, and free again when a request ends."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys

import pytest

from inference.access import admission
from inference.access import limit_store as store
from inference.access.admission import FREE, admit, admitted, headers_current, refusal_count
from inference.errors import RateLimitExceeded, Unavailable
from inference.transport import keys as redis_keys
from inference.values.principal import LOCAL
from tests.inference.access.limited import TENANT, attempt, caller, run, settled
from tests.inference.transport.cut_connections import close_broker, cut_once


def test_callers_without_limits_cost_nothing(settings):
    settings.BLAZR_REDIS_URL = "unix:///nowhere/redis.sock"

    async def work():
        found = await admit(LOCAL, tokens=10**9)
        found.release(tokens=3)
        return found, headers_current()

    assert asyncio.run(work()) == (FREE, {})


@pytest.mark.parametrize("limits", [{"requests": 10}, {"concurrent": 10}, {"tokens": 10}])
def test_of_fifty_at_once_exactly_ten_are_admitted(counters, monkeypatch, limits):
    monkeypatch.setattr(store, "WINDOW_S", 1e9)  # none is free again meanwhile

    async def work():
        return await asyncio.gather(*(attempt(caller(**limits)) for _ in range(50)))

    for _ in range(3):
        counters.flushall()
        results = run(work)
        refused = [item for item in results if isinstance(item, RateLimitExceeded)]
        assert len(refused) == 40
        assert all(error.code == "rate_limit_exceeded" and error.http_status == 429 for error in refused)
        assert all(error.retry_after_s >= 1 and error.retryable for error in refused)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_cut_connection_neither_refuses_nor_counts_twice(counters, settings, before):
    async def work():
        async with cut_once(settings.BLAZR_REDIS_URL, TENANT.encode(), before=before) as (url, cuts):
            settings.BLAZR_REDIS_URL = url
            results = [await attempt(caller(requests=2)) for _ in range(3)]
            await close_broker()
        assert cuts == [TENANT.encode()]
        return results

    first, second, third = run(work)
    assert not isinstance(first, Exception)
    assert not isinstance(second, Exception)
    assert isinstance(third, RateLimitExceeded)


_OTHER_PROCESS = """
import asyncio, os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "blazr_site.settings"
import django; django.setup()
from inference.errors import RateLimitExceeded
from inference.access import limit_store
from inference.access.admission import admit
limit_store.WINDOW_S = 1e9
from inference.values.limits import KeyLimits
from inference.values.principal import Principal
caller = Principal("key", "key:1", "test", 1, limits=KeyLimits(requests=10))
async def one():
    try:
        await admit(caller, tokens=1)
    except RateLimitExceeded:
        return 0
    return 1
async def main():
    await one()  # connects
    print("ready", flush=True)
    sys.stdin.readline()
    print(sum(await asyncio.gather(*(one() for _ in range(50)))))
asyncio.run(main())
"""


def test_two_processes_share_one_limit(counters, redis_urls_in_settings):
    environment = {**os.environ, "REDIS_URL": redis_urls_in_settings.client}
    start = functools.partial(subprocess.Popen, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    processes = [start([sys.executable, "-c", _OTHER_PROCESS], env=environment) for _ in range(2)]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        counters.flushall()
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        admitted_there = [int(process.stdout.readline()) for process in processes]
    finally:
        for process in processes:
            process.communicate(timeout=60)
    assert sum(admitted_there) == 10


def test_open_requests_are_free_again_when_they_end(counters):
    async def work():
        first = await admit(caller(concurrent=1), tokens=1)
        assert isinstance(await attempt(caller(concurrent=1)), RateLimitExceeded)
        first.release(tokens=1)
        first.release(tokens=1)
        await settled()
        return await attempt(caller(concurrent=1))

    assert not isinstance(run(work), RateLimitExceeded)


def test_releases_without_redis_are_logged_once_and_once_when_it_is_back(counters, settings, caplog):
    async def work():
        url = settings.BLAZR_REDIS_URL
        *early, last = [await admit(caller(concurrent=9), tokens=1) for _ in range(5)]
        await close_broker()
        settings.BLAZR_REDIS_URL = "unix:///nowhere/redis.sock?db=0"
        for item in early:
            item.release(tokens=1)
        await settled()
        settings.BLAZR_REDIS_URL = url
        await close_broker()
        last.release(tokens=1)
        await settled()

    run(work)
    first, second = [record.getMessage() for record in caplog.records if record.name == admission.logger.name]
    assert first.startswith("the limits of API keys: Redis can't be reached")
    assert second.startswith("the limits of API keys: Redis is reached again after")


@pytest.mark.parametrize("reached", [False, True], ids=["before Redis was asked", "after Redis has admitted it"])
def test_a_client_that_leaves_while_it_is_admitted_keeps_neither_place_nor_tokens(counters, monkeypatch, reached):
    count = admission.count_request

    async def leave(**values):
        if reached:
            await count(**values)
        raise asyncio.CancelledError

    async def work():
        (await admit(caller(tokens=100, concurrent=5), tokens=30)).release(tokens=30)
        await settled()
        with monkeypatch.context() as patched, pytest.raises(asyncio.CancelledError):
            patched.setattr(admission, "count_request", leave)
            await admit(caller(tokens=100, concurrent=5), tokens=50)
        await settled()
        return await attempt(caller(tokens=100, concurrent=1), tokens=69), await attempt(caller(tokens=100), tokens=3)

    first, second = run(work)
    assert not isinstance(first, RateLimitExceeded)
    assert isinstance(second, RateLimitExceeded)


def test_a_request_above_a_whole_minute_is_refused_for_good(counters):
    error = run(lambda: attempt(caller(tokens=100), 101))
    assert isinstance(error, RateLimitExceeded)
    assert not error.retryable
    assert "101" in error.message and "100" in error.message
    assert counters.keys("*") == []


@pytest.mark.parametrize(("tokens", "left"), [(30, 70), (5000, 0)])
def test_the_work_for_a_request_that_was_refused_is_counted_up_to_a_minute(counters, tokens, left):
    async def work():
        await refusal_count(caller(requests=5, tokens=100), tokens=tokens)
        await settled()

    run(work)
    assert float(counters.hget(redis_keys.limit_counters(TENANT), "requests")) == pytest.approx(4, abs=0.1)
    assert float(counters.hget(redis_keys.limit_counters(TENANT), "tokens")) == pytest.approx(left, abs=1)


def test_leases_of_open_requests_are_renewed(counters, monkeypatch):
    monkeypatch.setattr(store, "LEASE_S", 1.0)
    monkeypatch.setattr(admission, "RENEW_S", 0.1)

    async def work():
        held = await admit(caller(concurrent=1), tokens=1)
        before = counters.zscore(redis_keys.limit_open(TENANT), held.lease)
        for _ in range(3000):
            await asyncio.sleep(0.02)
            if counters.zscore(redis_keys.limit_open(TENANT), held.lease) > before:
                return True
        return False

    assert run(work)


def test_headers_tell_limit_rest_and_time(counters):
    async def work():
        async with admitted(caller(requests=10, tokens=600), tokens=60):
            return headers_current()

    headers = run(work)
    assert headers["x-ratelimit-limit-requests"] == "10"
    assert headers["x-ratelimit-remaining-requests"] == "9"
    assert headers["x-ratelimit-reset-requests"] == "6s"
    assert headers["x-ratelimit-limit-tokens"] == "600"
    assert headers["x-ratelimit-remaining-tokens"] == "540"
    assert headers["x-ratelimit-reset-tokens"] == "6s"


def test_without_redis_a_limited_key_is_told_to_come_back(settings):
    settings.BLAZR_REDIS_URL = "unix:///nowhere/redis.sock"

    async def work():
        with pytest.raises(Unavailable) as caught:
            await admit(caller(requests=1), tokens=1)
        keeper = admission._keeper()
        await asyncio.gather(*keeper._ending)
        assert not keeper._held
        keeper._renewing.cancel()
        return caught.value

    assert asyncio.run(work()).http_status == 503
