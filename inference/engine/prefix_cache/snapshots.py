"""SnapshotStore: recurrent states after chosen positions, within a byte budget.

A snapshot is a state slot that no sequence owns. When a new one needs a slot, the one of least value is evicted: to
host memory where there is a budget for it, else for good.

Value (GreedyDual, https://www.usenix.org/conference/usits-97/cost-aware-www-proxy-caching-algorithms): the tokens that
would have to be computed again from the snapshot before it, once more for each time it was used, on top of a clock
that stands at the value of what was evicted last. All snapshots of a model have the same size, so value per
byte is value. What isn't used is overtaken by the clock, whatever its value was.
"""

from __future__ import annotations

from inference.engine.prefix_cache.state_access import StateAccess
from inference.engine.prefix_cache.tree import Node, PrefixTree, Snapshot

JUNCTION_WEIGHT = 4
"""A position where two sequences diverged is likelier to be reused than any other."""


class SnapshotStore:
    """Owns the slots from ``first_slot`` on.

    Args:
        tree: Its nodes hold the snapshots.
        access: Copies states.
        first_slot: The first slot that isn't for running sequences.
        num_slots: How many there are.
        host_bytes: Host memory for snapshots that left their slots.
    """

    def __init__(
        self, tree: PrefixTree, access: StateAccess, *, first_slot: int, num_slots: int, host_bytes: int
    ) -> None:
        self.num_slots = num_slots
        self.num_evicted = 0
        self._tree = tree
        self._access = access
        self._free = list(range(first_slot + num_slots - 1, first_slot - 1, -1))
        # In order, so that of equals the oldest goes and what happens is the same in every process.
        self._in_slots: dict[Snapshot, None] = {}
        self._on_host: dict[Snapshot, None] = {}
        self._clock = 0.0
        self._max_on_host = host_bytes // access.slot_bytes if access.slot_bytes else 0

    @property
    def num_used(self) -> int:
        """Snapshots in slots."""
        return len(self._in_slots)

    @property
    def host_bytes(self) -> int:
        """Host memory in use."""
        return len(self._on_host) * self._access.slot_bytes

    def add(self, node: Node, offset: int, slot: int, *, give: bool, is_junction: bool = False) -> int:
        """Keep a sequence's current state, unless there is a snapshot of it.

        Args:
            slot: The sequence's.
            give: The sequence has no further use for its slot.
            is_junction: Two sequences are known to part here.

        Returns:
            The slot that the caller has now: another one if its own was taken, with nothing of interest in it.
        """
        present = node.snapshots.get(offset)
        if present is not None and present.slot:
            self.touch(present, use=False)
            return slot
        room = self._room()
        if room == 0:
            return slot
        present = node.snapshots.get(offset)  # making room may have dropped it
        if give:
            kept, slot = slot, room
        else:
            self._access.copy_slot(slot, room)
            kept = room
        if present is not None:
            self._on_host.pop(present, None)
            present.slot, present.payload = kept, None
        else:
            gain = self._expected_gain(node, offset) * (JUNCTION_WEIGHT if is_junction else 1)
            present = Snapshot(node, offset, kept, gain, self._clock + gain)
            node.snapshots[offset] = present
            node.evicted_snapshots.discard(offset)
            self._tree.update(node)
        self._in_slots[present] = None
        return slot

    def touch(self, snapshot: Snapshot, *, use: bool) -> None:
        """Refresh the value after a request for this position; ``use``: its state was reused."""
        if use:
            snapshot.expected_gain += self._expected_gain(snapshot.node, snapshot.offset)
        snapshot.value = self._clock + snapshot.expected_gain

    def load(self, snapshot: Snapshot, slot: int) -> None:
        """Put its state into a sequence's slot."""
        self.touch(snapshot, use=True)
        if snapshot.payload is not None:
            self._access.write_slot(slot, snapshot.payload)
        else:
            self._access.copy_slot(snapshot.slot, slot)

    def drop(self, snapshot: Snapshot) -> None:
        """Remove it and free its slot."""
        node = snapshot.node
        if node.snapshots.get(snapshot.offset) is snapshot:
            del node.snapshots[snapshot.offset]
            node.evicted_snapshots.add(snapshot.offset)
        self._on_host.pop(snapshot, None)
        if snapshot in self._in_slots:
            del self._in_slots[snapshot]
            self._free.append(snapshot.slot)
        snapshot.slot, snapshot.payload = 0, None
        self._tree.update(node)

    def _room(self) -> int:
        """A slot without a snapshot; 0 if there are no slots at all."""
        if not self._free and self._in_slots:
            victim = min(self._in_slots, key=_value)
            self._clock = max(self._clock, victim.value)
            self.num_evicted += 1
            if self._max_on_host:
                self._move_to_host(victim)
            else:
                self.drop(victim)
        return self._free.pop() if self._free else 0

    def _move_to_host(self, snapshot: Snapshot) -> None:
        while len(self._on_host) >= self._max_on_host:
            self.drop(min(self._on_host, key=_value))
        snapshot.payload = self._access.read_slot(snapshot.slot)
        del self._in_slots[snapshot]
        self._on_host[snapshot] = None
        self._free.append(snapshot.slot)
        snapshot.slot = 0

    def _expected_gain(self, node: Node, offset: int) -> int:
        """Tokens since the nearest snapshot before it."""
        earlier = [other for other in node.snapshots if other < offset]
        position = node.start + offset
        at: Node | None = node
        while not earlier and at is not None and at.parent is not None:
            at = at.parent
            earlier = list(at.snapshots)
        if at is None or not earlier:
            return position
        return position - at.start - max(earlier)


def _value(snapshot: Snapshot) -> float:
    return snapshot.value
