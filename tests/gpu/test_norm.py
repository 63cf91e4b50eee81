"""Norms of rows, also after an addition and before or after a gate."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.norm import add_scaled
from inference.modelling.layers.recurrent import GatedNorm
from tests.gpu.compare import NORMS, assert_close, make_norm


@pytest.mark.parametrize("spec", NORMS, ids=str)
@pytest.mark.parametrize("width", [64, 100])
def test_norm(spec, width, dtype, device):
    from inference.modelling.backends.triton.norm import add_norm

    norm = make_norm(spec, width, dtype)
    hidden = torch.randn(3, 2 * width).to(dtype)[:, :width] + 0.5
    moved = norm.to(device)
    found = add_norm(hidden.to(device), None, 1.0, spec, moved.weight, moved.bias)
    assert_close(found, norm.cpu()(hidden), dtype)


@pytest.mark.parametrize("spec", NORMS, ids=str)
def test_norm_after_an_addition(spec, dtype, device):
    from inference.modelling.backends.triton.norm import add_norm

    norm = make_norm(spec, 48, dtype)
    hidden, mixed = torch.randn(5, 48).to(dtype), torch.randn(5, 48).to(dtype)
    stream, moved = hidden.clone().to(device), norm.to(device)
    found = add_norm(stream, mixed.to(device), 0.22, spec, moved.weight, moved.bias)
    wanted = add_scaled(hidden, mixed, 0.22)
    assert_close(stream, wanted, dtype)
    assert_close(found, norm.cpu()(wanted), dtype)


@pytest.mark.parametrize("norm_before_gate", [False, True])
@pytest.mark.parametrize(("spec", "group_size"), [(NORMS[0], 24), (NORMS[1], 8), (NORMS[2], 24), (None, 24)])
def test_gated_norm(spec, group_size, norm_before_gate, dtype, device):
    from inference.modelling.backends.triton.norm import gated_norm

    norm = GatedNorm(spec, 24, group_size, norm_before_gate=norm_before_gate)
    if norm.weight is not None:
        norm.weight.copy_(torch.randn(24))
    values, gate = torch.randn(3, 24), torch.randn(3, 40).to(dtype)[:, :24]
    found = gated_norm(
        values.to(device),
        gate.to(device),
        spec,
        None if norm.weight is None else norm.weight.to(device),
        group_size=group_size,
        norm_before_gate=norm_before_gate,
        dtype=dtype,
    )
    assert found.dtype == dtype
    assert_close(found, norm(values, gate), dtype)
