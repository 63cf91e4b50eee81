"""KVCacheManager: the block tables of running requests, on top of the pool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from inference.engine.config import blocks_for
from inference.engine.state.block_pool import BlockPool


class KVCacheManager:
    """Who uses which block of paged state.

    Tables are rows of one matrix, so that the model runner takes those of a whole batch with one indexing. A
    request's row is its seat (``state_manager``). Unused entries are 0, the scratch block.

    Args:
        num_blocks: Scratch block included.
        block_size: Tokens in one block.
        max_num_seqs: Rows.
        max_blocks_per_sequence: Columns.

    Attributes:
        room_of: Tokens for which each seat has blocks.
    """

    def __init__(self, num_blocks: int, block_size: int, max_num_seqs: int, max_blocks_per_sequence: int) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.block_tables: npt.NDArray[np.int32] = np.zeros((max_num_seqs, max_blocks_per_sequence), dtype=np.int32)
        self.num_blocks_of = [0] * max_num_seqs
        self.room_of = [0] * max_num_seqs

    def blocks_missing(self, seat: int, num_tokens: int) -> int:
        """Blocks that the seat lacks to hold ``num_tokens`` tokens."""
        return max(0, blocks_for(num_tokens, self.block_size) - self.num_blocks_of[seat])

    def blocks_of(self, seat: int) -> list[int]:
        """The seat's blocks, in order."""
        count = self.num_blocks_of[seat]
        blocks: list[int] = self.block_tables[seat, :count].tolist()
        return blocks

    def extend(self, seat: int, num_tokens: int) -> bool:
        """Give the seat blocks for its first ``num_tokens`` tokens; False, and nothing done, if too few are free."""
        if num_tokens <= self.room_of[seat]:
            return True
        missing = self.blocks_missing(seat, num_tokens)
        if missing > self.pool.num_free:
            return False
        if missing:
            self.append(seat, self.pool.allocate(missing))
        return True

    def append(self, seat: int, blocks: Sequence[int]) -> None:
        """Put blocks that are the seat's already, by ``allocate`` or ``share``, behind those it has."""
        count = self.num_blocks_of[seat]
        self.block_tables[seat, count : count + len(blocks)] = blocks
        self.num_blocks_of[seat] = count + len(blocks)
        self.room_of[seat] = (count + len(blocks)) * self.block_size

    def release(self, seat: int) -> None:
        """Give all blocks of the seat back, the last first: what comes early in a text is shared more often."""
        self.pool.free(reversed(self.blocks_of(seat)))
        self.block_tables[seat, : self.num_blocks_of[seat]] = 0
        self.num_blocks_of[seat] = self.room_of[seat] = 0
