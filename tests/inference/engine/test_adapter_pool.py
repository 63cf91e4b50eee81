"""The pool of adapters by itself: places, order, budgets, failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inference.engine.adapter import Adapter
from inference.engine.adapter_pool import AdapterPool
from inference.errors import Conflict, CorruptCheckpoint, InvalidRequest


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


def adapter(name: str, size: int = 1) -> Adapter:
    file = Path(__file__)
    return Adapter(name, name, (file,), size, (file.stat().st_mtime_ns,))


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
    assert {name: use.num_requests for name, use in pool.uses().items()} == {"b": 2, "c": 1}
    assert all(abs(time.time() - use.last_used_at) < 60 for use in pool.uses().values())


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
    while pool.has_work():
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
    assert not pool.has_work()
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


def test_a_pinned_adapter_is_read_ahead_and_stays_until_it_is_evicted(make) -> None:
    network, pool, request = make(2)
    pinned = pool.pin(adapter("a"))
    assert pool.has_work() and not pinned.done()
    assert placed(pool) == [] and pinned.result(0) is None and not pool.has_work()
    assert set(network.resident.values()) == {"a"} and pool.uses()["a"].num_requests == 0
    for name in ("b", "c", "a"):  # the others take turns in the place that is left
        one = request(name)
        assert placed(pool) == [one]
        pool.release(one)
    assert set(network.resident.values()) == {"a", "c"} and pool.stats().num_loads == 3
    evicted = pool.evict(adapter("a"))
    pool.place()
    assert evicted.result(0) is None and set(network.resident.values()) == {"c"} and not pool.has_work()


def test_one_that_is_in_use_leaves_after_its_requests(make) -> None:
    network, pool, request = make(1)
    first = request("a")
    assert placed(pool) == [first]
    second = request("a")
    pool.evict(adapter("a"))
    assert placed(pool) == [second]  # which waited already
    for one, left in ((first, {"a"}), (second, set())):
        pool.release(one)
        pool.place()
        assert set(network.resident.values()) == left
    assert not pool.has_work()
    again = request("a")
    assert placed(pool) == [again] and pool.stats().num_loads == 2


def test_places_of_pinned_adapters_are_no_ones_else(make) -> None:
    _, pool, request = make(2, budget=10)
    for name, size in (("a", 4), ("b", 3)):
        pool.pin(adapter(name, size))
    placed(pool)
    for full, words in ((pool.pin(adapter("c")), "2 places of 10 B"), (pool.pin(adapter("a", 4)), "")):
        placed(pool)
        if not words:
            assert full.result(0) is None  # it is there
            continue
        with pytest.raises(Conflict, match=rf"loaded ahead \(2\) leave no place .* {words}"):
            full.result(0)
    lost, found = request("c"), request("a", 4)
    now = pool.place()
    assert now.ready == [found] and [one for one, _ in now.failed] == [lost]
    assert "unload one of them, or raise max_adapters" in now.failed[0][1].message
    pool.evict(adapter("b", 3))
    large = pool.pin(adapter("d", 7))
    pool.place()
    with pytest.raises(Conflict):
        large.result(0)
    fits = pool.pin(adapter("e", 6))
    placed(pool)
    assert fits.result(0) is None


def test_a_pin_waits_for_a_place_in_use_before_later_requests(make) -> None:
    _, pool, request = make(1)
    a = request("a")
    assert placed(pool) == [a]
    pinned, later = pool.pin(adapter("b")), request("a")
    assert placed(pool) == [] and not pinned.done()
    pool.release(a)
    failed = [one for _ in range(5) for one, _ in (pool.place().failed, pool.await_load(5))[0]]
    assert pinned.result(0) is None and failed == [later]


def test_a_pin_that_can_not_be_read_or_was_called_off_leaves_nothing(make) -> None:
    network, pool, request = make(2)
    network.broken.add("bad")
    bad = pool.pin(adapter("bad"))
    placed(pool)
    with pytest.raises(CorruptCheckpoint, match="bad is broken"):
        bad.result(0)
    network.gate.clear()
    cancelled, unloaded = pool.pin(adapter("a")), pool.pin(adapter("b"))
    pool.place()
    assert cancelled.cancel()
    pool.evict(adapter("b"))
    pool.place()
    with pytest.raises(Conflict, match="unloaded before it was read"):
        unloaded.result(0)
    network.gate.set()
    c, d = request("c"), request("d")
    assert placed(pool) == [c, d] and set(network.resident.values()) == {"c", "d"}
    last = pool.pin(adapter("d"))
    pool.close()
    assert last.cancelled()


def test_an_adapter_that_is_evicted_while_it_is_read_does_not_stay(make) -> None:
    network, pool, _ = make(1)
    network.gate.clear()
    pool.pin(adapter("a"))
    assert not pool.is_being_read(adapter("a"))
    pool.place()
    assert pool.is_being_read(adapter("a"))
    pool.evict(adapter("a"))
    pool.place()
    assert pool.has_work()  # it leaves when the read ends
    network.gate.set()
    pool.await_load(5)
    pool.place()
    assert not network.resident and not pool.has_work() and pool.stats().resident_bytes == 0


def test_a_pin_that_is_called_off_once_a_request_has_the_adapter_leaves_no_pin(make, monkeypatch) -> None:
    network, pool, request = make(1)
    network.gate.clear()
    pinned, first = pool.pin(adapter("a")), request("a")
    place_pins = pool._place_pins

    def read_meanwhile() -> bool:
        is_open = place_pins()
        network.gate.set()
        pool.await_load(5)
        return is_open

    monkeypatch.setattr(pool, "_place_pins", read_meanwhile)
    assert pool.place().ready == [first] and pinned.cancel()
    pool.release(first)
    other = request("b")
    assert placed(pool) == [other]


def test_a_repeated_pin_that_is_called_off_leaves_the_first_one(make) -> None:
    _, pool, request = make(1)
    pool.pin(adapter("a"))
    placed(pool)
    again = pool.pin(adapter("a"))
    begin = again.set_running_or_notify_cancel
    again.set_running_or_notify_cancel = lambda: again.cancel() and begin()
    placed(pool)
    other = request("b")
    assert again.cancelled() and [one for one, _ in pool.place().failed] == [other]


def test_an_order_to_evict_that_is_called_off_changes_nothing(make) -> None:
    network, pool, _ = make(1)
    pool.pin(adapter("a"))
    placed(pool)
    assert pool.evict(adapter("a")).cancel()
    pool.place()
    assert set(network.resident.values()) == {"a"} and not pool.has_work()
