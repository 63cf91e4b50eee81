"""How close a kernel has to come to its reference, and references that several tests have."""

from __future__ import annotations

import torch
from torch import nn

from inference.modelling.layers.mlp import activate
from inference.modelling.layers.norm import Norm
from inference.modelling.specs.parts import NormSpec

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Relative to the reference's norm. float32: 24 bits after some hundred additions; float16 and bfloat16: a few
roundings to 11 and 8 bits."""


NORMS = [
    NormSpec("rms", 1e-5),
    NormSpec("rms", 1e-6, offset=1.0),
    NormSpec("rms", 1e-3, weightless=True),
    NormSpec("layer", 1e-5),
]


def assert_close(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    """The norm of the difference, relative to that of the reference; NaN never passes."""
    assert found.shape == wanted.shape, f"{tuple(found.shape)} instead of {tuple(wanted.shape)}"
    wanted = wanted.double().cpu()
    error = float((found.double().cpu() - wanted).norm() / wanted.norm().clamp(min=1e-30))
    assert error <= TOLERANCE[dtype], f"relative error {error:.2e}, more than {TOLERANCE[dtype]:.0e}"


def experts_reference(
    hidden: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, first: torch.Tensor, down: torch.Tensor,
    *, activation: str, gated: bool,
) -> torch.Tensor:  # fmt: skip
    """What ``triton.moe.run_experts`` computes, (T, h) float64, pair by pair."""
    wanted = torch.zeros(hidden.shape[0], down.shape[1], dtype=torch.float64)
    for row in range(hidden.shape[0]):
        for weight, expert in zip(weights[row].tolist(), chosen[row].tolist(), strict=True):
            inside = activate(hidden[row].double() @ first[expert].double().t(), activation, gated=gated)
            wanted[row] += weight * (inside @ down[expert].double().t())
    return wanted


def make_norm(spec: NormSpec, width: int, dtype: torch.dtype) -> Norm:
    """A norm with random weights."""
    norm = Norm(spec, width)
    for name, parameter in list(norm.named_parameters()):
        setattr(norm, name, nn.Parameter(torch.randn_like(parameter).to(dtype), requires_grad=False))
    return norm
