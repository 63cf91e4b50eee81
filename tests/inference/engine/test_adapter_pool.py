"""Places of adapters: who gets one, who waits, and who leaves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inference.engine.adapter import Adapter
from inference.engine.adapter_pool import AdapterPool
from inference.engine.running_request import Request
from inference.errors import InvalidRequest
from inference.modelling.adapters.network import NetworkAdapters
from inference.modelling.lora.plan import AdapterPlan


class Slots:
    """Stands for a network: remembers what lies in its slots."""

    num_slots = 2

    def __init__(self) -> None:
        self.installed: dict[int, str] = {}

    def load(self, plan: AdapterPlan, path: Path) -> str:
        return path.name

    def install(self, slot: int, loaded: str) -> None:
        self.installed[slot] = loaded

    def remove(self, slot: int) -> None:
        del self.installed[slot]


@pytest.fixture
def make(tmp_path: Path):
    def adapter(name: str, num_bytes: int = 10) -> Adapter:
        file = tmp_path / name
        if not file.exists():
            file.write_text(name)
        return Adapter(name, cast("AdapterPlan", None), file, num_bytes, file.stat().st_mtime_ns)

    return adapter


@pytest.fixture
def network():
    return Slots()


def pool_of(network: Slots, budget: int | None = None) -> AdapterPool:
    return AdapterPool(cast("NetworkAdapters", network), budget)


class Waiting(SimpleNamespace):
    """A request as the pool sees it."""

    __eq__, __hash__ = object.__eq__, object.__hash__


def request(adapter: Adapter, rank: int) -> Request:
    return cast("Request", Waiting(source=SimpleNamespace(adapter=adapter), rank=(0, rank), adapter_slot=0))


def placed(pool: AdapterPool) -> list[Any]:
    """What can run once all reads that began are done."""
    ready: list[Any] = []
    for _ in range(3):  # a look may begin a read, and reads end one by one
        found = pool.place()
        assert not found.failed
        ready += found.ready
        pool.await_load(5.0)
    return ready


def test_the_longest_unused_adapter_leaves_and_none_in_use(make, network) -> None:
    pool = pool_of(network)
    first, second, third = (request(make(name), rank) for rank, name in enumerate("abc"))
    for one in (first, second, third):
        pool.add(one)
    assert placed(pool) == [first, second]
    assert pool.has_waiting() and sorted(network.installed.values()) == ["a", "b"]
    pool.release(second)
    assert placed(pool) == [third]
    assert sorted(network.installed.values()) == ["a", "c"] and third.adapter_slot != first.adapter_slot
    stats = pool.stats()
    assert (stats.num_resident, stats.num_in_use, stats.num_loads, stats.num_evictions) == (2, 2, 3, 1)
    pool.close()


def test_nobody_overtakes_a_request_that_waits_for_a_place(make, network) -> None:
    pool = pool_of(network)
    first, second, third, fourth = (request(make(name), rank) for rank, name in enumerate("abca"))
    for one in (fourth, third, second, first):
        pool.add(one)
    assert placed(pool) == [first, second]  # a is resident, but the request for c is before the second one for a
    pool.release(third)
    assert placed(pool) == [fourth] and not pool.has_waiting()
    pool.close()


def test_a_budget_counts_like_places(make, network) -> None:
    pool = pool_of(network, budget=15)
    with pytest.raises(InvalidRequest, match="adapter_bytes is 15"):
        pool.check(make("large", 16))
    first, second = request(make("a"), 0), request(make("b"), 1)
    pool.add(first)
    pool.add(second)
    assert placed(pool) == [first] and pool.stats().resident_bytes == 10
    pool.release(first)
    assert placed(pool) == [second] and list(network.installed.values()) == ["b"]
    pool.close()


def test_a_file_that_changed_fails_all_that_wait_for_it(make, network) -> None:
    pool = pool_of(network)
    adapter = make("a")
    one, two = request(adapter, 0), request(adapter, 1)
    pool.add(one)
    pool.add(two)
    adapter.weights.unlink()
    failed = pool.place().failed
    pool.await_load(5.0)
    failed += pool.place().failed
    assert [item for item, _ in failed] == [one, two] and "changed or is gone" in failed[0][1].message
    assert pool.stats().num_resident == 0 and not pool.has_waiting()
    pool.close()
