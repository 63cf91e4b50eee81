"""The draft model's load: its states, and the vocabulary that it must share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference.errors import InvalidRequest
from inference.llm.draft_loading import STATES_SHARE, DraftCheckpoint, check_same_vocabulary, load_draft, plan_draft
from inference.llm.sizes import plan_states
from inference.text.tokenisation.tokenizer import load_tokenizer
from inference.values.speculative_options import SpeculativeOptions
from inference.values.tokenizer_spec import TokenizerSpec
from tests.inference.llm.harness import OPTIONS, Checkpoint

SPECULATIVE = SpeculativeOptions.parse("draft:small,k=2")


def draft_of(found: Checkpoint) -> DraftCheckpoint:
    return DraftCheckpoint("small", found.spec, found.tokenizer, found.files)


def test_states_of_the_draft_model_are_a_share_of_the_models_own(checkpoint: Checkpoint) -> None:
    options = replace(OPTIONS, max_num_seqs=64, speculative=SPECULATIVE)
    plan = plan_states(checkpoint.spec, options)
    own = plan_draft(draft_of(checkpoint), "float32", options, plan)
    one_sequence = (plan.max_model_len // plan.block_size + 1) * own.block_bytes
    assert one_sequence <= own.total_bytes <= max(one_sequence, STATES_SHARE * plan.total_bytes)
    assert own.max_model_len == plan.max_model_len


def test_the_draft_model_runs_as_the_options_say(checkpoint: Checkpoint) -> None:
    options = replace(OPTIONS, speculative=SPECULATIVE)
    tokenizer = load_tokenizer(checkpoint.tokenizer)
    try:
        model = load_draft(draft_of(checkpoint), tokenizer, options, plan_states(checkpoint.spec, options), "float32")
    finally:
        tokenizer.close()
    assert next(model.network.parameters()).dtype.is_floating_point
    assert not model.config.prefix_cache
    assert model.config.max_num_seqs <= SPECULATIVE.max_num_seqs
    assert model.config.invalid_token_ids == tuple(sorted(model.config.invalid_token_ids))


def test_another_vocabulary_is_refused_with_the_first_id_that_differs(checkpoint: Checkpoint) -> None:
    text, ids = load_tokenizer(checkpoint.tokenizer), load_tokenizer(TokenizerSpec("none", 400))
    try:
        check_same_vocabulary("same", text, text)
        with pytest.raises(InvalidRequest, match=r"'other' has another vocabulary"):
            check_same_vocabulary("other", text, ids)
    finally:
        text.close()
        ids.close()
