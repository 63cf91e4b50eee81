"""Norms against their formulas in float64, and the residual addition before them."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.norm import Norm, add_scaled
from inference.modelling.specs.parts import NormSpec


def make(spec: NormSpec, width: int) -> Norm:
    norm = Norm(spec, width)
    generator = torch.Generator().manual_seed(1)
    for parameter in norm.parameters():
        parameter.copy_(torch.randn(width, generator=generator))
    return norm


def rows(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 2) -> torch.Tensor:
    return (3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def formula(norm: Norm, hidden: torch.Tensor) -> torch.Tensor:
    values = hidden.double()
    if norm.spec.scales_input:
        values = (values * (norm.weight.double() + norm.spec.offset)).to(hidden.dtype).double()
        return values / (values.square().mean(-1, keepdim=True) + norm.spec.eps).sqrt()
    if norm.spec.kind == "layer":
        values = values - values.mean(-1, keepdim=True)
    values = values / (values.square().mean(-1, keepdim=True) + norm.spec.eps).sqrt()
    if norm.weight is not None:
        values = values * (norm.weight.double() + norm.spec.offset)
    return values if norm.bias is None else values + norm.bias.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "spec",
    [
        NormSpec("rms", 1e-5),
        NormSpec("rms", 1e-5, offset=1.0),
        NormSpec("rms", weightless=True),
        NormSpec("layer"),
        NormSpec("rms", 1e-5, offset=1.0, scales_input=True),
    ],
    ids=str,
)
def test_it_is_the_formula(spec, dtype):
    norm = make(spec, 20)
    hidden = rows(3, 2, 20, dtype=dtype)
    found = norm(hidden)
    assert found.dtype == dtype and found.shape == hidden.shape
    error = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(found.double(), formula(norm, hidden), rtol=error, atol=error)


@pytest.mark.parametrize("multiplier", [1.0, 0.3])
def test_a_sublayers_output_is_added_to_the_stream_in_place(multiplier):
    norm, hidden, mixed = make(NormSpec(), 16), rows(4, 16), rows(4, 16, seed=3)
    wanted = hidden + multiplier * mixed
    found = norm.add_normalise(hidden, mixed, multiplier)
    torch.testing.assert_close(hidden, wanted)
    torch.testing.assert_close(found, norm(hidden), rtol=0, atol=0)


def test_add_scaled_returns_the_stream_itself():
    hidden = rows(2, 4)
    assert add_scaled(hidden, torch.ones(2, 4), 2.0) is hidden
