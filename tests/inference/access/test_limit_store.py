"""The buckets and leases in Redis: filled, charged and refunded to the token."""

from __future__ import annotations

import asyncio
import time

import pytest

from inference.access import limit_store as store
from inference.access.admission import admit
from inference.errors import RateLimitExceeded
from inference.transport import keys as redis_keys
from tests.inference.access.limited import TENANT, attempt, caller, run, settled


def test_tokens_are_settled_to_the_token(counters):
    async def work():
        first = await admit(caller(tokens=10**8), tokens=5_000)
        second = await admit(caller(tokens=10**8), tokens=7_000)
        first.release(tokens=1_234)
        second.release(tokens=20_000)
        await settled()

    # Refilling would hide the figures: the bucket stands still while the clock's window is nearly endless.
    store_window = store.WINDOW_S
    store.WINDOW_S = 1e12
    try:
        run(work)
        level = float(counters.hget(redis_keys.limit_counters(TENANT), "tokens"))
    finally:
        store.WINDOW_S = store_window
    assert round(10**8 - level) == 1_234 + 20_000


def test_an_answer_longer_than_estimated_is_a_debt(counters):
    begun = time.time()

    async def work():
        first = await admit(caller(tokens=100), tokens=10)
        first.release(tokens=160)
        await settled()
        return await attempt(caller(tokens=100), 1)

    error = run(work)
    assert isinstance(error, RateLimitExceeded)
    # 60 in debt and one to use, at 100 a minute.
    assert 35 - (time.time() - begun) <= error.retry_after_s <= 37
    assert "tokens a minute" in error.message


def test_buckets_fill_again(counters, monkeypatch):
    monkeypatch.setattr(store, "WINDOW_S", 0.2)

    async def work():
        await admit(caller(requests=1), tokens=1)
        await asyncio.sleep(0.3)
        return await attempt(caller(requests=1))

    assert not isinstance(run(work), RateLimitExceeded)


def test_what_a_killed_process_held_is_free_after_its_lease(counters, monkeypatch):
    monkeypatch.setattr(store, "LEASE_S", 60)
    open_requests, begun = redis_keys.limit_open(TENANT), time.time()

    async def work():
        held = await admit(caller(concurrent=1), tokens=1)
        assert isinstance(await attempt(caller(concurrent=1)), RateLimitExceeded)
        assert begun < counters.zscore(open_requests, held.lease) <= time.time() + 60
        counters.zadd(open_requests, {held.lease: time.time() - 1})  # nothing has renewed it
        return await attempt(caller(concurrent=1))

    assert not isinstance(run(work), RateLimitExceeded)


def test_a_limit_that_comes_later_starts_full(counters):
    async def work():
        for _ in range(5):
            (await admit(caller(tokens=1000), tokens=1)).release(tokens=1)
        return await attempt(caller(requests=2, tokens=1000))

    assert not isinstance(run(work), RateLimitExceeded)


def test_one_lease_is_counted_once_however_often_it_is_sent(counters):
    """A call is repeated when the connection was cut before its reply."""
    limits = caller(requests=2, concurrent=5).limits

    async def work():
        return [await store.count_request(tenant=TENANT, limits=limits, lease="same", tokens=1) for _ in range(5)]

    counts = run(work)
    assert [count.verdict for count in counts] == ["ok"] * 5
    assert [count.running for count in counts] == [0, 1, 1, 1, 1]
    assert 1 <= counts[-1].requests < 1.5


@pytest.mark.parametrize(("was_admitted", "refunded"), [(True, True), (False, False)])
def test_tokens_of_a_lease_that_is_not_open_come_back_only_if_it_was_admitted(
    counters, monkeypatch, was_admitted, refunded
):
    monkeypatch.setattr(store, "WINDOW_S", 1e9)
    limits = caller(tokens=1000).limits

    async def work():
        await store.count_request(tenant=TENANT, limits=limits, lease="a", tokens=500)
        values = {"tenant": TENANT, "limits": limits, "lease": "unknown", "refund": 100}
        await store.release_request(**values, was_admitted=was_admitted)
        return await store.count_request(tenant=TENANT, limits=limits, lease="b", tokens=1)

    level = run(work).tokens
    assert (590 < level < 650) is refunded
    assert (490 < level < 550) is not refunded


def test_a_renewal_never_opens_a_lease_that_has_ended(counters):
    async def work():
        await store.renew_leases([(TENANT, "ended")])

    run(work)
    assert counters.zscore(redis_keys.limit_open(TENANT), "ended") is None
