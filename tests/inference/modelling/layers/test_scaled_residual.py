"""A stream with learned scales: float32 whatever the mixer gives."""

from __future__ import annotations

import torch

from inference.modelling.layers.scaled_residual import ScaledEntry, ScaledResidual


def test_both_sides_have_vectors_of_their_own() -> None:
    layer = ScaledResidual(3)
    values = {"output.scale": 2.0, "output.bias": 1.0, "stream.scale": 3.0, "stream.bias": -1.0}
    for name, parameter in layer.named_parameters():
        parameter.data = torch.full((3,), values[name])
    after = layer(torch.full((2, 3), 4.0, dtype=torch.bfloat16), torch.full((2, 3), 5.0))
    assert after.dtype == torch.float32 and torch.equal(after, torch.full((2, 3), 2.0 * (4 + 1) + 3.0 * (5 - 1)))


def test_the_embedding_enters_as_float32() -> None:
    entry = ScaledEntry(3)
    entry.scale.data, entry.bias.data = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, 0.0])
    entered = entry(torch.ones(1, 3, dtype=torch.bfloat16))
    assert entered.dtype == torch.float32 and entered.tolist() == [[1.0, 4.0, 3.0]]
