"""BlockPool: allocate block numbers of paged state, and count the users of shared blocks.

A block is in one of three states: free; used by one or more sequences; or idle: unused, but kept by the prefix cache.
When no block is free, idle blocks are allocated, the least recently freed first; so idle blocks count as free. Blocks
that are kept until a time come after all others.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence


class BlockPool:
    """Allocate block numbers; the most recently freed block first, because it may still be in the processor's cache.

    Args:
        num_blocks: Number of blocks, with block 0 (scratch, never allocated).

    Attributes:
        on_evict: Called with the number of an idle block before its allocation.
        num_evicted: Number of idle blocks that were allocated so far.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.on_evict: Callable[[int], None] = lambda block: None
        self.num_evicted = 0
        self._free = list(range(num_blocks - 1, 0, -1))
        self._num_users = [0] * num_blocks
        self._is_cached = bytearray(num_blocks)
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._idle_kept: OrderedDict[int, None] = OrderedDict()
        self._kept_until: dict[int, float] = {}

    @property
    def num_free(self) -> int:
        """Number of blocks that can be allocated, idle ones included."""
        return len(self._free) + self.num_idle

    @property
    def num_used(self) -> int:
        """Number of blocks that sequences use."""
        return self.num_blocks - 1 - self.num_free

    @property
    def num_idle(self) -> int:
        """Number of unused blocks that the prefix cache keeps."""
        return len(self._idle) + len(self._idle_kept)

    @property
    def num_kept(self) -> int:
        """Number of blocks that are kept until a time."""
        return len(self._kept_until)

    def is_used(self, block: int) -> bool:
        """Whether a sequence uses the block."""
        return self._num_users[block] > 0

    def num_freed_by(self, tables: Iterable[Sequence[int]], *, besides: Iterable[int] = ()) -> int:
        """Return how many blocks, except ``besides``, would be free after these block tables were released."""
        counts = Counter(block for table in tables for block in table)
        for block in besides:
            counts.pop(block, None)
        return sum(self._num_users[block] == count for block, count in counts.items())

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks; the caller has checked ``num_free``."""
        assert count <= self.num_free, f"{count} blocks requested, {self.num_free} are free"
        taken = self._free[len(self._free) - min(count, len(self._free)) :]
        del self._free[len(self._free) - len(taken) :]
        taken.reverse()
        while len(taken) < count:
            block, _ = (self._idle or self._idle_kept).popitem(last=False)
            self._is_cached[block] = 0
            self._kept_until.pop(block, None)
            self.num_evicted += 1
            self.on_evict(block)
            taken.append(block)
        for block in taken:
            self._num_users[block] = 1
        return taken

    def share(self, block: int) -> None:
        """Add a user to a used or idle block."""
        if self._num_users[block] == 0:
            del self._idle_with(block)[block]
        self._num_users[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """Remove a user from each block; idle blocks are evicted in the order of ``blocks``."""
        for block in blocks:
            assert self._num_users[block], f"block {block} is freed twice"
            self._num_users[block] -= 1
            if self._num_users[block] == 0:
                if self._is_cached[block]:
                    self._idle_with(block)[block] = None
                else:
                    self._free.append(block)

    def remember(self, block: int) -> None:
        """Let a used block become idle, rather than free, after its last user."""
        assert self._num_users[block], f"block {block} is not used"
        self._is_cached[block] = 1

    def forget(self, block: int) -> None:
        """Undo ``remember`` and ``keep``."""
        self._is_cached[block] = 0
        if self._idle_with(block).pop(block, 0) is None:
            self._free.append(block)
        self._kept_until.pop(block, None)

    def keep(self, blocks: Iterable[int], until: float) -> None:
        """Allocate these remembered blocks after all other idle ones until a time, or a later one that was set."""
        for block in blocks:
            is_idle = self._idle.pop(block, 0) is None
            self._kept_until[block] = max(until, self._kept_until.get(block, until))
            if is_idle:
                self._idle_kept[block] = None

    def num_not_kept(self, blocks: Iterable[int]) -> int:
        """Return how many of the blocks aren't kept."""
        return sum(block not in self._kept_until for block in blocks)

    def end_keeping(self, now: float) -> None:
        """Let the blocks whose time is over be idle as others, freed just now."""
        for block in [block for block, until in self._kept_until.items() if until <= now]:
            is_idle = self._idle_kept.pop(block, 0) is None
            del self._kept_until[block]
            if is_idle:
                self._idle[block] = None

    def _idle_with(self, block: int) -> OrderedDict[int, None]:
        """The idle blocks among which a block belongs when nobody uses it."""
        return self._idle_kept if block in self._kept_until else self._idle
