"""Who may enter the engines: all in order, a request that must run alone by itself."""

from __future__ import annotations

import pytest

from inference.worker.entry import EntryQueue
from inference.worker.resident import ActiveRequest, Resident
from tests.inference.worker.fakes import message


@pytest.fixture
def entry() -> EntryQueue:
    return EntryQueue()


def request(name: str, *, alone_tokens: int | None = None, resident: Resident | None = None) -> ActiveRequest:
    more = {} if alone_tokens is None else {"alone_tokens": alone_tokens}
    return ActiveRequest(message(name, **more), print, resident or Resident("a"))


def names(requests: list[ActiveRequest]) -> list[str]:
    return [item.request_id for item in requests]


def test_ordinary_requests_enter_at_once(entry):
    first, second = request("r1"), request("r2")
    entry.add(first)
    assert not entry.is_closed
    assert names(entry.admit()) == ["r1"]
    entry.add(second)
    assert names(entry.admit()) == ["r2"]
    assert entry.num_inside == 2


def test_a_suspect_enters_empty_engines_only_and_keeps_its_place(entry):
    inside, suspect, later = request("inside"), request("suspect", alone_tokens=5), request("later")
    for item in (inside, suspect, later):
        entry.add(item)
    assert names(entry.admit()) == ["inside"]
    assert entry.is_closed
    entry.leave(inside)
    assert names(entry.admit()) == ["suspect"]
    assert entry.admit() == []
    entry.leave(suspect)
    assert names(entry.admit()) == ["later"]
    assert not entry.is_closed


def test_a_suspect_shares_again_after_enough_tokens(entry):
    suspect, later = request("suspect", alone_tokens=5), request("later")
    entry.add(suspect)
    entry.add(later)
    assert names(entry.admit()) == ["suspect"]
    suspect.num_tokens = 4
    entry.record_tokens(suspect)
    assert entry.admit() == []
    suspect.num_tokens = 5
    entry.record_tokens(suspect)
    assert names(entry.admit()) == ["later"]
    entry.leave(suspect)
    assert (entry.num_inside, entry.is_closed) == (1, False)


def test_suspects_run_one_after_the_other(entry):
    suspects = [request(f"s{number}", alone_tokens=5) for number in range(3)]
    for item in suspects:
        entry.add(item)
    order = []
    while admitted := entry.admit():
        order += names(admitted)
        entry.leave(admitted[0])
    assert order == ["s0", "s1", "s2"]


def test_what_is_cancelled_or_loses_its_model_waits_no_longer(entry):
    gone = Resident("gone")
    entry.add(request("suspect", alone_tokens=1))
    entry.admit()
    cancelled, stays, moved = request("cancelled"), request("stays"), request("moved", resident=gone)
    for item in (cancelled, stays, moved):
        entry.add(item)
    entry.discard(cancelled)
    assert names(entry.take_of(gone)) == ["moved"]
    entry.leave(entry.alone)
    assert names(entry.admit()) == ["stays"]
