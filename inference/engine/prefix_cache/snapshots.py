"""SnapshotStore: keep recurrent states after chosen positions, within a byte budget.

A snapshot is a state slot that no sequence owns. When a new snapshot needs a slot, the snapshot of the lowest value is
evicted: to host memory if there is a budget for it, otherwise for good.

The value follows GreedyDual (https://www.usenix.org/conference/usits-97/cost-aware-www-proxy-caching-algorithms): the
clock plus the number of tokens to compute again from the previous snapshot, which is added once more at each use. The
clock is the value of the last evicted snapshot, so that the clock overtakes unused snapshots of any value. All
snapshots of a model have the same size, so value per byte needs no division. Snapshots that are kept until a time are
evicted after all others.

A slot with the state after tokens that may be unusable is taken (``take``): no snapshot yet, and never evicted. At most
half of the slots are, but a single slot may be, so that long prompts can't evict all snapshots of others.
"""

from __future__ import annotations

import time

from inference.engine.device import is_memory_error
from inference.engine.prefix_cache.state_access import StateAccess
from inference.engine.prefix_cache.tree import Node, PrefixTree, Snapshot

JUNCTION_WEIGHT = 4
"""Factor of the gain at a position where two sequences diverged, which is the most likely one to be reused."""


class SnapshotStore:
    """Own the ``num_slots`` slots from ``first_slot``.

    Args:
        tree: Tree whose nodes hold the snapshots.
        access: Copies states.
        first_slot: The first slot after the slots of running sequences.
        num_slots: Number of slots.
        host_bytes: Host memory for snapshots that were evicted from their slots.
    """

    def __init__(
        self, tree: PrefixTree, access: StateAccess, *, first_slot: int, num_slots: int, host_bytes: int
    ) -> None:
        self.num_slots = num_slots
        self.max_taken = max(1, num_slots // 2)
        self.num_evicted = 0
        self._num_taken = 0
        self._tree = tree
        self._access = access
        self._free = list(range(first_slot + num_slots - 1, first_slot - 1, -1))
        # Dicts keep the order, so that of equal values the oldest is evicted, in every process alike.
        self._in_slots: dict[Snapshot, None] = {}
        self._on_host: dict[Snapshot, None] = {}
        self._clock = 0.0
        self._max_on_host = host_bytes // access.slot_bytes if access.slot_bytes else 0

    @property
    def num_used(self) -> int:
        """Number of snapshots in slots."""
        return len(self._in_slots)

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory in use."""
        return len(self._on_host) * self._access.slot_bytes

    def add(self, node: Node, offset: int, slot: int, *, give: bool, is_junction: bool = False) -> int:
        """Keep a sequence's current state, unless a snapshot of it is in a slot.

        Args:
            slot: The sequence's slot.
            give: Whether the store may take the slot instead of a copy.
            is_junction: Whether two sequences diverge at this position.

        Returns:
            The caller's slot: another slot with undefined content if the store has taken ``slot``.
        """
        present = node.snapshots.get(offset)
        if present is not None and present.slot:
            self.touch(present, use=False)
            return slot
        free_slot = self._allocate_slot()
        if free_slot == 0:
            return slot
        if give:
            kept, slot = slot, free_slot
        else:
            self._access.copy_slot(slot, free_slot)
            kept = free_slot
        self._place(node, offset, kept, is_junction=is_junction)
        return slot

    def take(self, slot: int) -> int:
        """Copy a sequence's current state into a slot that ``place`` or ``give_back`` gets later.

        Returns:
            The slot; 0: there is none, or ``max_taken`` are taken.
        """
        taken = self._allocate_slot() if self._num_taken < self.max_taken else 0
        if taken:
            self._num_taken += 1
            self._access.copy_slot(slot, taken)
        return taken

    def take_again(self, taken: int, slot: int) -> None:
        """Copy a sequence's current state into a slot of ``take``, over the one in there."""
        self._access.copy_slot(slot, taken)

    def give_back(self, taken: int) -> None:
        """Free a slot of ``take``."""
        self._num_taken -= 1
        self._free.append(taken)

    def place(self, node: Node, offset: int, taken: int, *, is_junction: bool = False) -> None:
        """Let a slot of ``take`` be the snapshot of a position, unless a snapshot of it is in a slot.

        Args:
            taken: The slot, with the state of the position.
            is_junction: Whether two sequences diverge at this position.
        """
        self._num_taken -= 1
        self._place(node, offset, taken, is_junction=is_junction)

    def _place(self, node: Node, offset: int, kept: int, *, is_junction: bool) -> None:
        present = node.snapshots.get(offset)
        if present is not None and present.slot:
            self.touch(present, use=False)
            self._free.append(kept)
            return
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

    def touch(self, snapshot: Snapshot, *, use: bool) -> None:
        """Refresh a snapshot's value after a request for its position; ``use``: its state was reused."""
        if use:
            snapshot.expected_gain += self._expected_gain(snapshot.node, snapshot.offset)
        snapshot.value = self._clock + snapshot.expected_gain

    def load(self, snapshot: Snapshot, slot: int) -> None:
        """Copy a snapshot's state into a sequence's slot."""
        self.touch(snapshot, use=True)
        if snapshot.payload is not None:
            self._access.write_slot(slot, snapshot.payload)
        else:
            self._access.copy_slot(snapshot.slot, slot)

    def keep(self, snapshot: Snapshot, until: float) -> bool:
        """Evict a snapshot after all others until a time; at most half of the slots are kept so.

        Returns:
            Whether it is kept.
        """
        now = time.monotonic()
        if not snapshot.slot:
            return False  # in host memory, which has an order of its own
        num_kept = sum(other.kept_until > now for other in self._in_slots if other is not snapshot)
        if num_kept >= self.num_slots // 2:
            return False
        snapshot.kept_until = max(until, snapshot.kept_until)
        return True

    def drop(self, snapshot: Snapshot) -> None:
        """Remove a snapshot and free its slot."""
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

    def _allocate_slot(self) -> int:
        """Return a slot without a snapshot, after an eviction if needed; 0 if the store has no slots."""
        if not self._free and self._in_slots:
            now = time.monotonic()
            victim = min(self._in_slots, key=lambda snapshot: (snapshot.kept_until > now, snapshot.value))
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
        try:
            snapshot.payload = self._access.read_slot(snapshot.slot)
        except Exception as error:
            if not is_memory_error(error):
                raise
            self.drop(snapshot)
            return
        del self._in_slots[snapshot]
        self._on_host[snapshot] = None
        self._free.append(snapshot.slot)
        snapshot.slot = 0

    def _expected_gain(self, node: Node, offset: int) -> int:
        """Return the number of tokens between the nearest earlier snapshot and this position."""
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
