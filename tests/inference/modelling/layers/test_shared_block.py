"""A shared block against its definition, and what layers that share it have of their own."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.forward_batch import AttentionMetadata, ForwardBatch, PrefillChunk
from inference.modelling.layers.rotary import rotary_embedding, rotate_first
from inference.modelling.layers.shared_block import SharedBlock, SharedWeights
from inference.modelling.specs.layers import AttentionSpec, MLPSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec
from inference.modelling.specs.shared_blocks import SharedBlockSpec

H, COUNT = 12, 9
ROPE = RopeSpec(100.0, 8)


def make(rank: int | None, seed: int = 0, block: SharedWeights | None = None) -> SharedBlock:
    spec = SharedBlockSpec(0, AttentionSpec(3, 3, 8, 0.5, ROPE), MLPSpec(20, "gelu"), NormSpec(), rank, 4)
    layer = SharedBlock(spec, H, block or SharedWeights(spec, H))
    assert {name: tuple(value.shape) for name, value in layer.named_parameters()} == spec.parameter_shapes(H)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in layer.named_parameters():
        if block is None or not name.startswith("block."):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
    return layer


def run(layer: SharedBlock, hidden: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
    """A fresh prompt in one block of the cache."""
    places = torch.arange(COUNT)
    batch = ForwardBatch(
        input_ids=places, positions=places, slot_mapping=places + 16, state_slots=torch.tensor([1]), num_decodes=0,
        prefills=(PrefillChunk(0, COUNT, 0, 0, 1),),
        attention=AttentionMetadata(
            torch.tensor([1], dtype=torch.int32), torch.tensor([0]), torch.tensor([COUNT]), torch.tensor([0, COUNT]), 16
        ),
    )  # fmt: skip
    state = {part.name: torch.zeros(32, *part.shape) for part in layer.spec.state()}
    with torch.inference_mode():
        return layer(hidden, embedding, batch, state)


def defined(layer: SharedBlock, hidden: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
    spec, block = layer.spec.attention, layer.block
    normed = block.input_norm(torch.cat((hidden, embedding), 1))
    query, key, value = block.attention.qkv_proj(normed).chunk(3, 1)
    if layer.spec.attention_rank is not None:
        low = layer.qkv_down_proj(normed).chunk(3, 1)
        query, key, value = (
            query + layer.q_up_proj(low[0]),
            key + layer.k_up_proj(low[1]),
            value + layer.v_up_proj(low[2]),
        )
    cos_sin = rotary_embedding(ROPE).cos_sin(torch.arange(COUNT))
    query, key, value = (part.view(COUNT, spec.num_heads, -1) for part in (query, key, value))
    query, key = rotate_first(query, cos_sin, ROPE), rotate_first(key, cos_sin, ROPE)
    scores = torch.einsum("ihp,jhp->hij", query, key) * spec.scale
    unseen = torch.ones(COUNT, COUNT, dtype=torch.bool).triu(1)
    mixed = torch.einsum("hij,jhp->ihp", scores.masked_fill(unseen, -torch.inf).softmax(-1), value)
    entering = block.mlp_norm(block.attention.o_proj(mixed.flatten(1)))
    gate, up = (block.mlp.gate_up_proj(entering) + layer.mlp_up_proj(layer.mlp_down_proj(entering))).chunk(2, 1)
    return layer.out_proj(block.mlp.down_proj(torch.nn.functional.gelu(gate) * up))


@pytest.mark.parametrize("rank", [None, 5])
def test_it_is_the_definition(rank):
    layer = make(rank)
    hidden, embedding = torch.randn(2, COUNT, H, generator=torch.Generator().manual_seed(3)).unbind()
    with torch.inference_mode():
        torch.testing.assert_close(
            run(layer, hidden, embedding), defined(layer, hidden, embedding), rtol=1e-4, atol=1e-5
        )


def test_adapters_are_each_layers_own():
    first = make(5)
    second = make(5, seed=1, block=first.block)
    hidden, embedding = torch.randn(2, COUNT, H, generator=torch.Generator().manual_seed(3)).unbind()
    assert second.block is first.block
    assert not torch.allclose(run(first, hidden, embedding), run(second, hidden, embedding))
