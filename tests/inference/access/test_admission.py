"""The counters on a real Redis: exact under concurrency, settled to the token, free again after a crash."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import redis

from inference.access import admission
from inference.access import limit_store as store
from inference.access.admission import FREE, admit, admitted, headers_current
from inference.access.line_limits import lines_reserved
from inference.errors import RateLimitExceeded, RequestTooLarge, Unavailable
from inference.transport import keys as redis_keys
from inference.values.limits import KeyLimits
from inference.values.principal import LOCAL, Principal
from tests.inference.transport.cut_connections import close_broker, cut_once

TENANT = "key:1"


def caller(**limits: int) -> Principal:
    return Principal("key", TENANT, "test", 1, limits=KeyLimits(**limits))


@pytest.fixture
def counters(redis_urls_in_settings):
    client = redis.Redis.from_url(redis_urls_in_settings.client)
    yield client
    client.flushall()
    client.close()


def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """``work`` in a loop of its own, with what it left in the background."""

    async def whole() -> Any:
        try:
            return await work()
        finally:
            keeper = admission._keeper()
            await asyncio.gather(*keeper._ending)
            if keeper._renewing is not None:
                keeper._renewing.cancel()
            await close_broker()

    return asyncio.run(whole())


async def _settled() -> None:
    await asyncio.gather(*admission._keeper()._ending)


async def _try(principal: Principal, tokens: int = 1):
    try:
        return await admit(principal, tokens=tokens)
    except RateLimitExceeded as error:
        return error


def test_callers_without_limits_cost_nothing(settings):
    settings.BLAZR_REDIS_URL = "unix:///nowhere/redis.sock"

    async def work():
        found = await admit(LOCAL, tokens=10**9)
        found.settle(tokens=3)
        return found, headers_current()

    assert asyncio.run(work()) == (FREE, {})


@pytest.mark.parametrize("limits", [{"requests": 10}, {"concurrent": 10}, {"tokens": 10}])
def test_of_fifty_at_once_exactly_ten_are_admitted(counters, limits):
    async def work():
        return await asyncio.gather(*(_try(caller(**limits)) for _ in range(50)))

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
            results = [await _try(caller(requests=2)) for _ in range(3)]
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
from inference.access.admission import admit
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
            process.communicate(timeout=20)
    assert sum(admitted_there) == 10


def test_open_requests_are_free_again_when_they_end(counters):
    async def work():
        first = await admit(caller(concurrent=1), tokens=1)
        assert isinstance(await _try(caller(concurrent=1)), RateLimitExceeded)
        first.settle(tokens=1)
        first.settle(tokens=1)
        await _settled()
        return await _try(caller(concurrent=1))

    assert not isinstance(run(work), RateLimitExceeded)


def test_tokens_are_settled_to_the_token(counters):
    async def work():
        first = await admit(caller(tokens=10**8), tokens=5_000)
        second = await admit(caller(tokens=10**8), tokens=7_000)
        first.settle(tokens=1_234)
        second.settle(tokens=20_000)
        await _settled()

    # Refilling would hide the figures: the bucket stands still while the clock's window is nearly endless.
    store_window = store.WINDOW_S
    store.WINDOW_S = 1e12
    try:
        run(work)
        level = float(counters.hget(redis_keys.limit_counters(TENANT), "tokens"))
    finally:
        store.WINDOW_S = store_window
    assert round(10**8 - level) == 1_234 + 20_000


@pytest.mark.parametrize("reached", [False, True], ids=["before Redis was asked", "after Redis has admitted it"])
def test_a_client_that_leaves_while_it_is_admitted_keeps_neither_place_nor_tokens(counters, monkeypatch, reached):
    count = admission.count_request

    async def leave(**values):
        if reached:
            await count(**values)
        raise asyncio.CancelledError

    async def work():
        (await admit(caller(tokens=100, concurrent=5), tokens=30)).settle(tokens=30)
        await _settled()
        with monkeypatch.context() as patched, pytest.raises(asyncio.CancelledError):
            patched.setattr(admission, "count_request", leave)
            await admit(caller(tokens=100, concurrent=5), tokens=50)
        await _settled()
        return await _try(caller(tokens=100, concurrent=1), tokens=69), await _try(caller(tokens=100), tokens=3)

    first, second = run(work)
    assert not isinstance(first, RateLimitExceeded)
    assert isinstance(second, RateLimitExceeded)


def test_an_answer_longer_than_estimated_is_a_debt(counters):
    async def work():
        first = await admit(caller(tokens=100), tokens=10)
        first.settle(tokens=160)
        await _settled()
        return await _try(caller(tokens=100), 1)

    error = run(work)
    assert isinstance(error, RateLimitExceeded)
    # 60 in debt and one to use, at 100 a minute.
    assert 35 <= error.retry_after_s <= 37
    assert "tokens a minute" in error.message


def test_a_request_above_a_whole_minute_is_refused_for_good(counters):
    error = run(lambda: _try(caller(tokens=100), 101))
    assert isinstance(error, RateLimitExceeded)
    assert not error.retryable
    assert "101" in error.message and "100" in error.message
    assert counters.keys("*") == []


def test_buckets_fill_again(counters, monkeypatch):
    monkeypatch.setattr(store, "WINDOW_S", 0.2)

    async def work():
        await admit(caller(requests=1), tokens=1)
        await asyncio.sleep(0.3)
        return await _try(caller(requests=1))

    assert not isinstance(run(work), RateLimitExceeded)


def test_what_a_killed_process_held_is_free_after_its_lease(counters, monkeypatch):
    monkeypatch.setattr(store, "LEASE_S", 0.2)

    async def work():
        await admit(caller(concurrent=1), tokens=1)
        assert isinstance(await _try(caller(concurrent=1)), RateLimitExceeded)
        await asyncio.sleep(0.3)  # nothing renews it: the next renewal would be after ten seconds
        return await _try(caller(concurrent=1))

    assert not isinstance(run(work), RateLimitExceeded)


def test_leases_of_open_requests_are_renewed(counters, monkeypatch):
    monkeypatch.setattr(store, "LEASE_S", 1.0)
    monkeypatch.setattr(admission, "RENEW_S", 0.1)

    async def work():
        held = await admit(caller(concurrent=1), tokens=1)
        before = counters.zscore(redis_keys.limit_open(TENANT), held.lease)
        for _ in range(100):
            await asyncio.sleep(0.02)
            if counters.zscore(redis_keys.limit_open(TENANT), held.lease) > before:
                return True
        return False

    assert run(work)


def test_a_limit_that_comes_later_starts_full(counters):
    async def work():
        for _ in range(5):
            (await admit(caller(tokens=1000), tokens=1)).settle(tokens=1)
        return await _try(caller(requests=2, tokens=1000))

    assert not isinstance(run(work), RateLimitExceeded)


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


# --- lines -------------------------------------------------------------------------------------


def test_lines_are_held_to_their_limit_with_what_others_are_storing(counters):
    stored = 3
    with lines_reserved(principal=caller(lines=10), lines=4, count=lambda: stored):
        with (
            pytest.raises(RateLimitExceeded, match="limit of 10"),
            lines_reserved(principal=caller(lines=10), lines=4, count=lambda: stored),
        ):
            raise AssertionError("not to be reached")
        with lines_reserved(principal=caller(lines=10), lines=3, count=lambda: stored):
            pass
    assert counters.zcard(redis_keys.limit_lines(TENANT)) == 0
    with (
        pytest.raises(RequestTooLarge, match="11 lines"),
        lines_reserved(principal=caller(lines=10), lines=11, count=lambda: 0),
    ):
        raise AssertionError("not to be reached")


def test_lines_without_a_limit_touch_nothing(settings):
    settings.BLAZR_REDIS_URL = "unix:///nowhere/redis.sock"
    with lines_reserved(principal=LOCAL, lines=10**6, count=lambda: 1 / 0):
        pass
