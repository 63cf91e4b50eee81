"""StateManager: allocate and free the generation state of requests.

A running request has an index (its row in the block tables), blocks for its tokens if the model has paged state, and a
slot if the model has per-sequence state. The scheduler uses this interface only. ``find`` looks up the cached prefix of
a request, and ``admit`` copies it into the request's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inference.engine.config import EngineConfig, blocks_for
from inference.engine.prefix_cache.cache import CachedSequence, PrefixCache
from inference.engine.prefix_cache.lookup import Fetched, Match
from inference.engine.state.kv_cache_manager import KVCacheManager
from inference.engine.state.state_cache import StateCache
from inference.errors import OutOfCacheBlocks
from inference.modelling.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class SequenceState:
    """Location of one running request's state.

    Attributes:
        index: Row in ``KVCacheManager.block_tables``.
        slot: State slot; 0 (scratch) when the model has no per-sequence state.
        prefix: The sequence's position in the prefix cache.
    """

    index: int
    slot: int
    prefix: CachedSequence = field(default_factory=lambda: CachedSequence(b""), compare=False)


class StateManager:
    """Blocks, slots and request indices of one engine.

    Args:
        spec: Specification of the model, with its kinds of state.
        config: Numbers of blocks and slots.

    Attributes:
        prefix_cache: Set by the engine after the state tensors are allocated; None: no sequence has a cached prefix.
        capacities: Number of tokens that fit into the blocks of each request index; ``extend`` raises it.
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
        self.capacities = self.kv.capacities if self.has_paged_state else [config.max_model_len] * config.max_num_seqs
        self.slots = StateCache(config.num_state_slots if self.has_slots else 1)
        self.prefix_cache: PrefixCache | None = None
        self._free_indices = list(range(config.max_num_seqs - 1, -1, -1))

    @property
    def max_sequence_tokens(self) -> int:
        """Maximum tokens of a sequence that uses all blocks, with its last token, which needs no block."""
        if not self.has_paged_state:
            return self.config.max_model_len
        return (self.config.num_blocks - 1) * self.config.block_size + 1

    def check_fits(self, num_tokens: int) -> None:
        """Raise an error unless a sequence fits when it runs alone.

        Args:
            num_tokens: Maximum number of tokens with computed state.

        Raises:
            OutOfCacheBlocks: The sequence needs more blocks than the engine has.
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

    def find(
        self, namespace: bytes, tokens: Sequence[int], *, fetched: Fetched | None = None, can_read: bool = True
    ) -> Match:
        """Return the cached prefix of a sequence (see ``PrefixCache.find``)."""
        if self.prefix_cache is None:
            return Match()
        return self.prefix_cache.find(namespace, tokens, fetched=fetched, can_read=can_read)

    def can_admit(self, num_tokens: int, *, reserve_blocks: int, match: Match | None = None) -> bool:
        """Whether a request with ``num_tokens`` known tokens can get its state now.

        Args:
            reserve_blocks: Blocks that must stay free for the growth of running requests.
            match: The cached prefix that the request would share.
        """
        if not self._free_indices or (self.has_slots and self.slots.num_free == 0):
            return False
        if not self.has_paged_state:
            return True
        needed = blocks_for(num_tokens, self.config.block_size) + reserve_blocks
        if match is not None and self.prefix_cache is not None:
            needed -= self.prefix_cache.num_shared_in_use(match)
        return needed <= self.kv.pool.num_free

    def could_admit(
        self,
        num_tokens: int,
        *,
        reserve_blocks: int,
        without: Sequence[SequenceState],
        match: Match | None = None,
    ) -> bool:
        """Whether ``can_admit`` would hold after the requests of ``without`` (at least one) released their state."""
        if not without:
            return False
        if not self.has_paged_state:
            return True
        needed = blocks_for(num_tokens, self.config.block_size) + reserve_blocks
        shared: list[int] = []
        if match is not None and self.prefix_cache is not None:
            shared = self.prefix_cache.blocks_of(match)
            needed -= self.prefix_cache.num_shared_in_use(match)
        freed = self.kv.pool.num_freed_by([self.kv.blocks_of(state.index) for state in without], besides=shared)
        return needed <= self.kv.pool.num_free + freed

    def admit(
        self,
        num_tokens: int,
        *,
        match: Match | None = None,
        namespace: bytes = b"",
        tokens: Sequence[int] = (),
        fetched: Fetched | None = None,
    ) -> SequenceState:
        """Allocate the state of a request that ``can_admit`` accepts, and fill in its cached prefix.

        Args:
            match: Result of ``find`` in this step; the sequence's first ``match.num_tokens`` tokens count as computed.
            tokens: Tokens of the sequence.
        """
        index, slot = self._free_indices.pop(), self.slots.allocate() if self.has_slots else 0
        prefix = CachedSequence(namespace)
        if match is not None and self.prefix_cache is not None:
            prefix = self.prefix_cache.begin(match, namespace, index, slot, tokens, fetched)
        if self.has_paged_state:
            extended = self.kv.extend(index, num_tokens)
            assert extended
        return SequenceState(index, slot, prefix)

    def record_found(self, num_cached_tokens: int, match: Match) -> None:
        """Count the cached tokens of a request; call once per request."""
        if self.prefix_cache is not None:
            self.prefix_cache.record_found(num_cached_tokens, match.reason)

    def chunk_stop(self, state: SequenceState, start: int, stop: int, length: int) -> int:
        """Return the end of a prefill chunk, cut for a snapshot if needed (see ``PrefixCache.chunk_stop``)."""
        return stop if self.prefix_cache is None else self.prefix_cache.chunk_stop(state.prefix, start, stop, length)

    @property
    def cache_stride(self) -> int:
        """Decodes must call ``advance`` only at multiples of this number of computed tokens."""
        return 1 if self.prefix_cache is None else self.prefix_cache.decode_stride

    def advance(self, state: SequenceState, tokens: Sequence[int], num_computed: int) -> None:
        """Record that the sequence's first ``num_computed`` tokens are computed."""
        if self.prefix_cache is not None:
            self.prefix_cache.advance(state.prefix, state.index, state.slot, tokens, num_computed)

    def extend(self, state: SequenceState, num_tokens: int) -> bool:
        """Allocate blocks for the sequence's first ``num_tokens`` tokens; False if too few blocks are free."""
        return not self.has_paged_state or self.kv.extend(state.index, num_tokens)

    def release(
        self,
        state: SequenceState,
        *,
        tokens: Sequence[int] = (),
        num_computed: int = 0,
        is_state_valid: bool = True,
        is_sound: bool = True,
    ) -> None:
        """Free a request's state; the prefix cache keeps the computed state until its memory is needed.

        Args:
            tokens: Tokens of the sequence.
            num_computed: Number of tokens with computed state.
            is_state_valid: Whether the slot holds the state after exactly these tokens; False after a failed step.
            is_sound: False: the computed state may be wrong, and the prefix cache drops it.
        """
        slot = state.slot
        if self.prefix_cache is not None:
            if is_sound:
                slot = self.prefix_cache.end(
                    state.prefix, state.index, slot, tokens, num_computed, is_state_valid=is_state_valid
                )
            else:
                self.prefix_cache.forget(state.prefix, state.index)
        if self.has_paged_state:
            self.kv.release(state.index)
        if self.has_slots and slot != state.slot:
            self.slots.exchange(state.slot, slot)
        elif self.has_slots:
            self.slots.free(slot)
        self._free_indices.append(state.index)
