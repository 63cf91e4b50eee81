"""Activations of rows, gated by their other half."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.mlp import activate
from inference.modelling.specs.parts import ACTIVATIONS
from tests.gpu.compare import assert_close


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_activation(activation, dtype, device):
    from inference.modelling.backends.triton.activations import gated_activation

    values = torch.randn(3, 90).to(dtype) * 4
    wanted = activate(values.float(), activation, gated=True)
    assert_close(gated_activation(values.to(device), activation), wanted, dtype)
