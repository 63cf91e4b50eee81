"""EngineConfig, and how a byte budget becomes blocks and slots.

Block 0 and slot 0 are scratch: no sequence owns them, and both counts include them.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.errors import InvalidRequest, OutOfCacheBlocks
from inference.modelling.spec import DTYPE_BYTES, Dtype, ModelSpec

MAX_BLOCK_SIZE = 1024
SNAPSHOT_SHARE = 0.4
"""Most of the memory beyond one sequence's that snapshots get."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and limits of one engine.

    Attributes:
        max_model_len: Most tokens of one sequence, prompt and output together.
        num_blocks: Blocks of paged state, the scratch block included; at least 2 if the model has paged state.
        num_state_slots: Slots of per-sequence state, the scratch slot included; at least 2 if the model has any.
        block_size: Tokens in one block, 1 to 1024.
        max_num_seqs: Most requests that are computed in one step.
        max_num_batched_tokens: Most tokens that are computed in one step, at least ``max_num_seqs``. More makes
            prefill faster and each step, so the gap between two tokens of a stream, longer.
        device: Where states and network live: ``cpu``, ``cuda:0``, …
        dtype: dtype of the states that follow the model.
        invalid_token_ids: Ids below vocab_size that no token of the vocabulary has; they are never sampled.
        prefix_cache: Keep the state of what was computed, for requests that begin alike.
        num_snapshot_slots: State slots for snapshots of recurrent state, beyond ``num_state_slots``. Without any, a
            model with recurrent state has no prefix cache.
        num_spare_slots: State slots beyond these, for the states of requests whose draft tokens are verified.
        snapshot_host_bytes: Host memory for snapshots that had to leave their slots; for slots on a device.
        logprobs_slice_bytes: Most bytes of float32 logits that exist at once while prompt tokens are scored.
        replay_decodes: Record steps that only decode and run them without Python, where the network allows it.
    """

    max_model_len: int
    num_blocks: int
    num_state_slots: int
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    device: str = "cpu"
    dtype: Dtype = "float32"
    invalid_token_ids: tuple[int, ...] = ()
    prefix_cache: bool = True
    num_snapshot_slots: int = 0
    num_spare_slots: int = 0
    snapshot_host_bytes: int = 0
    logprobs_slice_bytes: int = 32 << 20
    replay_decodes: bool = True

    def __post_init__(self) -> None:
        for name in (
            "max_model_len",
            "num_blocks",
            "num_state_slots",
            "block_size",
            "max_num_seqs",
            "max_num_batched_tokens",
            "logprobs_slice_bytes",
        ):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, it must be at least 1.", param=name)
        for name in ("num_snapshot_slots", "num_spare_slots", "snapshot_host_bytes"):
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

    @property
    def max_blocks_per_sequence(self) -> int:
        """Blocks of a sequence of ``max_model_len`` tokens."""
        return blocks_for(self.max_model_len, self.block_size)


@dataclass(frozen=True, slots=True)
class StatePlan:
    """How a byte budget is spent.

    Attributes:
        num_blocks, num_state_slots: For ``EngineConfig``, scratch included.
        block_size: Tokens in one block.
        block_bytes: Bytes of one block, all layers.
        slot_bytes: Bytes of one slot, all layers.
        budget_bytes: What was allowed.
        max_model_len: What was planned for.
        num_snapshot_slots, num_spare_slots: For ``EngineConfig``.
    """

    num_blocks: int
    num_state_slots: int
    block_size: int
    block_bytes: int
    slot_bytes: int
    budget_bytes: int
    max_model_len: int
    num_snapshot_slots: int = 0
    num_spare_slots: int = 0

    @property
    def total_bytes(self) -> int:
        """Bytes that the states take."""
        slots = self.num_state_slots + self.num_snapshot_slots + self.num_spare_slots
        return self.num_blocks * self.block_bytes + slots * self.slot_bytes

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of them that snapshots of the prefix cache take."""
        return self.num_snapshot_slots * self.slot_bytes

    @property
    def max_cached_tokens(self) -> int | None:
        """Tokens of all running sequences together that the blocks hold; None: the model has no paged state."""
        return (self.num_blocks - 1) * self.block_size if self.block_bytes else None

    @property
    def max_running(self) -> int:
        """Requests that can run at the same time, as far as slots allow."""
        return self.num_state_slots - 1

    def describe(self) -> str:
        """One sentence for people."""
        parts = []
        if self.block_bytes:
            parts.append(
                f"{self.max_cached_tokens:,} tokens of paged state in {self.num_blocks - 1:,} blocks of "
                f"{self.block_size} ({_bytes(self.num_blocks * self.block_bytes)})"
            )
        if self.slot_bytes:
            parts.append(f"{self.max_running} state slots ({_bytes(self.num_state_slots * self.slot_bytes)})")
        if self.num_spare_slots:
            parts.append(
                f"{self.num_spare_slots} spare slots for speculation ({_bytes(self.num_spare_slots * self.slot_bytes)})"
            )
        if self.num_snapshot_slots:
            parts.append(f"{self.num_snapshot_slots} snapshots of the prefix cache ({_bytes(self.snapshot_bytes)})")
        return " and ".join(parts) if parts else "no state"


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that ``num_tokens`` tokens fill."""
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
) -> StatePlan:
    """Divide a byte budget into paged blocks, state slots and snapshots of the prefix cache.

    One sequence of ``max_model_len`` tokens always fits, so every admitted request can end. Beyond that, slots
    get up to half of the rest (a slot is worth nothing without blocks), blocks the remainder, and neither more than
    ``max_num_seqs`` sequences of full length could use. Before both, snapshots get ``snapshot_share`` of the rest at
    most. Blocks need no share for the prefix cache: those that no sequence uses serve it.

    Args:
        dtype: dtype of the states that follow the model.
        budget_bytes: For blocks and slots of all layers together.
        max_num_seqs: Requests that shall run at the same time, if the budget allows.
        max_snapshots: Snapshots of recurrent state that are wanted, if the budget allows.
        snapshot_share: Of the memory beyond one sequence's, what they get at most.
        max_spare_slots: Spare slots for speculation that are wanted; it gets at least one, and at most an eighth of
            what one sequence leaves.

    Raises:
        OutOfCacheBlocks: The budget doesn't hold one sequence of ``max_model_len`` tokens.
    """
    block_bytes = spec.state_bytes_per_token(dtype) * block_size
    slot_bytes = spec.state_bytes_per_sequence(dtype)
    blocks_each = blocks_for(max_model_len, block_size)
    least_spare = 1 if max_spare_slots and slot_bytes else 0
    needed = (blocks_each + 1) * block_bytes + (2 + least_spare) * slot_bytes
    if needed > budget_bytes:
        fixed = (2 + least_spare) * slot_bytes
        raise OutOfCacheBlocks(_too_small(needed, budget_bytes, block_bytes, fixed, block_size, max_model_len))

    spare = budget_bytes - needed
    spare_slots = least_spare
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
        block_bytes=block_bytes,
        slot_bytes=slot_bytes,
        budget_bytes=budget_bytes,
        max_model_len=max_model_len,
        num_snapshot_slots=snapshots,
        num_spare_slots=spare_slots,
    )


def _divide(spare: int, block_bytes: int, slot_bytes: int, most_blocks: int, most_slots: int) -> tuple[int, int]:
    """Blocks and slots for the bytes beyond the first sequence's, at most so many of each."""
    if slot_bytes:
        share = spare // 2 if block_bytes else spare
        # What blocks can't use goes to slots.
        share = max(share, spare - most_blocks * block_bytes)
        most_slots = min(most_slots, share // slot_bytes)
        spare -= most_slots * slot_bytes
    if block_bytes:
        most_blocks = min(most_blocks, spare // block_bytes)
    return most_blocks, most_slots


def _too_small(needed: int, budget: int, block_bytes: int, fixed: int, block_size: int, max_model_len: int) -> str:
    message = (
        f"one sequence of {max_model_len:,} tokens needs {needed:,} bytes ({_bytes(needed)}) of state, the budget is "
        f"{budget:,} ({_bytes(budget)}); raise the budget"
    )
    room = budget - fixed
    longest = (room // block_bytes - 1) * block_size if block_bytes else 0
    if longest > 0:
        return f"{message} or lower max_model_len to {longest:,}."
    return f"{message}."


def _bytes(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
