"""HeadExperts against one row after the other."""

from __future__ import annotations

import torch

from inference.modelling.layers.head_experts import HeadExperts
from inference.modelling.specs.attention_parts import HeadExpertsSpec
from inference.modelling.specs.layers import AttentionSpec

HIDDEN = 8
SPEC = AttentionSpec(6, 2, 4, 0.5, head_experts=HeadExpertsSpec(5, 3))


def layer() -> HeadExperts:
    made = HeadExperts(SPEC, HIDDEN)
    generator = torch.Generator().manual_seed(0)
    for part in made.parameters():
        part.data.copy_(torch.randn(part.shape, generator=generator))
    return made


def test_queries_of_one_key_value_head_lie_together() -> None:
    made, hidden = layer(), torch.randn(7, HIDDEN, generator=torch.Generator().manual_seed(1))
    weights, chosen = made.choose(hidden)
    logits = hidden @ made.router.weight.T
    assert torch.equal(chosen, logits.topk(3).indices)
    assert torch.allclose(weights, logits.topk(3).values.softmax(-1), atol=1e-6)
    found = made.queries(hidden, chosen).view(7, 2, 3, 4)
    for row in range(7):
        for place, expert in enumerate(chosen[row].tolist()):
            wanted = (made.experts.up_proj[expert] @ hidden[row]).view(2, 4)
            assert torch.allclose(found[row, :, place], wanted, atol=1e-5)


def test_outputs_are_weighted_sums_with_a_bias() -> None:
    made, generator = layer(), torch.Generator().manual_seed(2)
    mixed, hidden = torch.randn(4, 24, generator=generator), torch.randn(4, HIDDEN, generator=generator)
    weights, chosen = made.choose(hidden)
    found = made.output(mixed, weights, chosen)
    for row in range(4):
        heads = mixed[row].view(2, 3, 4)
        wanted = made.bias.clone()
        for place, expert in enumerate(chosen[row].tolist()):
            wanted += weights[row, place] * (made.experts.down_proj[expert] @ heads[:, place].flatten())
        assert torch.allclose(found[row], wanted, atol=1e-4)
