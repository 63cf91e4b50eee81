"""Learned gates between the stream and a mixer's result."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.residual_gate import FLOOR, ResidualGate


def gate_of(*values: float, temperature: float = 0.5) -> ResidualGate:
    layer = ResidualGate(len(values), temperature)
    layer.gate.data = torch.tensor(values)
    return layer


def test_weights_of_both_sides() -> None:
    layer = gate_of(0.0, 0.5)
    found = layer(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    share = torch.sigmoid(torch.tensor(1.0))
    torch.testing.assert_close(found, torch.stack((torch.tensor(0.5), (1 - share**2).sqrt())).unsqueeze(0))


def test_the_stream_keeps_a_least_share() -> None:
    found = gate_of(50.0)(torch.zeros(1, 1), torch.ones(1, 1))
    assert found.item() == pytest.approx(FLOOR**0.5)


def test_the_result_has_the_dtype_of_the_stream() -> None:
    rows = torch.ones(2, 1, dtype=torch.bfloat16)
    assert gate_of(0.3)(rows, rows).dtype == torch.bfloat16
