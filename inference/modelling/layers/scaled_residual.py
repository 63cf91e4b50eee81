"""A residual stream in float32 that learned scales and biases are applied to (ZAYA).

Shape letters: T rows, h hidden.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from inference.modelling.layers.layer import Layer


class ScaledEntry(Layer):
    """(x + bias) · scale, float32.

    Args:
        hidden_size: h.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"scale", "bias"})

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(hidden_size), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(T, h) to (T, h) float32."""
        return (rows.float() + self.bias) * self.scale


class ScaledResidual(Layer):
    """A mixer's result and the stream, each with a scale and a bias of its own.

    Args:
        hidden_size: h.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.output = ScaledEntry(hidden_size)
        self.stream = ScaledEntry(hidden_size)

    def forward(self, mixed: torch.Tensor, stream: torch.Tensor) -> torch.Tensor:
        """(T, h) of the mixer and of the stream to the stream behind it, float32."""
        added: torch.Tensor = self.output(mixed) + self.stream(stream)
        return added
