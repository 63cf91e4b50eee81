"""BlockPool: which blocks of paged state are free. Knows numbers only, neither tensors nor requests."""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    """A stack of free block numbers; the block freed last is used first, while it is still in a cache.

    Args:
        num_blocks: Blocks there are, block 0 (scratch, never handed out) included.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, 0, -1))
        self._is_used = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks that have an owner."""
        return self.num_blocks - 1 - len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks; the caller has checked ``num_free``."""
        assert count <= len(self._free), f"{count} blocks asked for, {len(self._free)} are free"
        if count == 0:
            return []
        taken = self._free[-count:]
        del self._free[-count:]
        taken.reverse()
        for block in taken:
            self._is_used[block] = 1
        return taken

    def free(self, blocks: Iterable[int]) -> None:
        """Give blocks back; each has to be in use."""
        for block in blocks:
            assert self._is_used[block], f"block {block} is freed twice"
            self._is_used[block] = 0
            self._free.append(block)
