"""Mamba-2 against its recurrence token by token, whatever the cuts between steps."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from inference.modelling.layers.mamba2 import Mamba2Mixer
from inference.modelling.specs.layers import Mamba2Spec
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.layers.recurrent_steps import HIDDEN, PIECES, convolved, fill, hidden_rows, run_in_pieces
from tests.inference.modelling.sequential_scans import ssd_scan_sequential

RMS = NormSpec("rms", 1e-5)
SPECS = {
    "one group": Mamba2Spec(12, 3, 4, 6, 1, 4, 12, RMS),
    "groups": Mamba2Spec(16, 4, 4, 5, 2, 3, 8, RMS, norm_before_gate=True, conv_bias=False),
    "limits": Mamba2Spec(12, 3, 4, 6, 1, 2, 12, None, dt_min=0.05, dt_max=0.3, activation="relu2"),
}


def defined(layer: Mamba2Mixer, hidden: torch.Tensor) -> torch.Tensor:
    spec = layer.spec
    width = spec.num_groups * spec.state_size
    gate, xbc, dt = layer.in_proj(hidden).split([spec.intermediate_size, spec.conv_width, spec.num_heads], 1)
    x, b, c = convolved(layer.conv1d, xbc).split([spec.intermediate_size, width, width], 1)
    x = x.view(-1, spec.num_heads, spec.head_dim)
    b, c = (part.view(-1, spec.num_groups, spec.state_size) for part in (b, c))
    delta = functional.softplus(dt + layer.dt_bias).clamp(spec.dt_min, spec.dt_max)
    state = torch.zeros(spec.num_heads, spec.head_dim, spec.state_size)
    y = ssd_scan_sequential(x * delta.unsqueeze(2), delta * -layer.A_log.exp(), b, c, state)
    y = y + layer.D.unsqueeze(1) * x
    return layer.out_proj(layer.norm(y.flatten(1), gate))


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("name", SPECS)
def test_it_is_the_recurrence(name, pieces):
    layer, hidden = fill(Mamba2Mixer(SPECS[name], HIDDEN)), hidden_rows()
    torch.testing.assert_close(run_in_pieces(layer, hidden, pieces), defined(layer, hidden), rtol=1e-4, atol=1e-5)


def test_its_parameters_are_the_specs():
    layer = Mamba2Mixer(SPECS["groups"], HIDDEN)
    shapes = {name: tuple(value.shape) for name, value in layer.named_parameters()}
    assert shapes == SPECS["groups"].parameter_shapes(HIDDEN)
