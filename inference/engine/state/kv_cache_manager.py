"""KVCacheManager: maintain the block tables of running requests, with blocks of a pool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from inference.engine.config import blocks_for
from inference.engine.state.block_pool import BlockPool


class KVCacheManager:
    """Assign blocks of paged state to requests.

    The tables are rows of one matrix, so that the model runner reads the tables of a whole batch with one indexing. A
    request's row is its index (``state_manager``). Unused entries are 0, the scratch block.

    Args:
        num_blocks: Number of blocks, with the scratch block.
        block_size: Tokens in one block.
        max_num_seqs: Number of rows.
        max_blocks_per_sequence: Number of columns.
    """

    def __init__(self, num_blocks: int, block_size: int, max_num_seqs: int, max_blocks_per_sequence: int) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.block_tables: npt.NDArray[np.int32] = np.zeros((max_num_seqs, max_blocks_per_sequence), dtype=np.int32)
        self.num_blocks_of = [0] * max_num_seqs

    def blocks_of(self, index: int) -> list[int]:
        """Return the request's blocks, in order."""
        blocks: list[int] = self.block_tables[index, : self.num_blocks_of[index]].tolist()
        return blocks

    def extend(self, index: int, num_tokens: int) -> bool:
        """Allocate blocks for the request's first ``num_tokens`` tokens; False without a change if too few are free."""
        missing = blocks_for(num_tokens, self.block_size) - self.num_blocks_of[index]
        if missing > self.pool.num_free:
            return False
        if missing > 0:
            self.append(index, self.pool.allocate(missing))
        return True

    def append(self, index: int, blocks: Sequence[int]) -> None:
        """Append blocks to a request's table; the caller has allocated or shared them."""
        count = self.num_blocks_of[index]
        self.block_tables[index, count : count + len(blocks)] = blocks
        self.num_blocks_of[index] = count + len(blocks)

    def release(self, index: int) -> None:
        """Free all blocks of the request, the last first, because first blocks are shared more often."""
        self.pool.free(reversed(self.blocks_of(index)))
        self.block_tables[index, : self.num_blocks_of[index]] = 0
        self.num_blocks_of[index] = 0
