"""StateManager: all generation state of requests behind one interface.

A running request has a seat (its row in the block tables), blocks for its tokens where the model has paged
state, and a slot where it has per-sequence state. The scheduler asks here and nowhere else, so that what a
request can start from (today: nothing) is decided in ``admit`` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.engine.config import EngineConfig, blocks_for
from inference.engine.kv_cache_manager import KVCacheManager
from inference.engine.state_cache import StateCache
from inference.errors import OutOfCacheBlocks
from inference.modelling.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class SequenceState:
    """Where one running request's state is.

    Attributes:
        seat: Row in ``KVCacheManager.block_tables``.
        slot: State slot; 0 (scratch) when the model has no per-sequence state.
    """

    seat: int
    slot: int


class StateManager:
    """Blocks, slots and seats of one engine.

    Args:
        spec: Says which kinds of state there are.
        config: Says how much of each.
    """

    def __init__(self, spec: ModelSpec, config: EngineConfig) -> None:
        self.has_paged_state = spec.state_bytes_per_token() > 0
        self.has_slots = spec.state_bytes_per_sequence() > 0
        self.config = config
        if self.has_paged_state and config.num_blocks < 2:
            raise OutOfCacheBlocks("num_blocks is 1, the model needs at least 2; raise the state budget.")
        if self.has_slots and config.num_state_slots < 2:
            raise OutOfCacheBlocks("num_state_slots is 1, the model needs at least 2; raise the state budget.")
        self.kv = KVCacheManager(
            config.num_blocks if self.has_paged_state else 1,
            config.block_size,
            config.max_num_seqs,
            config.max_blocks_per_sequence if self.has_paged_state else 0,
        )
        self.slots = StateCache(config.num_state_slots if self.has_slots else 1)
        self._free_seats = list(range(config.max_num_seqs - 1, -1, -1))

    @property
    def max_sequence_tokens(self) -> int:
        """Tokens of a sequence that has all blocks to itself, its last token, which is never computed, included."""
        if not self.has_paged_state:
            return self.config.max_model_len
        return (self.config.num_blocks - 1) * self.config.block_size + 1

    def check_fits(self, num_tokens: int) -> None:
        """Refuse a sequence that could never be computed, even alone.

        Args:
            num_tokens: Tokens whose state it keeps at its longest.

        Raises:
            OutOfCacheBlocks: It needs more blocks than there are.
        """
        if not self.has_paged_state:
            return
        total = self.config.num_blocks - 1
        needed = blocks_for(num_tokens, self.config.block_size)
        if needed > total:
            raise OutOfCacheBlocks(
                f"prompt and max_tokens need {needed:,} blocks of state, the server has {total:,} "
                f"({total * self.config.block_size:,} tokens); shorten the prompt or lower max_tokens.",
                param="max_tokens",
            )

    def can_admit(self, num_tokens: int, *, reserve_blocks: int) -> bool:
        """Whether a request with ``num_tokens`` known tokens can get its state now.

        Args:
            reserve_blocks: Blocks that have to stay free for the growth of running requests.
        """
        if not self._free_seats or (self.has_slots and self.slots.num_free == 0):
            return False
        if not self.has_paged_state:
            return True
        return blocks_for(num_tokens, self.config.block_size) + reserve_blocks <= self.kv.pool.num_free

    def could_admit(self, num_tokens: int, *, reserve_blocks: int, without: Sequence[SequenceState]) -> bool:
        """Like ``can_admit``, supposing that the requests of ``without`` (at least one) have released theirs."""
        if not without:
            return False
        if not self.has_paged_state:
            return True
        held = sum(int(self.kv.num_blocks_of[state.seat]) for state in without)
        return blocks_for(num_tokens, self.config.block_size) + reserve_blocks <= self.kv.pool.num_free + held

    def admit(self, num_tokens: int) -> SequenceState:
        """Allocate what ``can_admit`` has found free."""
        state = SequenceState(self._free_seats.pop(), self.slots.allocate() if self.has_slots else 0)
        if self.has_paged_state:
            extended = self.kv.extend(state.seat, num_tokens)
            assert extended
        return state

    def extend(self, state: SequenceState, num_tokens: int) -> bool:
        """Make room for the sequence's first ``num_tokens`` tokens; False if too few blocks are free."""
        return not self.has_paged_state or self.kv.extend(state.seat, num_tokens)

    def release(self, state: SequenceState) -> None:
        """Free everything."""
        if self.has_paged_state:
            self.kv.release(state.seat)
        if self.has_slots:
            self.slots.free(state.slot)
        self._free_seats.append(state.seat)
