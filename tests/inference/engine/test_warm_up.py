"""Warm-up: steps of every kind on scratch slots."""

from __future__ import annotations

import torch

from inference.engine.config import EngineConfig
from inference.engine.model_runner import allocate_states
from inference.engine.warm_up import MIXED_CHUNKS, scratch_batch, warm_up
from inference.modelling.layers.attention import Attention
from inference.modelling.specs.layers import AttentionSpec
from tests.inference.engine.fakes import make_spec

CONFIG = EngineConfig(64, 9, 3, 4, max_num_seqs=3, max_num_batched_tokens=20)


def test_a_scratch_batch_has_the_rows_of_its_decodes_and_chunks():
    batch = scratch_batch(2, MIXED_CHUNKS, 4, torch.device("cpu"))
    assert batch.num_tokens == 2 + sum(count for count, _ in MIXED_CHUNKS) == len(batch.positions)
    assert not batch.slot_mapping.any() and not batch.state_slots.any()
    assert [(chunk.stop - chunk.start, chunk.context_len) for chunk in batch.prefills] == list(MIXED_CHUNKS)
    assert batch.attention.lengths.tolist() == [1, 1, 3, 9, 1, 8]
    assert batch.attention.first_rows.tolist() == [0, 1, 2, 5, 10, 11, 12]
    assert int(batch.attention.slots(0, 6).max()) < 4, "the scratch block"


def test_layers_in_pytorch_run_a_scratch_batch():
    spec = AttentionSpec(4, 2, 8, 0.3, sliding_window=3)
    layer, batch = Attention(spec, 16), scratch_batch(2, MIXED_CHUNKS, 4, torch.device("cpu"))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    state = {part.name: torch.zeros(4, *part.shape) for part in spec.state()}
    with torch.inference_mode():
        assert layer(torch.randn(batch.num_tokens, 16), batch, state).isfinite().all()


def test_the_largest_step_is_run_and_scratch_is_zero_again():
    spec = make_spec("hybrid")
    states, sizes, logits = allocate_states(spec, CONFIG), [], []

    def forward(batch, states):
        sizes.append(batch.num_tokens)
        for layer in states:
            for tensor in layer.values():
                tensor[:1] = 7.0
        return torch.zeros(batch.num_tokens, 2)

    warm_up(forward, lambda hidden: logits.append(hidden.shape[0]), spec, states, CONFIG, (1, 7))
    assert max(sizes) == 20 and 1 in sizes
    assert logits[-1] == 3
    assert not any(bool(tensor.any()) for layer in states for tensor in layer.values())
