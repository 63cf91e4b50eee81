"""NormGate against its formula."""

from __future__ import annotations

import torch

from inference.modelling.layers.norm_gate import NormGate


def test_rows_are_multiplied_by_a_sigmoid_of_themselves() -> None:
    gate = NormGate(3, 8)
    generator = torch.Generator().manual_seed(0)
    for part in gate.parameters():
        part.data.copy_(torch.randn(part.shape, generator=generator))
    rows = torch.randn(5, 8, generator=generator)
    low = rows @ gate.down_proj.weight.T
    expected = rows / (1 + torch.exp(-(low / (1 + torch.exp(-low))) @ gate.up_proj.weight.T))
    assert torch.allclose(gate(rows), expected, atol=1e-5)
    assert gate(rows.bfloat16().to(torch.float32)).dtype == torch.float32
