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
        self._used: set[int] = set()

    @property
    def num_free(self) -> int:
        """Slots that can be allocated."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Slots that have an owner."""
        return len(self._used)

    def allocate(self) -> int:
        """Take a slot; the caller has checked ``num_free``."""
        slot = self._free.pop()
        self._used.add(slot)
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back; it has to be in use."""
        assert slot in self._used, f"state slot {slot} is freed twice"
        self._used.remove(slot)
        self._free.append(slot)

    def replace(self, slot: int, other: int) -> None:
        """The user of ``slot`` has ``other``, a slot from elsewhere, in its place, which goes elsewhere."""
        assert slot in self._used, f"state slot {slot} is not in use"
        self._used.remove(slot)
        self._used.add(other)

    def exchange(self, slot: int, other: int) -> None:
        """Give back ``other``, a slot from elsewhere, in place of ``slot``, which its user has given away."""
        assert slot in self._used, f"state slot {slot} is not in use"
        self._used.remove(slot)
        self._free.append(other)
