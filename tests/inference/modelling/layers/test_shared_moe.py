"""Experts beside shared ones: whom the router chooses, and what all of them weigh."""

from __future__ import annotations

import torch
from torch.nn import functional

from inference.modelling.layers.shared_moe import SharedMixtureOfExperts
from inference.modelling.specs.inkling import SharedMoESpec

HIDDEN, ROWS = 8, 6
SPEC = SharedMoESpec(
    5, 2, 4, scoring="sigmoid", routed_scaling_factor=3.0, correction_bias=True, num_shared_experts=2
)  # fmt: skip


def make() -> SharedMixtureOfExperts:
    layer = SharedMixtureOfExperts(SPEC, HIDDEN)
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return layer


def test_chosen_and_shared_experts_weigh_by_their_share_of_the_sigmoids() -> None:
    layer, hidden = make(), torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(2))
    found = layer(hidden)
    scores = (hidden @ layer.router.weight.T).sigmoid()
    for row in range(ROWS):
        chosen = (scores[row, :5] + layer.router.correction_bias).topk(2).indices.tolist()
        picked = [*chosen, 5, 6]
        weights = scores[row, picked] / scores[row, picked].sum() * 3.0 * layer.router.scale
        experts = [layer.experts.run(number, hidden[row : row + 1])[0] for number in chosen]
        experts += [layer.shared_experts.run(number, hidden[row : row + 1])[0] for number in range(2)]
        torch.testing.assert_close(found[row], (weights[:, None] * torch.stack(experts)).sum(0), rtol=1e-4, atol=1e-4)


def test_tiny_sigmoids_have_a_share_too() -> None:
    layer = make()
    layer.router.weight.data = torch.full_like(layer.router.weight, -100.0)
    layer.router.scale.data = torch.ones(1)
    weights, chosen = layer.router(torch.ones(1, HIDDEN))
    torch.testing.assert_close(weights, torch.full((1, 4), 0.75))
    assert functional.sigmoid(torch.tensor(-800.0)) == 0 and chosen.shape == (1, 2)
