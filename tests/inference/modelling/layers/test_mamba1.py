"""Mamba-1 against its recurrence token by token, whatever the cuts between steps."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from inference.modelling.layers.mamba1 import Mamba1Mixer
from inference.modelling.specs.layers import Mamba1Spec
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.layers.recurrent_steps import HIDDEN, PIECES, convolved, fill, hidden_rows, run_in_pieces
from tests.inference.modelling.sequential_scans import selective_scan_sequential

SPECS = {
    "mamba": Mamba1Spec(10, 4, 3, 2),
    "inner norms": Mamba1Spec(10, 4, 3, 2, conv_bias=False, inner_norm=NormSpec("rms", 1e-5)),
    "heads": Mamba1Spec(12, 4, 3, 2, num_heads=3),
    "growing": Mamba1Spec(10, 4, 3, 2, positive_a=True, state_clamp=3.0),
}


def defined(layer: Mamba1Mixer, hidden: torch.Tensor) -> torch.Tensor:
    spec = layer.spec
    x, gate = layer.in_proj(hidden).chunk(2, 1)
    x = convolved(layer.conv1d, x)
    if spec.num_heads > 1:
        return layer.out_proj(of_heads(layer, x) * functional.silu(gate))
    dt, b, c = layer.x_proj(x).split([spec.dt_rank, spec.state_size, spec.state_size], 1)
    if spec.inner_norm is not None:
        dt, b, c = layer.dt_norm(dt), layer.b_norm(b), layer.c_norm(c)
    delta = functional.softplus(layer.dt_proj(dt) + layer.dt_proj.bias)
    state = torch.zeros(spec.intermediate_size, spec.state_size)
    y = selective_scan_sequential(x, delta, layer.compute_decay_rates(), b, c, state, spec.state_clamp)
    return layer.out_proj((y + layer.D * x) * functional.silu(gate))


def of_heads(layer: Mamba1Mixer, x: torch.Tensor) -> torch.Tensor:
    """Each head a Mamba-1 recurrence of its own."""
    spec, parts = layer.spec, []
    width = spec.intermediate_size // spec.num_heads
    for head in range(spec.num_heads):
        own = slice(head * width, (head + 1) * width)
        projected = x[:, own] @ layer.x_proj.weight[head].t()
        dt, b, c = projected.split([spec.dt_rank, spec.state_size, spec.state_size], 1)
        delta = functional.softplus(dt @ layer.dt_proj.weight[own].t() + layer.dt_proj.bias[own])
        state = torch.zeros(width, spec.state_size)
        y = selective_scan_sequential(x[:, own], delta, layer.compute_decay_rates()[own], b, c, state, None)
        parts.append(y + layer.D[own] * x[:, own])
    return torch.cat(parts, 1)


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("name", SPECS)
def test_it_is_the_recurrence(name, pieces):
    layer, hidden = fill(Mamba1Mixer(SPECS[name], HIDDEN)), hidden_rows()
    torch.testing.assert_close(run_in_pieces(layer, hidden, pieces), defined(layer, hidden), rtol=1e-4, atol=1e-5)


def test_decay_rates_shrink_the_state_unless_the_trainer_let_them_grow():
    assert (fill(Mamba1Mixer(SPECS["mamba"], HIDDEN)).decay_rates() < 0).all()
    assert (fill(Mamba1Mixer(SPECS["growing"], HIDDEN)).decay_rates() > 0).all()
