"""CompressedAttention: a window and pooled entries by their definition, chosen entries, and groups of the output."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from inference.modelling.forward_batch import ForwardBatch
from inference.modelling.layers import compressed_attention
from inference.modelling.layers.compressed_attention import CompressedAttention, visible_entries, window_slots
from inference.modelling.layers.rotary import rotary_embedding, rotate_last
from inference.modelling.specs.compressed import CompressedAttentionSpec, CompressedIndexerSpec, CompressorSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec
from tests.inference.modelling.layers.test_compressor import batch_of, defined

HIDDEN, HEADS, WIDTH, TOKENS = 6, 4, 8, 19
ROPE, NORM = RopeSpec(100.0, 4, interleaved=True), NormSpec(eps=1e-4)
WINDOWED = CompressedAttentionSpec(HEADS, WIDTH, 5, 0.4, ROPE, NORM, sliding_window=5, output_groups=2, output_rank=3)
HEAVY = replace(WINDOWED, compressor=CompressorSpec(6, WIDTH, False, ROPE, NORM))
SPARSE = replace(
    WINDOWED,
    compressor=CompressorSpec(3, WIDTH, True, ROPE, NORM),
    indexer=CompressedIndexerSpec(12, 2, CompressorSpec(3, 5, True, ROPE, NORM)),
)


def make(spec: CompressedAttentionSpec) -> CompressedAttention:
    layer = CompressedAttention(spec, HIDDEN)
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return layer


def expected(layer: CompressedAttention, hidden: torch.Tensor) -> torch.Tensor:
    """The result for a whole sequence, position by position and head by head."""
    spec, positions = layer.spec, torch.arange(len(hidden))
    cos, sin = rotary_embedding(ROPE).cos_sin(positions)
    latent = layer.q_a_norm(hidden @ layer.q_a_proj.weight.T)
    query = layer.q_norm((latent @ layer.q_b_proj.weight.T).view(-1, HEADS, WIDTH))
    query = rotate_last(query, (cos, sin), ROPE)
    keys = rotate_last(layer.kv_norm(hidden @ layer.kv_proj.weight.T)[:, None], (cos, sin), ROPE)[:, 0]
    entries = keys[:0] if layer.compressor is None else defined(layer.compressor, hidden)
    rows = []
    for at in range(len(hidden)):
        seen = keys[max(0, at - spec.sliding_window + 1) : at + 1]
        if spec.compressor is not None:
            count = (at + 1) // spec.compressor.window
            chosen = torch.arange(count)
            if layer.indexer is not None and spec.indexer is not None:
                own = (latent[at] @ layer.indexer.q_proj.weight.T).view(1, -1, 5)
                own = rotate_last(own, (cos[at : at + 1], sin[at : at + 1]), ROPE)[0]
                scores = torch.relu(own @ defined(layer.indexer.compressor, hidden)[:count].T)
                weights = hidden[at] @ layer.indexer.head_weights.weight.T
                chosen = (weights[:, None] * scores).sum(0).topk(min(spec.indexer.top_k, count)).indices
            seen = torch.cat((seen, entries[chosen]))
        logits = torch.cat((query[at] @ seen.T * spec.scale, layer.sinks[:, None]), 1)
        rows.append(logits.softmax(1)[:, :-1] @ seen)
    mixed = rotate_last(torch.stack(rows), (cos, -sin), ROPE).view(len(hidden), 2, -1)
    lowered = [mixed[:, number] @ layer.o_a[f"group{number}_proj"].weight.T for number in (0, 1)]
    return torch.cat(lowered, 1) @ layer.o_b_proj.weight.T


@pytest.mark.parametrize("row_block", [3, 256])
@pytest.mark.parametrize("pieces", [(TOKENS,), (1,) * TOKENS, (4, 1, 1, 8, 5)])
@pytest.mark.parametrize("spec", [WINDOWED, HEAVY, SPARSE, replace(HEAVY, sliding_window=40)])
def test_queries_see_a_window_and_entries(
    spec: CompressedAttentionSpec, pieces: tuple[int, ...], row_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compressed_attention, "ROW_BLOCK", row_block)
    layer = make(spec)
    hidden = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(2))
    sizes = {"token": 80, "sequence": 4}
    state = {part.name: torch.full((sizes[part.per], *part.shape), 3.0) for part in spec.state()}
    found, done = [], 0
    for count in pieces:
        found.append(layer(hidden[done : done + count], batch_of((2, done, count)), state))
        done += count
    torch.testing.assert_close(torch.cat(found), expected(layer, hidden), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", [WINDOWED, HEAVY, SPARSE])
def test_its_parameters_are_those_of_the_spec(spec: CompressedAttentionSpec) -> None:
    layer = make(spec)
    assert {name: tuple(value.shape) for name, value in layer.named_parameters()} == spec.parameter_shapes(HIDDEN)
    assert not layer.is_plain


def test_an_entry_is_seen_from_the_end_of_its_window_on() -> None:
    seen = visible_entries(torch.tensor([0, 2, 3, 7, 11]), CompressorSpec(4, 8, False, ROPE, NORM), 3)
    assert (seen == 0).int().tolist() == [[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_the_window_of_a_short_sequence_is_filled_up() -> None:
    batch: ForwardBatch = batch_of((1, 9, 1), (2, 1, 1))
    slots, mask = window_slots(batch, 4)
    assert slots[0].tolist() == [26, 27, 28, 29] and slots[1, 2:].tolist() == [40, 41]
    assert (mask == 0).tolist() == [[True] * 4, [False, False, True, True]]
    assert window_slots(batch, 4)[0] is slots, "once a step"
    assert window_slots(batch, 40)[0].shape == (2, 10)
