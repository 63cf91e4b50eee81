"""SoftmaxScale: the factor of each head and position, and the dtype of the queries."""

from __future__ import annotations

import math

import torch

from inference.modelling.layers.softmax_scale import SoftmaxScale
from tests.inference.modelling.layers.test_attention import prefill


def test_queries_grow_with_the_logarithm_of_their_position() -> None:
    layer = SoftmaxScale(3)
    layer.scale.data, layer.bias.data = torch.tensor([0.5, 0.0, -1.0]), torch.tensor([1.0, 2.0, 0.0])
    query = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(1))
    batch = prefill(torch.arange(12), 5, 4)
    found = layer(query, batch)
    for row in range(4):
        for head in range(3):
            factor = float(layer.scale[head]) * math.log(row + 6) + float(layer.bias[head])
            torch.testing.assert_close(found[row, head], query[row, head] * factor)
    assert torch.equal(layer(query, batch), found), "the second layer of a step finds the logarithms"
    assert layer(query.bfloat16(), batch).dtype == torch.bfloat16
    assert layer(query[..., :0], batch).shape == (4, 3, 0)
