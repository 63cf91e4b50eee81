"""Plan the memory of a model before it is loaded."""

from __future__ import annotations

import torch

from inference.engine.config import SNAPSHOT_SHARE, StatePlan, blocks_for, plan_state_budget
from inference.errors import InvalidRequest
from inference.host.machine import available_memory_bytes
from inference.llm.draft_loading import DraftCheckpoint, plan_draft, prediction_head_of
from inference.llm.loading import choose_dtype, choose_state_dtype
from inference.llm.options import LLMOptions
from inference.modelling.quantisation import weights_bytes
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import DTYPE_BYTES, Dtype

CACHE_SHARE = {"cpu": 0.25, "cuda": 0.95}
"""States get at most this share of the memory that is free once the weights are there, if nothing else is said."""


CUDA_SHARE = 0.9
"""Of a CUDA device's free memory, what models get; the rest is for a step's results, captured decodes, libraries."""


SNAPSHOT_BYTES = 1 << 30
"""Snapshots of recurrent state get at most this much, and ``MAX_SNAPSHOTS``, if nothing else is said."""


MAX_SNAPSHOTS = 256


def plan_states(spec: ModelSpec, options: LLMOptions) -> StatePlan:
    """How the memory of the states is going to be divided.

    Raises:
        InvalidRequest: The length is more than the model's learned positions.
        InvalidRequest: The head for multi-token prediction is asked for, and there is none.
        OutOfCacheBlocks: It is too small for one sequence of the length that was asked for.
    """
    dtype, head = choose_dtype(spec, options), prediction_head_of(spec, options)
    length = options.max_model_len or spec.max_position_embeddings
    if spec.position_rows and length > spec.position_rows:
        raise InvalidRequest(
            f"max_model_len is {length}, but the model has {spec.position_rows} learned positions; set it to "
            f"{spec.position_rows} or less.",
            param="max_model_len",
        )
    token_bytes, sequence_bytes = _bytes_per_token(spec, options), _bytes_per_sequence(spec, options)
    max_snapshots, snapshot_share = _max_snapshots(options, sequence_bytes)
    max_spare_slots = _max_spare_slots(options)
    budget = options.cache_bytes
    if budget is None:
        requested = full_states_bytes(spec, options, length)
        taken = _weights_bytes(spec, options) + (options.adapter_bytes or 0)
        free = max(memory_for_model(options) - taken, 0)
        budget = min(requested, int(CACHE_SHARE[options.device_kind] * free))
    if options.max_model_len is None and token_bytes:
        # A model's own context may be far more than this memory holds; then the context is what fits.
        least_slots = 3 if max_spare_slots else 2
        blocks = (budget - least_slots * sequence_bytes) // (token_bytes * options.block_size) - 1
        length = max(min(length, blocks * options.block_size), 1)
    return plan_state_budget(
        spec,
        dtype=dtype,
        budget_bytes=budget,
        max_num_seqs=options.max_num_seqs,
        max_model_len=length,
        block_size=options.block_size,
        max_snapshots=max_snapshots,
        snapshot_share=snapshot_share,
        max_spare_slots=max_spare_slots,
        head=head,
        state_dtype=choose_state_dtype(spec, options),
    )


def full_states_bytes(spec: ModelSpec, options: LLMOptions, max_model_len: int) -> int:
    """Bytes of states that hold ``max_num_seqs`` sequences of a length, with all snapshots and spare slots."""
    sequence_bytes = _bytes_per_sequence(spec, options)
    blocks = options.max_num_seqs * blocks_for(max_model_len, options.block_size) + 1
    slots = options.max_num_seqs + 1 + _max_snapshots(options, sequence_bytes)[0] + _max_spare_slots(options)
    return blocks * options.block_size * _bytes_per_token(spec, options) + slots * sequence_bytes


def _max_spare_slots(options: LLMOptions) -> int:
    """Slots beside those of sequences, for speculation."""
    return 0 if options.speculative is None else options.speculative.max_num_seqs


def _bytes_per_token(spec: ModelSpec, options: LLMOptions) -> int:
    """Bytes of paged state of a token, those of the head for multi-token prediction included if it is used."""
    dtype, head = choose_dtype(spec, options), prediction_head_of(spec, options)
    return spec.state_bytes_per_token(dtype) + (0 if head is None else head.state_bytes_per_token(dtype))


def _bytes_per_sequence(spec: ModelSpec, options: LLMOptions) -> int:
    """Bytes of a sequence's recurrent state."""
    return spec.state_bytes_per_sequence(choose_dtype(spec, options), choose_state_dtype(spec, options))


def _weights_bytes(spec: ModelSpec, options: LLMOptions) -> int:
    """Bytes of the weights, those of the head for multi-token prediction included if it is used."""
    dtype, head = choose_dtype(spec, options), prediction_head_of(spec, options)
    own = weights_bytes(spec, dtype, options.quant) + vision_bytes(spec, dtype)
    return own if head is None else own + weights_bytes(head, dtype, options.quant)


def vision_bytes(spec: ModelSpec, dtype: Dtype) -> int:
    """Bytes of the part that reads pictures, which no option quantises."""
    return 0 if spec.vision is None else spec.vision.num_parameters() * DTYPE_BYTES[dtype]


def _max_snapshots(options: LLMOptions, slot_bytes: int) -> tuple[int, float]:
    """How many snapshots, and which share of the memory beyond one sequence's they may take for that."""
    if not options.prefix_cache or not slot_bytes:
        return 0, 0.0
    if options.snapshot_bytes is not None:
        return options.snapshot_bytes // slot_bytes, 1.0
    return min(MAX_SNAPSHOTS, SNAPSHOT_BYTES // slot_bytes), SNAPSHOT_SHARE


def needed_bytes(spec: ModelSpec, options: LLMOptions, draft: DraftCheckpoint | None = None) -> int:
    """Bytes of weights, states and the adapters' budget, the draft model's included, after a load with these options.

    Raises:
        OutOfCacheBlocks: As ``plan_states``.
    """
    weights = _weights_bytes(spec, options)
    plan = plan_states(spec, options)
    if draft is not None and options.speculative is not None:
        dtype = choose_dtype(draft.spec, options)
        weights += weights_bytes(draft.spec, dtype, options.quant)
        weights += plan_draft(draft, dtype, options, plan).total_bytes
    return weights + plan.total_bytes + (options.adapter_bytes or 0 if options.max_adapters else 0)


def load_sizes(spec: ModelSpec, options: LLMOptions) -> dict[str, int]:
    """What a load with these options is made of, without a draft model: bytes, and how many sequences they hold.

    Of ``states_bytes``, ``cache_bytes`` are paged blocks, ``slots_bytes`` states per sequence and ``snapshots_bytes``
    copies of them for the prefix cache; ``full_states_bytes`` would hold all sequences.

    Raises:
        OutOfCacheBlocks: As ``plan_states``.
    """
    plan = plan_states(spec, options)
    blocks_each = blocks_for(plan.max_model_len, plan.block_size)
    by_blocks = (
        (plan.num_blocks - 1) // blocks_each if plan.block_bytes or plan.head_block_bytes else options.max_num_seqs
    )
    by_slots = plan.num_state_slots - 1 if plan.slot_bytes else options.max_num_seqs
    return {
        "weights_bytes": _weights_bytes(spec, options),
        "states_bytes": plan.total_bytes,
        "cache_bytes": plan.num_blocks * (plan.block_bytes + plan.head_block_bytes),
        "slots_bytes": (plan.num_state_slots + plan.num_spare_slots) * plan.slot_bytes,
        "snapshots_bytes": plan.snapshot_bytes,
        "full_states_bytes": full_states_bytes(spec, options, plan.max_model_len),
        "bytes_per_token": _bytes_per_token(spec, options),
        "bytes_per_sequence": _bytes_per_sequence(spec, options),
        "max_model_len": plan.max_model_len,
        "full_sequences": min(by_blocks, by_slots, options.max_num_seqs),
    }


def memory_for_model(options: LLMOptions) -> int:
    """Memory for weights and states, before ``CACHE_SHARE``."""
    if options.device_kind != "cuda":
        return free_memory_bytes(options.device)
    return options.memory_bytes or int(CUDA_SHARE * free_memory_bytes(options.device))


def free_memory_bytes(device: str) -> int:
    """Bytes that a device has free: of a CPU, what this process's control group could get without swapping."""
    if torch.device(device).type == "cuda":
        free: int = torch.cuda.mem_get_info(torch.device(device))[0]
        return free
    return available_memory_bytes()
