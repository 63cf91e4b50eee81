"""Which snapshot leaves its slot, and where its state is then."""

from __future__ import annotations

import numpy as np
import pytest

from inference.engine.prefix_cache.snapshots import SnapshotStore
from inference.engine.prefix_cache.tree import PrefixTree, root_digest

SPACE = root_digest("")


class Slots:
    """State slots that hold one number each."""

    slot_bytes = 8

    def __init__(self):
        self.values = {0: 0}

    def copy_slot(self, source, target):
        self.values[target] = self.values[source]

    def read_slot(self, slot):
        return np.array([self.values[slot]])

    def write_slot(self, slot, payload):
        self.values[slot] = int(payload[0])


class Store:
    """A store of ``num_slots`` slots from 10 on, over a tree of width 8; sequences use slot 1."""

    def __init__(self, num_slots, host_bytes=0):
        self.slots, self.tree = Slots(), PrefixTree(8, max_dead=0)
        self.store = SnapshotStore(self.tree, self.slots, first_slot=10, num_slots=num_slots, host_bytes=host_bytes)

    def add(self, number, offset=8, *, give=False, is_junction=False):
        """A snapshot of a state that is just ``number``, after ``offset`` tokens of the sequence of that number."""
        self.slots.values[1] = number
        node = self.tree.child(SPACE, (number,) * 8)
        self.tree.acquire(node)
        slot = self.store.add(node, offset, 1, give=give, is_junction=is_junction)
        self.tree.release(node)
        return slot

    def state_of(self, number):
        (node,) = self.tree.walk(SPACE, [number] * 8).nodes
        self.store.load(node.snapshots[8], 2)
        return self.slots.values[2]

    def kept(self):
        return sorted(node.tokens[0] for node in self.tree.nodes())


def test_the_oldest_of_equals_is_evicted_and_its_node_with_it():
    found = Store(2)
    for number in range(5):
        assert found.add(number) == 1
    assert found.kept() == [3, 4] and found.store.num_evicted == 3 and found.store.num_used == 2
    assert [found.state_of(number) for number in (3, 4)] == [3, 4]


def test_what_is_used_and_where_sequences_part_stays():
    found = Store(2)
    found.add(0)
    found.add(1, is_junction=True)
    assert found.state_of(0) == 0
    found.add(2)
    assert found.kept() == [1, 2], "the junction is worth more than one use"
    found.add(3)
    assert found.kept() == [1, 3]


def test_a_slot_that_is_given_is_kept_itself():
    found = Store(2)
    other = found.add(7, give=True)
    assert other in (10, 11) and found.state_of(7) == 7
    assert found.add(7, give=True) == 1, "it is there already, so the sequence keeps its slot"


def test_evicted_states_go_to_host_memory_and_come_back():
    found = Store(1, host_bytes=16)
    for number in range(4):
        found.add(number)
    assert found.kept() == [1, 2, 3] and found.store.host_bytes == 16
    assert found.state_of(1) == 1 and found.state_of(3) == 3
    found.add(1)
    assert found.state_of(1) == 1 and found.store.num_used == 1


def test_a_state_without_memory_on_the_host_is_dropped(monkeypatch):
    found = Store(1, host_bytes=16)
    found.add(0)
    found.add(1)

    def fails(slot):
        raise MemoryError

    monkeypatch.setattr(found.slots, "read_slot", fails)
    found.add(2)
    assert found.kept() == [0, 2] and found.store.host_bytes == 8
    assert [found.state_of(number) for number in (0, 2)] == [0, 2]


@pytest.mark.parametrize("host_bytes", [0, 64])
def test_dropping_all_frees_all_slots(host_bytes):
    found = Store(2, host_bytes)
    for number in range(4):
        found.add(number)
    for node in list(found.tree.nodes()):
        for snapshot in list(node.snapshots.values()):
            found.store.drop(snapshot)
    assert found.kept() == [] and found.store.num_used == found.store.host_bytes == 0
    assert sorted(found.store._free) == [10, 11]


def test_without_slots_nothing_is_kept():
    found = Store(0)
    assert found.add(1) == 1 and found.kept() == []


def test_at_most_half_of_the_slots_are_taken():
    found = Store(4)
    for number in range(4):
        found.add(number)
    taken = [found.store.take(1) for _ in range(3)]
    assert taken[2] == 0 and found.kept() == [2, 3]
    found.slots.values[1] = 9
    found.store.take_again(taken[0], 1)
    node = found.tree.child(SPACE, (9,) * 8)
    found.tree.acquire(node)
    found.store.place(node, 8, taken[0])
    found.store.give_back(taken[1])
    assert found.state_of(9) == 9 and found.kept() == [2, 3, 9]
    assert [found.store.take(1) > 0 for _ in range(3)] == [True, True, False], "those are free to be taken again"
    single = Store(1)
    single.add(0)
    assert single.store.take(1) == 10
