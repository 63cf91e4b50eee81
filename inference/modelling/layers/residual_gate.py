"""Learned gates between the residual stream and what a mixer gives (Muse Spark).

Shape letters: T rows, h hidden.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from inference.modelling.layers.layer import Layer

FLOOR = 1e-3
"""The least square of the stream's weight."""


class ResidualGate(Layer):
    """α · stream + β · mixed, with β = sigmoid(gate / temperature) and α² = 1 - β², at least ``FLOOR``.

    Args:
        hidden_size: h.
        temperature: The gates are divided by this.

    Source: transformers' ``muse_spark``.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"gate"})

    def __init__(self, hidden_size: int, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.gate = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, mixed: torch.Tensor, stream: torch.Tensor) -> torch.Tensor:
        """(T, h) of the mixer and of the stream to the stream behind it, in its dtype."""
        values = self.gate / self.temperature
        beta = values.sigmoid()
        # 1 - β is computed without rounding to 0 where β is near 1.
        alpha = ((-values).sigmoid() * (1.0 + beta)).clamp(min=FLOOR).sqrt()
        return (alpha * stream + beta * mixed).to(stream.dtype)
