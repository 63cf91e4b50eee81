"""Griffin's recurrent block against its definition, row by row."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.rg_lru import RGLRU, BlockDiagonal
from inference.modelling.specs.linear import RGLRUSpec
from tests.inference.modelling.layers.recurrent_steps import (
    HIDDEN,
    PIECES,
    convolved,
    fill,
    hidden_rows,
    run_in_pieces,
)


def defined(layer: RGLRU, hidden: torch.Tensor) -> torch.Tensor:
    gate, values = layer.in_proj(hidden).chunk(2, 1)
    values = convolved(layer.conv1d, values)
    strength = torch.nn.functional.softplus(layer.decay)
    state, rows = torch.zeros(layer.spec.width), []
    for t, value in enumerate(values):
        decay = torch.exp(-8.0 * layer.decay_gate(value[None])[0].sigmoid() * strength)
        factor = torch.sqrt(1 - decay**2) if t else 1.0
        state = decay * state + factor * layer.input_gate(value[None])[0].sigmoid() * value
        rows.append(state)
    return layer.out_proj(torch.nn.functional.gelu(gate, approximate="tanh") * torch.stack(rows))


@pytest.mark.parametrize("pieces", PIECES)
def test_it_is_the_definition(pieces):
    layer = fill(RGLRU(RGLRUSpec(10, 2, 4), HIDDEN))
    assert {name: tuple(value.shape) for name, value in layer.named_parameters()} == layer.spec.parameter_shapes(HIDDEN)
    with torch.inference_mode():
        torch.testing.assert_close(
            run_in_pieces(layer, hidden_rows(), pieces), defined(layer, hidden_rows()), rtol=1e-4, atol=1e-5
        )


def test_blocks_multiply_their_own_values():
    layer = fill(BlockDiagonal(3, 2))
    whole = torch.block_diag(*layer.weight)
    values = torch.randn(4, 6)
    torch.testing.assert_close(layer(values), values @ whole + layer.bias.flatten())
