"""Lines start within the limits per minute of their key; what can't start waits, and others go on."""

from __future__ import annotations

import pytest
import redis

from inference.access import limit_store, start_limits
from inference.access.api_keys import api_key_create, principal_of_tenant
from inference.batches import upkeep
from inference.models import BatchLine
from inference.transport import keys as redis_keys
from inference.values.limits import KeyLimits
from inference.values.principal import Principal
from tests.inference.access.limited import attempt, run
from tests.inference.batches.fakes import line, make_batch, make_runner, work


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


def key_with(**limits: int) -> Principal:
    row, _ = api_key_create(name="limited", limits=KeyLimits(**limits))
    return principal_of_tenant(f"key:{row.pk}")


def lines_of(number: int, **body: int) -> list[dict]:
    return [line(f"r{item}", **body) for item in range(number)]


def test_lines_and_interactive_requests_together_stay_within_the_limit(manager, counters):
    principal = key_with(requests=8)
    batch = work(make_batch(lines_of(20), principal), make_runner(manager), turns=12)
    assert (batch.state, batch.num_completed, batch.num_failed) == ("in_progress", 6, 0)
    assert set(BatchLine.objects.filter(state="queued").values_list("attempts", "owner")) == {(0, "")}

    async def clients():
        return [await attempt(principal) for _ in range(4)]

    assert [isinstance(reply, Exception) for reply in run(clients)] == [False, False, True, True]
    assert len(manager.messages) == 6
    for _ in range(4):  # minutes later
        counters.hset(redis_keys.limit_counters(principal.tenant), "requests", 8)
        batch = work(batch, make_runner(manager), turns=12)
    assert (batch.state, batch.num_completed) == ("completed", 20)
    assert len(manager.messages) == 20  # nothing ran twice


def test_other_tenants_use_the_places_of_a_tenant_over_its_limit(manager):
    limited, free = key_with(requests=4), key_with()
    held = make_batch(lines_of(10), limited, priority=0)
    other = make_batch(lines_of(10), free, priority=5)  # it goes behind, and there is room all the same
    item = make_runner(manager)
    work(other, item)
    held.refresh_from_db()
    other.refresh_from_db()
    assert (held.num_completed, other.num_completed) == (3, 10)


def test_a_line_that_the_tokens_have_no_room_for_waits(manager, counters):
    principal = key_with(tokens=400)
    batch = make_batch(lines_of(4, max_tokens=200), principal)
    manager.holds = lambda message: True
    item = make_runner(manager)
    for _ in range(4):
        upkeep.batches_turn(owner="keeper")
        item.turn()
    assert len(manager.held) == 1
    assert BatchLine.objects.filter(state="queued", attempts=0).count() == 3
    manager.holds = lambda message: False
    manager.answer_held()  # five tokens were used, and the rest comes back
    batch = work(batch, item)
    assert (batch.state, batch.num_completed) == ("completed", 4)
    assert float(counters.hget(redis_keys.limit_counters(principal.tenant), "tokens")) == pytest.approx(400 - 4 * 5)


def test_open_lines_stay_within_the_key_s_concurrency(manager, counters):
    principal = key_with(concurrent=4)
    batch = make_batch(lines_of(9), principal)
    manager.holds = lambda message: True
    item = make_runner(manager, window=8)
    for _ in range(40):
        upkeep.batches_turn(owner="keeper")
        item.turn()
        assert len(manager.held) <= 3
        manager.answer_held()
    batch.refresh_from_db()
    assert (batch.state, batch.num_completed) == ("completed", 9)
    item.turn()
    assert counters.zcard(redis_keys.limit_open(principal.tenant)) == 0


def test_suspects_wait_for_the_limit_too(manager, counters):
    principal = key_with(requests=8)
    batch = make_batch(lines_of(4), principal)
    upkeep.batches_turn(owner="keeper")
    BatchLine.objects.update(attempts=1)  # they ran when a worker died
    counters.hset(redis_keys.limit_counters(principal.tenant), mapping={"requests": 3, "at": 10**12})
    batch = work(batch, make_runner(manager), turns=8)
    assert batch.num_completed == 1
    counters.hset(redis_keys.limit_counters(principal.tenant), "requests", 8)
    assert work(batch, make_runner(manager)).num_completed == 4


def test_a_draining_worker_frees_the_places_of_its_lines(manager, counters):
    principal = key_with(concurrent=8)
    batch = make_batch(lines_of(3), principal)
    manager.holds = lambda message: True
    item = make_runner(manager)
    work(batch, item, turns=3)
    assert counters.zcard(redis_keys.limit_open(principal.tenant)) == 3
    item._hand_back()
    assert counters.zcard(redis_keys.limit_open(principal.tenant)) == 0
