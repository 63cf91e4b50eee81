"""Sums over workers: each counter once, whoever reads it, and never more work than there was energy."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.records.energy_days import EnergyKey
from inference.values.states import EnergyReading, WorkerState
from inference.worker.energy_sums import EnergySums

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
DAY = date(2026, 1, 2)


def state(
    name: str,
    joules: float,
    *,
    started_at: float = 1.0,
    counter: str = "boot/0",
    device: str = "box/package-0",
    **work: float,
) -> WorkerState:
    reading = EnergyReading(counter, device, "rapl", joules, work)
    return WorkerState(name, started_at=started_at, energy=(reading,))


def key(model: str = "", device: str = "box/package-0", day: date = DAY) -> EnergyKey:
    return EnergyKey(day, device, "rapl", model)


def sampled(*samples: list[WorkerState], step_s: float = 5.0, begin: datetime = NOON) -> dict[EnergyKey, float]:
    sums = EnergySums()
    for number, workers in enumerate(samples):
        sums.sample(workers, begin + timedelta(seconds=number * step_s))
    return dict(sums.pending)


def test_the_first_sample_is_where_counting_begins() -> None:
    assert sampled([state("w", 1000, a=900)]) == {}
    assert sampled([state("w", 1000, a=900)], [state("w", 1100, a=960)]) == {key("a"): 60, key(): 40}


def test_two_workers_on_one_counter_are_counted_once() -> None:
    before = [state("w-1", 50), state("w-0", 100)]
    after = [state("w-1", 150, b=30), state("w-0", 200, a=20)]
    assert sampled(before, after) == {key("a"): 20, key("b"): 30, key(): 50}
    busy = [state("w-1", 150, a=100, b=100), state("w-0", 200, a=100)]
    assert sampled(before, busy) == {key("a"): pytest.approx(200 / 3), key("b"): pytest.approx(100 / 3)}


def test_devices_and_days_are_apart() -> None:
    before = [state("w-0", 0), state("w-1", 0, counter="GPU-1", device="box/GPU-1")]
    after = [state("w-0", 10), state("w-1", 70, counter="GPU-1", device="box/GPU-1", a=70)]
    late = NOON.replace(hour=23, minute=59, second=56)
    assert sampled(before, after, begin=late) == {
        key(day=DAY + timedelta(days=1)): 10,
        key("a", "box/GPU-1", DAY + timedelta(days=1)): 70,
    }


def test_a_worker_that_starts_again_begins_at_0_and_one_that_goes_is_followed_by_another() -> None:
    restarted = [state("w-0", 80, started_at=2.0, a=80)]
    assert sampled([state("w-0", 50)], restarted) == {}
    assert sampled([state("w-0", 50)], restarted, [state("w-0", 90, started_at=2.0, a=85)]) == {key("a"): 5, key(): 5}
    both, other = [state("w-0", 50), state("w-1", 10)], [state("w-1", 25)]
    assert sampled(both, other) == {key(): 15}


def test_after_a_gap_nothing_is_counted_twice() -> None:
    samples = [state("w", 0)], [state("w", 500)], [state("w", 510)]
    assert sampled(*samples, step_s=16.0) == {}
    assert sampled(*samples, step_s=5.0) == {key(): 510}
    sums = EnergySums()
    sums.sample([state("w", 0)], NOON)
    sums.sample([state("w", 10)], NOON + timedelta(seconds=5))
    sums.restart()
    sums.sample([state("w", 90)], NOON + timedelta(seconds=10))
    assert sums.pending == {key(): 10}


def test_models_are_stored_by_name() -> None:
    sums = EnergySums()
    sums.pending.update({key("id"): 5, key("gone"): 2, key(): 1})
    assert sums.by_name({"id": "tiny"}) == {key("tiny"): 5, key("gone"): 2, key(): 1}


steps = st.lists(
    st.tuples(st.floats(0, 1e6), st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=2)),
    max_size=15,
)


@given(steps)
def test_all_parts_are_the_counters_joules(moves: list[tuple[float, list[tuple[float, float]]]]) -> None:
    """Two workers of two models read the same counter; what they report of work may overlap."""
    total, work = 0.0, [{"a": 0.0, "b": 0.0}, {"a": 0.0, "b": 0.0}]
    samples = [[state("w-0", 0), state("w-1", 0)]]
    for joules, shares in moves:
        total += joules
        for own, (a, b) in zip(work, shares, strict=True):
            own["a"], own["b"] = own["a"] + joules * a / 2, own["b"] + joules * b / 2
        samples.append([state(f"w-{number}", total, **own) for number, own in enumerate(work)])
    found = sampled(*samples)
    assert sum(found.values()) == pytest.approx(total, abs=1e-6)
    assert all(part > 0 for part in found.values())
