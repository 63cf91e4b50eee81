"""Inputs of layers: tokens beyond the table, and the sum of both parts."""

from __future__ import annotations

import torch

from inference.modelling.layers.layer_inputs import LayerInputs
from inference.modelling.specs.layer_inputs import LayerInputsSpec
from inference.modelling.specs.parts import NormSpec


def test_a_token_beyond_the_table_has_its_first_row() -> None:
    torch.manual_seed(0)
    layer = LayerInputs(LayerInputsSpec(5, 3, 2, NormSpec(eps=1e-6)), 4)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape)
    embedding = torch.randn(1, 4).expand(3, 4)
    inputs = layer(torch.tensor([0, 7, 4]), embedding)
    assert inputs.shape == (3, 2, 3)
    assert torch.equal(inputs[0], inputs[1]) and not torch.equal(inputs[0], inputs[2])
    projected = layer.norm((embedding[2] @ layer.projection.weight.T / 2).view(2, 3))
    wanted = (projected + layer.table.weight[4].view(2, 3) * 3**0.5) / 2**0.5
    assert torch.allclose(inputs[2], wanted, atol=1e-6)
