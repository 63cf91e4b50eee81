"""RMSNorm and LayerNorm, as a ``NormSpec`` says."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.layer_parts import NormSpec
from inference.modelling.layers.layer import Layer


class Norm(Layer):
    """Normalisation over the last axis; statistics in float32 whatever the input's dtype.

    Args:
        spec: Kind, eps, offset.
        width: Length of the last axis.
    """

    def __init__(self, spec: NormSpec, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.width = width
        if spec.weightless:
            self.weight = None
        else:
            self.weight = nn.Parameter(torch.empty(width), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(width), requires_grad=False) if spec.kind == "layer" else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(…, width) to the same shape and dtype."""
        return self.normalise(hidden)

    def add_normalise(self, hidden: torch.Tensor, mixed: torch.Tensor, multiplier: float) -> torch.Tensor:
        """Add a sublayer's output to the residual stream and normalise the sum.

        Args:
            hidden: (T, width), overwritten by hidden + multiplier · mixed.
            mixed: (T, width).
            multiplier: The layer's residual multiplier.

        Returns:
            (T, width), the norm of the sum.
        """
        return self.normalise(add_scaled(hidden, mixed, multiplier))

    def normalise(self, hidden: torch.Tensor) -> torch.Tensor:
        """(…, width) to the same shape and dtype."""
        spec = self.spec
        if spec.kind == "rms" and not spec.offset and (self.weight is None or self.weight.dtype == hidden.dtype):
            # The same arithmetic with fewer calls; equal to the bit in bfloat16.
            return functional.rms_norm(hidden, (self.width,), self.weight, spec.eps)
        values = hidden.float()
        if spec.kind == "layer":
            values = values - values.mean(-1, keepdim=True)
        values = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + spec.eps)
        if self.weight is not None:
            weight = self.weight.float()
            values = values * (weight + spec.offset if spec.offset else weight)
        if self.bias is not None:
            values = values + self.bias.float()
        return values.to(hidden.dtype)


def add_scaled(hidden: torch.Tensor, mixed: torch.Tensor, multiplier: float) -> torch.Tensor:
    """``hidden``, overwritten by hidden + multiplier · mixed."""
    return hidden.add_(mixed if multiplier == 1.0 else mixed * multiplier)
