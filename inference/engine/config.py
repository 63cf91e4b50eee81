"""Define the engine's sizes and limits, and divide a byte budget into blocks and slots.

Block 0 and slot 0 are scratch: no sequence owns them, and both counts include them.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.errors import InvalidRequest, OutOfCacheBlocks
from inference.host.units import format_bytes
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import DTYPE_BYTES, STATE_DTYPES, Dtype, StateDtype

MAX_BLOCK_SIZE = 1024
SNAPSHOT_SHARE = 0.4
"""Largest share for snapshots of the memory that remains beside one sequence."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and limits of one engine.

    Attributes:
        max_model_len: Maximum tokens of one sequence, prompt and output together.
        num_blocks: Blocks of paged state, the scratch block included; at least 2 if the model has paged state.
        num_state_slots: Slots of per-sequence state, the scratch slot included; at least 2 if the model has such state.
        block_size: Tokens in one block, 1 to 1024.
        max_num_seqs: Maximum requests that are computed in one step.
        max_num_batched_tokens: Maximum tokens that are computed in one step, at least ``max_num_seqs``. A higher value
            makes prefill faster, and each step (the gap between two tokens of a stream) longer.
        device: Device of states and network: ``cpu``, ``cuda:0``, …
        dtype: dtype of the states that have the model's dtype.
        state_dtype: dtype in which recurrent states are stored; they are computed in float32.
        invalid_token_ids: Ids below vocab_size that no token of the vocabulary has; they are never sampled.
        prefix_cache: Keep computed state for requests with the same prefix.
        num_snapshot_slots: State slots for snapshots of recurrent state, beyond ``num_state_slots``. With 0, a model
            with recurrent state has no prefix cache.
        num_spare_slots: State slots beyond these, for the states of requests whose draft tokens are verified.
        snapshot_host_bytes: Host memory for snapshots that were evicted from their slots on a device.
        max_adapters: Maximum LoRA adapters that are resident at once.
        adapter_bytes: Memory for resident adapters; None: only their number is limited.
    """

    max_model_len: int
    num_blocks: int
    num_state_slots: int
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    device: str = "cpu"
    dtype: Dtype = "float32"
    state_dtype: StateDtype = "float32"
    invalid_token_ids: tuple[int, ...] = ()
    prefix_cache: bool = True
    num_snapshot_slots: int = 0
    num_spare_slots: int = 0
    snapshot_host_bytes: int = 0
    max_adapters: int = 0
    adapter_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in (
            "max_model_len",
            "num_blocks",
            "num_state_slots",
            "block_size",
            "max_num_seqs",
            "max_num_batched_tokens",
        ):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, it must be at least 1.", param=name)
        for name in ("num_snapshot_slots", "num_spare_slots", "snapshot_host_bytes", "max_adapters"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, it must be at least 0.", param=name)
        if self.block_size > MAX_BLOCK_SIZE:
            raise InvalidRequest(f"block_size is {self.block_size}, it must be at most {MAX_BLOCK_SIZE}.")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidRequest(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, it must be at least max_num_seqs "
                f"({self.max_num_seqs}), so that every running request can decode in one step.",
                param="max_num_batched_tokens",
            )
        if self.dtype not in DTYPE_BYTES:
            raise InvalidRequest(f"dtype is {self.dtype!r}, it must be one of {', '.join(DTYPE_BYTES)}.", param="dtype")
        if self.state_dtype not in STATE_DTYPES:
            raise InvalidRequest(
                f"state_dtype is {self.state_dtype!r}, it must be one of {', '.join(STATE_DTYPES)}.",
                param="state_dtype",
            )

    @property
    def max_blocks_per_sequence(self) -> int:
        """Blocks of a sequence of ``max_model_len`` tokens."""
        return blocks_for(self.max_model_len, self.block_size)


@dataclass(frozen=True, slots=True)
class StatePlan:
    """The division of a byte budget into blocks and slots.

    Attributes:
        num_blocks, num_state_slots: For ``EngineConfig``, scratch included.
        block_size: Tokens in one block.
        block_bytes: Bytes of one block, all layers.
        slot_bytes: Bytes of one slot, all layers.
        max_model_len: Maximum tokens of one sequence.
        num_snapshot_slots, num_spare_slots: For ``EngineConfig``.
        head_block_bytes: Bytes of one block of the head for multi-token prediction, which has as many blocks; 0:
            it isn't used.
    """

    num_blocks: int
    num_state_slots: int
    block_size: int
    block_bytes: int
    slot_bytes: int
    max_model_len: int
    num_snapshot_slots: int = 0
    num_spare_slots: int = 0
    head_block_bytes: int = 0

    @property
    def token_bytes(self) -> int:
        """Bytes of paged state of one token, all layers."""
        return self.block_bytes // self.block_size

    @property
    def total_bytes(self) -> int:
        """Bytes that the states take."""
        slots = self.num_state_slots + self.num_snapshot_slots + self.num_spare_slots
        return self.num_blocks * (self.block_bytes + self.head_block_bytes) + slots * self.slot_bytes

    @property
    def snapshot_bytes(self) -> int:
        """Bytes that snapshots of the prefix cache take."""
        return self.num_snapshot_slots * self.slot_bytes


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Return the number of blocks for ``num_tokens`` tokens."""
    return -(-num_tokens // block_size)


def plan_state_budget(
    spec: ModelSpec,
    *,
    dtype: Dtype,
    budget_bytes: int,
    max_num_seqs: int,
    max_model_len: int,
    block_size: int = 16,
    max_snapshots: int = 0,
    snapshot_share: float = SNAPSHOT_SHARE,
    max_spare_slots: int = 0,
    head: ModelSpec | None = None,
    state_dtype: StateDtype = "float32",
) -> StatePlan:
    """Divide a byte budget into paged blocks, state slots and snapshots of the prefix cache.

    One sequence of ``max_model_len`` tokens always fits, so that every admitted request can end. The rest is divided
    in this order: spare slots for speculation get up to an eighth, snapshots up to ``snapshot_share`` of the remainder,
    state slots up to half of the remainder, blocks everything else. Slots and blocks get no more than ``max_num_seqs``
    sequences of full length can use. The prefix cache needs no blocks of its own: it keeps state in unused blocks.

    Args:
        dtype, state_dtype: dtype of the states that have the model's dtype, and that of recurrent states.
        budget_bytes: Budget for blocks and slots of all layers together.
        max_num_seqs: Maximum requests that run at the same time.
        max_snapshots: Maximum snapshots of recurrent state.
        snapshot_share: Largest share for snapshots of the memory that remains beside one sequence.
        max_spare_slots: Maximum spare slots for speculation; if it isn't 0, a model with slots gets at least one.
        head: The model's head for multi-token prediction, if it drafts; it has a block for each of the model's.

    Raises:
        OutOfCacheBlocks: The budget doesn't hold one sequence of ``max_model_len`` tokens.
    """
    own_bytes = spec.state_bytes_per_token(dtype) * block_size
    slot_bytes = spec.state_bytes_per_sequence(dtype, state_dtype)
    block_bytes = own_bytes + (head_bytes := 0 if head is None else head.state_bytes_per_token(dtype) * block_size)
    blocks_each = blocks_for(max_model_len, block_size)
    least_spare = 1 if max_spare_slots and slot_bytes else 0
    needed = (blocks_each + 1) * block_bytes + (fixed := (2 + least_spare) * slot_bytes)
    if needed > budget_bytes:
        raise _too_small(needed, budget_bytes, block_bytes, fixed, block_size, max_model_len)
    spare, spare_slots = budget_bytes - needed, least_spare
    if least_spare:
        spare_slots += min(max_spare_slots - 1, spare // 8 // slot_bytes)
        spare -= (spare_slots - 1) * slot_bytes
    snapshots = min(max_snapshots, int(snapshot_share * spare) // slot_bytes) if slot_bytes else 0
    spare -= snapshots * slot_bytes
    most_blocks = (max_num_seqs - 1) * blocks_each if block_bytes else 0
    more_blocks, more_slots = _divide(spare, block_bytes, slot_bytes, most_blocks, max_num_seqs - 1)
    return StatePlan(
        num_blocks=1 + blocks_each + more_blocks if block_bytes else 1,
        num_state_slots=2 + more_slots,
        block_size=block_size,
        block_bytes=own_bytes,
        slot_bytes=slot_bytes,
        max_model_len=max_model_len,
        num_snapshot_slots=snapshots,
        num_spare_slots=spare_slots,
        head_block_bytes=head_bytes,
    )


def _divide(spare: int, block_bytes: int, slot_bytes: int, most_blocks: int, most_slots: int) -> tuple[int, int]:
    """Return the numbers of blocks and slots for ``spare`` bytes, up to ``most_blocks`` and ``most_slots``."""
    if slot_bytes:
        share = spare // 2 if block_bytes else spare
        # Slots get the bytes that blocks can't use.
        share = max(share, spare - most_blocks * block_bytes)
        most_slots = min(most_slots, share // slot_bytes)
        spare -= most_slots * slot_bytes
    if block_bytes:
        most_blocks = min(most_blocks, spare // block_bytes)
    return most_blocks, most_slots


def _too_small(
    needed: int, budget: int, block_bytes: int, fixed: int, block_size: int, max_model_len: int
) -> OutOfCacheBlocks:
    message = (
        f"one sequence of {max_model_len:,} tokens needs {needed:,} bytes ({format_bytes(needed)}) of state, "
        f"the budget is {budget:,} ({format_bytes(budget)}); raise the budget"
    )
    block_budget = budget - fixed
    longest = (block_budget // block_bytes - 1) * block_size if block_bytes else 0
    error = OutOfCacheBlocks(f"{message} or lower max_model_len to {longest:,}." if longest > 0 else f"{message}.")
    error.needed_bytes, error.budget_bytes = needed, budget
    return error
