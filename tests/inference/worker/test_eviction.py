"""Who makes room: the least recently used, idle before busy, none that is pinned or was just loaded."""

from __future__ import annotations

import pytest

from inference.worker.eviction import Room, room_for
from inference.worker.resident_models import MAX_RESIDENCE_S, Resident


def resident(name: str, size: int = 10, *, status: str = "ready", used: float = 0.0, **values: object) -> Resident:
    return Resident(name, status=status, memory_bytes=size, last_used=used, **values)  # type: ignore[arg-type]


def room(others: list[Resident], needed: int = 10, *, budget: int = 20, residence_s: float = 0.0, now: float = 100.0):
    return room_for(needed, others, budget_bytes=budget, min_residence_s=residence_s, now=now)


def test_nobody_goes_while_there_is_room():
    assert room([resident("a")]) == Room("fits")
    assert room([resident("a", status="unloading")]) == Room("fits")


def test_least_recently_used_goes_first_and_idle_before_busy():
    old, new = resident("old", used=1), resident("new", used=2)
    assert room([new, old]) == Room("evict", victim=old)
    old.active = 1
    assert room([new, old]) == Room("evict", victim=new)
    new.active = 1
    assert room([new, old]) == Room("evict", victim=old)


def test_those_that_leave_are_waited_for_if_that_is_enough():
    leaving, ready = resident("leaving", status="unloading"), resident("ready")
    assert room([leaving, ready]) == Room("wait")
    assert room([leaving, ready], needed=15) == Room("evict", victim=ready)


def test_what_is_pinned_stays():
    pinned = [resident("a", pinned=True), resident("b", pinned=True)]
    assert room(pinned) == Room("never")
    assert room([pinned[0], resident("b", status="unloading")], needed=20) == Room("wait")


@pytest.mark.parametrize(
    ("load_s", "until"), [(1.0, 99.0 + 5), (8.0, 99.0 + 8), (10 * MAX_RESIDENCE_S, 99.0 + MAX_RESIDENCE_S)]
)
def test_a_loaded_model_stays_for_a_while(load_s, until):
    fresh = resident("fresh", 20, ready_at=99.0, load_s=load_s)
    assert room([fresh], residence_s=5.0) == Room("wait", look_at=until)
    assert room([fresh], residence_s=5.0, now=until) == Room("evict", victim=fresh)
    assert room([fresh]) == Room("evict", victim=fresh)


def test_one_that_may_go_goes_before_one_that_was_used_less_recently_but_has_to_stay():
    fresh, settled = resident("fresh", used=1, ready_at=99.0), resident("settled", used=2, ready_at=1.0)
    assert room([fresh, settled], residence_s=5.0) == Room("evict", victim=settled)
