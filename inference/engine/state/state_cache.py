"""StateCache: allocate the slots of fixed-size state (convolution and recurrent states)."""

from __future__ import annotations


class StateCache:
    """Allocate slot numbers; slot 0 is scratch and never allocated.

    Slots aren't cleared: the layers start a sequence's first chunk from zero, without reading the slot.

    Args:
        num_slots: Number of slots, with the scratch slot.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, 0, -1))
        self._used: set[int] = set()

    @property
    def num_free(self) -> int:
        """Number of free slots."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Number of slots in use."""
        return len(self._used)

    def allocate(self) -> int:
        """Allocate a slot; the caller has checked ``num_free``."""
        slot = self._free.pop()
        self._used.add(slot)
        return slot

    def free(self, slot: int) -> None:
        """Free a slot that is in use."""
        assert slot in self._used, f"state slot {slot} is freed twice"
        self._used.remove(slot)
        self._free.append(slot)

    def replace(self, slot: int, other: int) -> None:
        """Mark ``other``, a slot of a different owner, as used in place of ``slot``, which leaves this cache."""
        assert slot in self._used, f"state slot {slot} is not in use"
        self._used.remove(slot)
        self._used.add(other)

    def exchange(self, slot: int, other: int) -> None:
        """Free ``other``, a slot of a different owner, in place of ``slot``, which leaves this cache."""
        assert slot in self._used, f"state slot {slot} is not in use"
        self._used.remove(slot)
        self._free.append(other)
