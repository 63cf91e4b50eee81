"""StateCache: which fixed-size state slots (convolution and recurrent states) are free."""

from __future__ import annotations


class StateCache:
    """Slot numbers; slot 0 is scratch and never handed out.

    A slot isn't cleared: the layers start a sequence's first chunk from zero whatever the slot holds.

    Args:
        num_slots: Scratch slot included.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, 0, -1))
        self._is_used = bytearray(num_slots)

    @property
    def num_free(self) -> int:
        """Slots that can be allocated."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Slots that have an owner."""
        return self.num_slots - 1 - len(self._free)

    def allocate(self) -> int:
        """Take a slot; the caller has checked ``num_free``."""
        slot = self._free.pop()
        self._is_used[slot] = 1
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back; it has to be in use."""
        assert self._is_used[slot], f"state slot {slot} is freed twice"
        self._is_used[slot] = 0
        self._free.append(slot)
