"""The pool of adapters by itself: places, order, budgets, failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inference.engine.adapter import Adapter
from inference.engine.adapter_pool import AdapterPool
from inference.errors import CorruptCheckpoint, InvalidRequest


class Network:
    """Notes what becomes resident; a load waits for ``gate``."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.resident: dict[int, str] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.broken: set[str] = set()

    def load(self, plan: str, path: Path) -> str:
        self.gate.wait(60)
        if plan in self.broken:
            raise CorruptCheckpoint(f"{plan} is broken.")
        return plan

    def install(self, slot: int, name: str) -> None:
        assert slot not in self.resident
        self.resident[slot] = name

    def remove(self, slot: int) -> None:
        del self.resident[slot]


@pytest.fixture
def make(tmp_path: Path):
    pools: list[AdapterPool] = []
    file = tmp_path / "weights"
    file.touch()

    def build(num_slots: int, budget: int | None = None) -> tuple[Network, AdapterPool, Callable[..., Any]]:
        network = Network(num_slots)
        pools.append(AdapterPool(network, budget))
        count = iter(range(1000))

        def request(name: str, size: int = 1) -> Any:
            adapter = Adapter(name, name, (file,), size, (file.stat().st_mtime_ns,))
            found = Hashable(source=SimpleNamespace(adapter=adapter), rank=(0, next(count)), adapter_slot=0)
            pools[-1].add(found)
            return found

        return network, pools[-1], request

    yield build
    for pool in pools:
        pool.close()


class Hashable(SimpleNamespace):
    __hash__ = object.__hash__
    __eq__ = object.__eq__


def placed(pool: AdapterPool) -> list[Any]:
    """The requests that can run, once all reads are done."""
    ready: list[Any] = []
    for _ in range(5):
        ready += pool.place().ready
        pool.await_load(5)
    return ready


def test_the_longest_unused_leaves_and_none_in_use(make) -> None:
    network, pool, request = make(2)
    a, b = request("a"), request("b")
    assert placed(pool) == [a, b] and set(network.resident.values()) == {"a", "b"}
    assert {a.adapter_slot, b.adapter_slot} == {1, 2}
    c = request("c")
    assert placed(pool) == [] and pool.stats().num_waiting == 1
    pool.release(a)
    assert placed(pool) == [c] and set(network.resident.values()) == {"b", "c"}
    again = request("b")
    assert placed(pool) == [again] and pool.stats().num_loads == 3
    assert pool.users() == {"b": 2, "c": 1}


def test_none_overtakes_one_that_waits_for_a_place(make) -> None:
    _, pool, request = make(1)
    a = request("a")
    assert placed(pool) == [a]
    b, later = request("b"), request("a")
    assert placed(pool) == []
    pool.release(a)
    assert placed(pool) == [b]
    pool.release(b)
    assert placed(pool) == [later]


@pytest.mark.parametrize("broken", [set(), {"a"}])
def test_an_adapter_that_nobody_waits_for_any_more_keeps_no_place(make, broken: set[str]) -> None:
    network, pool, request = make(1)
    network.broken = broken
    network.gate.clear()
    a = request("a")
    assert pool.place().ready == []
    pool.release(a)  # its client left while it was read
    network.gate.set()
    b = request("b")
    assert placed(pool) == [b] and set(network.resident.values()) == {"b"}


def test_others_go_on_while_one_is_read(make) -> None:
    network, pool, request = make(2)
    a = request("a")
    assert placed(pool) == [a]
    network.gate.clear()
    b, other = request("b"), request("a")
    assert pool.place().ready == [other]
    network.gate.set()
    pool.await_load(5)
    assert pool.place().ready == [b]


def test_bytes_are_a_limit_too(make) -> None:
    network, pool, request = make(4, budget=10)
    a, b = request("a", 6), request("b", 4)
    assert placed(pool) == [a, b] and pool.stats().resident_bytes == 10
    c = request("c", 5)
    assert placed(pool) == []
    pool.release(b)
    assert placed(pool) == []  # 4 bytes are too few
    pool.release(a)
    assert placed(pool) == [c] and set(network.resident.values()) <= {"b", "c"}
    with pytest.raises(InvalidRequest, match="adapter_bytes is 10"):
        pool.check(Adapter("d", "d", (Path("d"),), 11, (0,)))


def test_a_broken_file_fails_its_requests_only(make) -> None:
    network, pool, request = make(2)
    network.broken.add("bad")
    bad, good, worse = request("bad"), request("good"), request("bad")
    found = pool.place()
    while pool.has_waiting():
        pool.await_load(5)
        more = pool.place()
        found.ready += more.ready
        found.failed += more.failed
    assert found.ready == [good]
    assert {one for one, _ in found.failed} == {bad, worse}
    assert all("is broken" in error.message for _, error in found.failed)
    assert pool.stats().num_resident == 1


def test_a_request_that_waits_can_leave(make) -> None:
    _, pool, request = make(1)
    a = request("a")
    assert placed(pool) == [a]
    b = request("b")
    pool.place()
    pool.release(b)
    assert not pool.has_waiting()
    pool.release(a)
    pool.release(a)  # again: it has ended
    assert pool.stats().num_in_use == 0


def test_an_adapter_may_come_while_another_thread_reads_the_counters(make, monkeypatch) -> None:
    _, pool, request = make(3)
    request("a")
    placed(pool)
    find = AdapterPool._bytes_of

    def come_meanwhile(self: AdapterPool, adapters: Iterable[Adapter]) -> int:
        def slowly() -> Iterator[Adapter]:
            for adapter in adapters:
                yield adapter
                pool._resident[f"{adapter.digest} again"] = pool._resident[adapter.digest]

        return find(self, slowly())

    monkeypatch.setattr(AdapterPool, "_bytes_of", come_meanwhile)
    assert pool.stats().num_resident == 1
    assert len(pool._resident) == 2
