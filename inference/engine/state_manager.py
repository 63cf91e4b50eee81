"""StateManager: all generation state of requests behind one interface.

A running request has an index (its row in the block tables), blocks for its tokens where the model has paged
state, and a slot where it has per-sequence state. The scheduler asks here and nowhere else; what a request can start
from is found by ``find`` and put in place by ``admit``.
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
    """Where one running request's state is.

    Attributes:
        index: Row in ``KVCacheManager.block_tables``.
        slot: State slot; 0 (scratch) when the model has no per-sequence state.
        prefix: Its place in the prefix cache.
    """

    index: int
    slot: int
    prefix: CachedSequence = field(default_factory=lambda: CachedSequence(b""), compare=False)


class StateManager:
    """Blocks, slots and request indices of one engine.

    Args:
        spec: Says which kinds of state there are.
        config: Says how much of each.

    Attributes:
        prefix_cache: Set by the engine once the state tensors exist; None: every sequence starts from nothing.
        capacities: Tokens for which the request of each index has blocks; ``extend`` is needed beyond that.
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

    def find(
        self, namespace: bytes, tokens: Sequence[int], *, fetched: Fetched | None = None, may_read: bool = True
    ) -> Match:
        """What the prefix cache has of a sequence; see there."""
        if self.prefix_cache is None:
            return Match()
        return self.prefix_cache.find(namespace, tokens, fetched=fetched, may_read=may_read)

    def can_admit(self, num_tokens: int, *, reserve_blocks: int, match: Match | None = None) -> bool:
        """Whether a request with ``num_tokens`` known tokens can get its state now.

        Args:
            reserve_blocks: Blocks that have to stay free for the growth of running requests.
            match: What it would share.
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
        """Like ``can_admit``, supposing that the requests of ``without`` (at least one) have released theirs."""
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
        """Allocate what ``can_admit`` has found free, and put what the prefix cache has into it.

        Args:
            match: Of ``find`` just now; the sequence's first ``match.num_tokens`` tokens count as computed.
            tokens: The sequence's.
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
        """Count what a request was spared; once for each request."""
        if self.prefix_cache is not None:
            self.prefix_cache.note_found(num_cached_tokens, match.reason)

    def chunk_stop(self, state: SequenceState, start: int, stop: int, length: int) -> int:
        """Where a chunk of prefill has to end, for the sake of a snapshot; see ``PrefixCache``."""
        return stop if self.prefix_cache is None else self.prefix_cache.chunk_stop(state.prefix, start, stop, length)

    @property
    def cache_stride(self) -> int:
        """``advance`` has nothing to do after a step of decodes unless this divides ``num_computed``."""
        return 1 if self.prefix_cache is None else self.prefix_cache.decode_stride

    def advance(self, state: SequenceState, tokens: Sequence[int], num_computed: int) -> None:
        """A step has computed the sequence's first ``num_computed`` tokens."""
        if self.prefix_cache is not None:
            self.prefix_cache.advance(state.prefix, state.index, state.slot, tokens, num_computed)

    def extend(self, state: SequenceState, num_tokens: int) -> bool:
        """Make room for the sequence's first ``num_tokens`` tokens; False if too few blocks are free."""
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
        """Free everything; what was computed stays in the prefix cache as long as nobody needs the room.

        Args:
            tokens: The sequence's.
            num_computed: Of these, how many have their state.
            is_state_valid: Whether the slot holds the state after just these; not after a step that broke off.
            is_sound: False: the numbers are suspect; nobody shall get them.
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
