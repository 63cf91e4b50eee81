"""BlockPool: which blocks of paged state are free, shared, or kept for later. Knows numbers only.

A block is in one of three states: free; used by one or more sequences (it counts them); or idle, which is used by
nobody but remembered by the prefix cache. Idle blocks are handed out when the free ones have gone, the one that was
given back first, first; so they count as free.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence


def _nothing(block: int) -> None:
    return None


class BlockPool:
    """Block numbers; the free block that was given back last is used first, while it is still in a cache.

    Args:
        num_blocks: Blocks there are, block 0 (scratch, never handed out) included.

    Attributes:
        on_evict: Called with the number of an idle block that is about to be handed out.
        num_evicted: Idle blocks that were handed out so far.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.on_evict: Callable[[int], None] = _nothing
        self.num_evicted = 0
        self._free = list(range(num_blocks - 1, 0, -1))
        self._num_users = [0] * num_blocks
        self._is_cached = bytearray(num_blocks)
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated."""
        return len(self._free) + len(self._idle)

    @property
    def num_used(self) -> int:
        """Blocks that some sequence uses."""
        return self.num_blocks - 1 - self.num_free

    @property
    def num_idle(self) -> int:
        """Blocks that only the prefix cache remembers."""
        return len(self._idle)

    def is_used(self, block: int) -> bool:
        """Whether some sequence uses the block."""
        return self._num_users[block] > 0

    def num_freed_by(self, tables: Iterable[Sequence[int]], *, besides: Iterable[int] = ()) -> int:
        """Blocks that would come free if the users with these block tables gave theirs back.

        Args:
            besides: Blocks that aren't counted.
        """
        counts = Counter(block for table in tables for block in table)
        for block in besides:
            counts.pop(block, None)
        return sum(self._num_users[block] == count for block, count in counts.items())

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks; the caller has checked ``num_free``."""
        assert count <= self.num_free, f"{count} blocks asked for, {self.num_free} are free"
        taken = self._free[len(self._free) - min(count, len(self._free)) :]
        del self._free[len(self._free) - len(taken) :]
        taken.reverse()
        while len(taken) < count:
            block, _ = self._idle.popitem(last=False)
            self._is_cached[block] = 0
            self.num_evicted += 1
            self.on_evict(block)
            taken.append(block)
        for block in taken:
            self._num_users[block] = 1
        return taken

    def share(self, block: int) -> None:
        """One more user of a used or idle block."""
        if self._num_users[block] == 0:
            del self._idle[block]
        self._num_users[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """One user less of each block; the first ones are the first to be handed out again."""
        for block in blocks:
            assert self._num_users[block], f"block {block} is freed twice"
            self._num_users[block] -= 1
            if self._num_users[block] == 0:
                if self._is_cached[block]:
                    self._idle[block] = None
                else:
                    self._free.append(block)

    def remember(self, block: int) -> None:
        """Keep a used block idle, rather than free, when its last user has gone."""
        assert self._num_users[block], f"block {block} is not used"
        self._is_cached[block] = 1

    def forget(self, block: int) -> None:
        """Undo ``remember``."""
        self._is_cached[block] = 0
        if block in self._idle:
            del self._idle[block]
            self._free.append(block)
