"""Where a waiting request stands."""

from __future__ import annotations

import heapq
import json
import time
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.values.queue_place import HeldModel, QueuePlaces, StartOutlook, start_in_s


def ready(
    *free_in_s: float, waiting: tuple[str, ...] = (), num_free: int = 0, request_s: float = 4.0, age_s: float = 0
):
    outlook = StartOutlook(waiting, len(free_in_s) + num_free, num_free, free_in_s, request_s)
    return HeldModel(True, outlook, age_s)


def queue_place(request_id: str, held, queued_ids, **options):
    return QueuePlaces(held, queued_ids, **options).of(request_id)


def test_a_request_starts_when_the_place_is_free_that_those_before_it_leave() -> None:
    held = [ready(1.0, 3.0, waiting=("a", "b"))]
    places = [place for name in "abcd" if (place := queue_place(name, held, ["c", "d"])) is not None]
    assert [(place.position, place.estimated_s) for place in places] == [(1, 1.0), (2, 3.0), (3, 5.0), (4, 7.0)]
    assert {place.waits_for for place in places} == {"capacity"}


def test_places_of_all_workers_count_for_those_that_no_worker_has_taken() -> None:
    held = [ready(4.0, waiting=("a",)), ready(1.0)]
    assert queue_place("c", held, ["c"]).estimated_s == 4.0
    assert queue_place("a", held, ["c"]).estimated_s == 4.0  # only its own worker's


def test_requests_that_a_worker_has_taken_since_its_heartbeat_are_before_those_that_wait_in_redis() -> None:
    place = queue_place("q", [ready(1.0, 3.0, waiting=("a",))], ["q"], num_taken=6)
    assert place is not None and place.position == 6 - 2 + 1
    taken = queue_place("t", [HeldModel(False, StartOutlook())], [], num_taken=1)
    assert taken is not None and taken.position == 1  # it is not before itself


def test_a_request_that_a_worker_has_just_taken_has_no_place_before_the_next_heartbeat() -> None:
    assert queue_place("new", [ready(1.0, waiting=("a",))], ["b"]) is None


def test_a_free_place_is_taken_at_once_and_again_after_a_mean_request() -> None:
    held = [ready(num_free=2, request_s=3.0)]
    assert [start_in_s(number, held) for number in range(4)] == [0.0, 0.0, 3.0, 3.0]


@given(
    places=st.lists(st.integers(0, 400), min_size=1, max_size=12),
    num_before=st.integers(0, 200),
    quarters=st.integers(1, 60),
)
def test_starts_are_those_of_a_simulation_of_all_requests(places: list[int], num_before: int, quarters: int) -> None:
    free_in_s = sorted(place / 4 for place in places)
    simulated = list(free_in_s)
    for _ in range(num_before):
        heapq.heapreplace(simulated, simulated[0] + quarters / 4)
    assert start_in_s(num_before, [ready(*free_in_s, request_s=quarters / 4)]) == simulated[0]


def test_an_estimate_takes_no_longer_behind_many_requests() -> None:
    held = [ready(*(float(number) for number in range(64)), request_s=0.5)]
    begin = time.thread_time()
    assert start_in_s(10_000_000, held) == pytest.approx(10_000_000 / 64 / 2 + 31.5, abs=1.0)
    assert time.thread_time() - begin < 0.1


def test_places_are_free_one_after_the_other_while_no_request_has_ended() -> None:
    held = [ready(2.0, 5.0, request_s=0.0)]
    assert [start_in_s(number, held) for number in range(3)] == [2.0, 5.0, None]


@pytest.mark.parametrize(("age_s", "expected"), [(0.5, 1.5), (100.0, 0.0)])
def test_an_old_report_is_brought_forward(age_s: float, expected: float) -> None:
    assert start_in_s(0, [ready(2.0, age_s=age_s)]) == expected


def test_nothing_is_said_while_nothing_is_known() -> None:
    assert start_in_s(0, [ready(request_s=0.0)]) is None
    assert start_in_s(1, [ready(2.0, request_s=0.0)]) is None
    assert start_in_s(0, [ready(2.0, request_s=0.0)]) == 2.0


def test_a_load_and_a_swap_are_named_with_the_seconds_that_are_left() -> None:
    loading = HeldModel(False, StartOutlook(load_left_s=6.0), 1.0)
    swapping = HeldModel(False, StartOutlook(load_left_s=9.0, evicts="other"))
    place = queue_place("a", [loading], ["a"])
    assert (place.waits_for, place.load_left_s, place.estimated_s) == ("load", 5.0, 5.0)
    place = queue_place("a", [swapping], [])
    assert (place.waits_for, place.evicts, place.load_left_s) == ("swap", "other", 9.0)
    assert queue_place("a", [loading, ready(2.0)], ["a"]).waits_for == "capacity"
    place = queue_place("a", [HeldModel(False, StartOutlook())], ["b", "a"])
    assert (place.waits_for, place.estimated_s, place.position) == ("load", None, 2)
    assert queue_place("a", [], ["a"], has_workers=False).waits_for == "worker"


def test_plain_values_come_back_and_unknown_members_are_left_out() -> None:
    outlook = StartOutlook(("a",), 3, 1, (1.0, 2.0), 3.0, 4.0, "x")
    assert StartOutlook.from_dict({**json.loads(json.dumps(asdict(outlook))), "later": 1}) == outlook
    assert queue_place("a", [ready(1.2345)], ["a"]).to_dict() == {
        "position": 1, "waits_for": "capacity", "estimated_s": 1.23, "load_left_s": None, "evicts": None,
    }  # fmt: skip


def test_places_of_all_waiting_requests_are_found_in_one_pass() -> None:
    """Each of N streams that ask where they stand was compared with all N, every second."""
    compared = 0

    class Id(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    names = [f"r{number}" for number in range(500)]
    listed, queued = names[:64], names[64:]
    places = QueuePlaces([ready(1.0, waiting=tuple(map(Id, listed)))], [*map(Id, queued)])
    found = [places.of(Id(name)) for name in names]
    assert [place.position for place in found] == list(range(1, 501))
    assert compared < 4 * len(names)
