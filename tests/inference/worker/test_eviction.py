"""Which model is evicted: the least recently used, idle before busy, none that is pinned or was just loaded."""

from __future__ import annotations

import pytest

from inference.worker.eviction import EvictionStep, next_eviction_step
from inference.worker.resident import MAX_RESIDENCE_S, Resident


def resident(name: str, size: int = 10, *, status: str = "ready", used: float = 0.0, **values: object) -> Resident:
    return Resident(name, status=status, memory_bytes=size, last_used=used, **values)  # type: ignore[arg-type]


def step(others: list[Resident], needed: int = 10, *, budget: int = 20, residence_s: float = 0.0, now: float = 100.0):
    return next_eviction_step(needed, others, budget_bytes=budget, min_residence_s=residence_s, now=now)


def test_nobody_goes_while_memory_suffices():
    assert step([resident("a")]) == EvictionStep("fits")
    assert step([resident("a", status="unloading")]) == EvictionStep("fits")


def test_least_recently_used_goes_first_and_idle_before_busy():
    old, new = resident("old", used=1), resident("new", used=2)
    assert step([new, old]) == EvictionStep("evict", victim=old)
    old.num_in_engine = 1
    assert step([new, old]) == EvictionStep("evict", victim=new)
    new.num_in_engine = 1
    assert step([new, old]) == EvictionStep("evict", victim=old)


def test_those_that_leave_are_waited_for_if_that_is_enough():
    leaving, ready = resident("leaving", status="unloading"), resident("ready")
    assert step([leaving, ready]) == EvictionStep("wait")
    assert step([leaving, ready], needed=15) == EvictionStep("evict", victim=ready)


def test_what_is_pinned_stays():
    pinned = [resident("a", pinned=True), resident("b", pinned=True)]
    assert step(pinned) == EvictionStep("never")
    assert step([pinned[0], resident("b", status="unloading")], needed=20) == EvictionStep("wait")


@pytest.mark.parametrize(
    ("load_s", "until"), [(1.0, 99.0 + 5), (8.0, 99.0 + 8), (10 * MAX_RESIDENCE_S, 99.0 + MAX_RESIDENCE_S)]
)
def test_a_loaded_model_stays_for_a_while(load_s, until):
    fresh = resident("fresh", 20, ready_at=99.0, load_s=load_s)
    assert step([fresh], residence_s=5.0) == EvictionStep("wait", wait_until=until)
    assert step([fresh], residence_s=5.0, now=until) == EvictionStep("evict", victim=fresh)
    assert step([fresh]) == EvictionStep("evict", victim=fresh)


def test_one_that_may_go_goes_before_one_that_was_used_less_recently_but_has_to_stay():
    fresh, settled = resident("fresh", used=1, ready_at=99.0), resident("settled", used=2, ready_at=1.0)
    assert step([fresh, settled], residence_s=5.0) == EvictionStep("evict", victim=settled)
