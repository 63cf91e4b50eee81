"""StateManager: allocate and free the generation state of requests.

A running request has an index (its row in the block tables), blocks for its tokens if the model has paged state, and a
slot if the model has per-sequence state. Slot 0 is scratch. Slots aren't cleared: the layers start a sequence's first
chunk from zero, without reading the slot. Speculation and the prefix cache exchange slots of their own for a running
request's slot, one for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.engine.config import EngineConfig, blocks_for
from inference.engine.state.kv_cache_manager import KVCacheManager
from inference.errors import OutOfCacheBlocks
from inference.modelling.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class SequenceState:
    """Location of one running request's state.

    Attributes:
        index: Row in ``KVCacheManager.block_tables``.
        slot: State slot; 0 (scratch) when the model has no per-sequence state.
    """

    index: int
    slot: int


class StateManager:
    """Blocks, slots and request indices of one engine.

    Args:
        spec: Specification of the model, with its kinds of state.
        config: Numbers of blocks and slots.

    Attributes:
        free_slots: The slots that no request uses.
    """

    def __init__(self, spec: ModelSpec, config: EngineConfig) -> None:
        self.has_paged_state = spec.state_bytes_per_token() > 0
        self.has_slots = spec.state_bytes_per_sequence() > 0
        self._block_size = config.block_size
        for name, is_needed in (("num_blocks", self.has_paged_state), ("num_state_slots", self.has_slots)):
            if is_needed and getattr(config, name) < 2:
                raise OutOfCacheBlocks(f"{name} is 1, the model needs at least 2; raise the state budget.")
        self.kv = KVCacheManager(
            config.num_blocks if self.has_paged_state else 1,
            config.block_size,
            config.max_num_seqs,
            config.max_blocks_per_sequence if self.has_paged_state else 0,
        )
        self.num_slots = config.num_state_slots if self.has_slots else 1
        self.free_slots = list(range(self.num_slots - 1, 0, -1))
        self._free_indices = list(range(config.max_num_seqs - 1, -1, -1))

    def can_admit(
        self,
        num_tokens: int,
        *,
        reserve_blocks: int = 0,
        without: Sequence[SequenceState] = (),
        shared_blocks: Sequence[int] = (),
    ) -> bool:
        """Whether a request with ``num_tokens`` known tokens can get its state now.

        Args:
            reserve_blocks: Further blocks that must stay free.
            without: States that count as released.
            shared_blocks: Blocks that don't become free with ``without``, because the request shares them.
        """
        if not without and not (self._free_indices and (self.free_slots or not self.has_slots)):
            return False
        if not self.has_paged_state:
            return True
        num_free = self.kv.pool.num_free
        if without:
            tables = [self.kv.blocks_of(state.index) for state in without]
            num_free += self.kv.pool.num_freed_by(tables, besides=shared_blocks)
        return blocks_for(num_tokens, self._block_size) + reserve_blocks <= num_free

    def allocate(self) -> SequenceState:
        """Allocate the index and the slot of a request that ``can_admit`` accepts; ``extend`` allocates its blocks."""
        return SequenceState(self._free_indices.pop(), self.free_slots.pop() if self.has_slots else 0)

    def extend(self, state: SequenceState, num_tokens: int) -> bool:
        """Allocate blocks for the sequence's first ``num_tokens`` tokens; False if too few blocks are free."""
        return not self.has_paged_state or self.kv.extend(state.index, num_tokens)

    def release(self, state: SequenceState) -> None:
        """Free a request's state."""
        self.kv.release(state.index)
        if self.has_slots:
            assert state.slot not in self.free_slots, f"state slot {state.slot} is freed twice"
            self.free_slots.append(state.slot)
        self._free_indices.append(state.index)
