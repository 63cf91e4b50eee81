"""Load what drafts tokens for a model: a draft model with the same vocabulary, or the model's own head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from inference.engine.config import StatePlan, blocks_for, plan_state_budget
from inference.engine.model_runner import TORCH_DTYPES
from inference.engine.speculation.draft_runner import DraftModel
from inference.engine.speculation.setup import Speculation
from inference.errors import InvalidRequest
from inference.llm.loading import choose_dtype, choose_state_dtype, engine_config
from inference.llm.options import LLMOptions
from inference.modelling.backends.backend import pack_weights
from inference.modelling.layers.linear import network_bytes
from inference.modelling.spec import ModelSpec, PredictionHeadSpec
from inference.modelling.specs.parts import Dtype
from inference.modelling.weights.loader import load_network, load_prediction_head
from inference.text.tokenisation.tokenizer import Tokenizer, load_tokenizer
from inference.values.tokenizer_spec import TokenizerSpec

if TYPE_CHECKING:
    import torch

STATES_SHARE = 0.25
"""Memory of the draft model's states, on top of the model's own and as a share of it; at least one sequence's."""


@dataclass(frozen=True, slots=True)
class DraftCheckpoint:
    """What inspection found of the draft model.

    Attributes:
        spec, tokenizer, weight_paths: As ``LLM.load`` takes them.
    """

    name: str
    spec: ModelSpec
    tokenizer: TokenizerSpec
    weight_paths: Sequence[Path]


def plan_draft(draft: DraftCheckpoint, dtype: Dtype, options: LLMOptions, plan: StatePlan) -> StatePlan:
    """How the memory of the draft model's states is divided.

    Args:
        options: How the model is run that it drafts for; its states are stored in the same dtype.
    """
    assert options.speculative is not None
    max_num_seqs, state_dtype = options.speculative.max_num_seqs, choose_state_dtype(draft.spec, options)
    length = min(plan.max_model_len, draft.spec.max_position_embeddings or plan.max_model_len)
    token_bytes = draft.spec.state_bytes_per_token(dtype)
    slot_bytes = draft.spec.state_bytes_per_sequence(dtype, state_dtype)
    least = (blocks_for(length, plan.block_size) + 1) * plan.block_size * token_bytes + 3 * slot_bytes
    return plan_state_budget(
        draft.spec,
        dtype=dtype,
        budget_bytes=max(least, int(STATES_SHARE * plan.total_bytes)),
        max_num_seqs=max_num_seqs,
        max_model_len=length,
        block_size=plan.block_size,
        max_spare_slots=max_num_seqs,
        state_dtype=state_dtype,
    )


def prediction_head_of(spec: ModelSpec, options: LLMOptions) -> PredictionHeadSpec | None:
    """The model's head for multi-token prediction, if the options ask for it.

    Raises:
        InvalidRequest: They do, and the checkpoint has none.
    """
    if options.speculative is None or options.speculative.method != "mtp":
        return None
    if spec.prediction_head is None:
        raise InvalidRequest(
            f"speculative is mtp, but this checkpoint ({spec.model_type}) has no head for multi-token prediction that "
            "is read (docs/families.md says which families have one); set speculative to ngram, to draft:MODEL or off "
            "for this model, or inspect the checkpoint again if it was registered before heads were read.",
            param="speculative",
        )
    return spec.prediction_head


def load_speculation(
    options: LLMOptions,
    draft: DraftCheckpoint | None,
    tokenizer: Tokenizer,
    plan: StatePlan,
    spec: ModelSpec,
    weight_files: Sequence[Path],
    dtype: Dtype,
) -> Speculation | None:
    """Prepare speculative decoding, with the draft model or the head if there is one; None where the options have none.

    Args:
        options: How the model is run.
        draft: The draft model, if ``options.speculative`` names one.
        plan: Of that model's states.
        spec, weight_files, dtype: The model's, for its head.

    Raises:
        InvalidRequest: The draft model's vocabulary is another one, or there is no head.
        CheckpointError: A file is broken.
    """
    if options.speculative is None:
        return None
    head = prediction_head_of(spec, options)
    if head is not None:
        loaded = load_prediction_head(
            head,
            weight_files,
            dtype=TORCH_DTYPES[dtype],
            device=options.device,
            quant=options.quant,
            pack=True,
        )
        pack_weights(loaded)
        return Speculation(options.speculative, head=loaded)
    if draft is None:
        return Speculation(options.speculative)
    model = load_draft(draft, tokenizer, options, plan, choose_dtype(draft.spec, options))
    return Speculation(options.speculative, model)


def draft_bytes(speculation: Speculation | None) -> int:
    """Bytes of the draft model's weights, or of the head's."""
    if speculation is None:
        return 0
    network = speculation.head if speculation.draft is None else speculation.draft.network
    return 0 if network is None else network_bytes(cast("torch.nn.Module", network))


def load_draft(
    draft: DraftCheckpoint,
    tokenizer: Tokenizer,
    options: LLMOptions,
    plan: StatePlan,
    dtype: Dtype,
) -> DraftModel:
    """Load the draft model.

    Args:
        options: How that model is run, with ``speculative``.
        plan: Of that model's states.
        dtype: To compute the draft model in.

    Raises:
        InvalidRequest: Its vocabulary is another one.
        CheckpointError: A file is broken.
    """
    own = load_tokenizer(draft.tokenizer)
    try:
        check_same_vocabulary(draft.name, tokenizer, own)
    finally:
        own.close()
    assert options.speculative is not None
    network = load_network(
        draft.spec, draft.weight_paths, dtype=TORCH_DTYPES[dtype], device=options.device, quant=options.quant
    )
    pack_weights(network)
    own_plan = plan_draft(draft, dtype, options, plan)
    num_seqs = min(options.speculative.max_num_seqs, own_plan.num_state_slots - 1)
    if own_plan.slot_bytes:
        num_seqs = min(num_seqs, own_plan.num_spare_slots)
    invalid = {*tokenizer.invalid_token_ids, *range(tokenizer.vocab_size, draft.spec.vocab_size)}
    own_options = replace(options, max_num_seqs=num_seqs, prefix_cache=False, snapshot_host_bytes=0)
    invalid_ids = sorted(token for token in invalid if token < draft.spec.vocab_size)
    config = engine_config(draft.spec, own_plan, own_options, dtype, invalid_ids)
    return DraftModel(network, draft.spec, config)


def check_same_vocabulary(name: str, tokenizer: Tokenizer, other: Tokenizer) -> None:
    """Refuse a draft model whose ids mean something else.

    Raises:
        InvalidRequest: With the first id that differs.
    """
    if tokenizer.has_text != other.has_text or (not tokenizer.has_text and tokenizer.vocab_size != other.vocab_size):
        raise InvalidRequest(
            f"the draft model {name!r} has another vocabulary ({other.vocab_size:,} ids, the model has "
            f"{tokenizer.vocab_size:,}); choose one of the same family.",
            param="speculative",
        )
    for token_id in range(max(tokenizer.vocab_size, other.vocab_size)):
        if _meaning(tokenizer, token_id) != _meaning(other, token_id):
            raise InvalidRequest(
                f"the draft model {name!r} has another vocabulary (the token id {token_id} differs); "
                "choose one of the same family.",
                param="speculative",
            )


def _meaning(tokenizer: Tokenizer, token_id: int) -> bytes | None:
    """Bytes of a token; None: no token. Tables may be longer than the vocabulary."""
    if token_id >= tokenizer.vocab_size or tokenizer.is_missing(token_id) or not tokenizer.has_text:
        return None
    return tokenizer.token_bytes(token_id)
