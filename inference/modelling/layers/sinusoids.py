"""Sinusoids: positions as sines and cosines that are added to the embedding, as ``SinusoidsSpec`` says."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from inference.modelling.layers.layer import Layer
from inference.modelling.specs.positions import SinusoidsSpec


class Sinusoids(Layer):
    """Computed for the step's positions, so that there is no table and no end.

    Args:
        spec: The angles.
        hidden_size: h.
    """

    def __init__(self, spec: SinusoidsSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.hidden_size = hidden_size

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """(T,) int64 to (T, h) float32; an odd last column is 0."""
        half = self.hidden_size // 2
        rates = torch.exp(torch.arange(half, device=positions.device).float() * -(math.log(10000.0) / self.spec.steps))
        angles = (positions + self.spec.first).float().unsqueeze(1) * rates
        joined = torch.cat((angles.sin(), angles.cos()), 1)
        return functional.pad(joined, (0, self.hidden_size - 2 * half))
