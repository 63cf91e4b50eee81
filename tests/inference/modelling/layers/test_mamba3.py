"""oxidizr's Mamba-3 against its recurrence token by token, whatever the cuts between steps."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from inference.modelling.layers.mamba3 import Mamba3Mixer
from inference.modelling.specs.linear import Mamba3Spec
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.layers.recurrent_steps import HIDDEN, PIECES, convolved, fill, hidden_rows, run_in_pieces
from tests.inference.modelling.sequential_scans import trapezoidal_scan_sequential

RMS = NormSpec("rms", 1e-5)
SPECS = {
    "rotated": Mamba3Spec(12, 3, 4, 6, 1, None, True, 0, gated_norm=RMS, bc_norm=RMS),
    "convolved groups": Mamba3Spec(16, 4, 4, 6, 2, 4, True, 0, gated_norm=RMS, bc_norm=RMS),
    "several inputs": Mamba3Spec(8, 2, 4, 5, 1, None, False, 2, gated_norm=RMS, bc_norm=RMS),
}


def turned(values: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """(T, H, S) as complex numbers, adjacent values being one, times e^(i · angle)."""
    pairs = torch.view_as_complex(values.reshape(*values.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def defined(layer: Mamba3Mixer, hidden: torch.Tensor) -> torch.Tensor:
    spec = layer.spec
    groups, size, heads = spec.num_groups, spec.state_size, spec.num_heads
    gate, xbc, dt = layer.in_proj(hidden).split([spec.intermediate_size, spec.conv_width, heads], 1)
    if layer.conv1d is not None:
        xbc = convolved(layer.conv1d, xbc)
    x, b, c = xbc.split([spec.intermediate_size, groups * size, groups * size], 1)
    x = (x if layer.conv1d is not None else functional.silu(x)).view(-1, heads, spec.head_dim)
    b, c = (part.view(-1, groups, size).repeat_interleave(heads // groups, 1) for part in (b, c))
    b, c = layer.bc_norm(b) + layer.b_bias, layer.bc_norm(c) + layer.c_bias
    delta = functional.softplus(dt + layer.dt_bias).clamp(spec.dt_min, spec.dt_max)
    if layer.theta_proj is not None:
        angles = (layer.theta_proj(hidden).view(-1, heads, size // 2) * delta.unsqueeze(2)).cumsum(0)
        b, c = turned(b, angles), turned(c, angles)
    if layer.mimo_x_up is not None:
        x = layer.mimo_x_up(x)
    share = layer.lambda_proj(hidden).sigmoid()
    y = trapezoidal_scan_sequential(
        x, delta, share, delta * layer.compute_decay_rates(), b, c,
        torch.zeros(heads, x.shape[2], size), torch.zeros(heads, x.shape[2]), torch.zeros(heads, size),
    )  # fmt: skip
    y = y + layer.D.unsqueeze(1) * x
    if layer.mimo_x_down is not None:
        y = layer.mimo_x_down(y)
    return layer.out_proj(layer.norm(y.flatten(1), gate))


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("name", SPECS)
def test_it_is_the_recurrence(name, pieces):
    layer, hidden = fill(Mamba3Mixer(SPECS[name], HIDDEN)), hidden_rows()
    torch.testing.assert_close(run_in_pieces(layer, hidden, pieces), defined(layer, hidden), rtol=1e-4, atol=1e-5)


def test_its_parameters_are_the_specs():
    for spec in SPECS.values():
        shapes = {name: tuple(value.shape) for name, value in Mamba3Mixer(spec, HIDDEN).named_parameters()}
        assert shapes == spec.parameter_shapes(HIDDEN)
