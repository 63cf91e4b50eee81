"""RMSNorm and LayerNorm, as a ``NormSpec`` says."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.layers.layer import Layer
from inference.modelling.specs.parts import NormSpec


class Norm(Layer):
    """Normalisation over the last axis; statistics in float32 whatever the input's dtype.

    Args:
        spec: Kind, eps, offset.
        shape: Of the weights: (width,), the length of the last axis, or (H, width) for rows of H heads.
    """

    def __init__(self, spec: NormSpec, *shape: int) -> None:
        super().__init__()
        self.spec = spec
        self.width = shape[-1]
        self.weight: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        for name in spec.parameter_names():
            setattr(self, name, nn.Parameter(torch.empty(shape), requires_grad=False))

    @property
    def is_shared(self) -> bool:
        """Whether all rows have the same weights."""
        return self.weight is None or self.weight.dim() == 1

    @property
    def is_plain(self) -> bool:
        """Whether the backends' kernels compute it."""
        return self.is_shared and not self.spec.scales_input

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
        is_usual = spec.kind == "rms" and not spec.offset and self.is_plain
        if is_usual and (self.weight is None or self.weight.dtype == hidden.dtype):
            # The same arithmetic with fewer calls; equal to the bit in bfloat16.
            return functional.rms_norm(hidden, (self.width,), self.weight, spec.eps)
        weight = None if self.weight is None else self.weight.float()
        if weight is not None and spec.offset:
            weight = weight + spec.offset
        values = hidden.float()
        if spec.scales_input and weight is not None:
            values, weight = (values * weight).to(hidden.dtype).float(), None
        if spec.kind == "layer":
            values = values - values.mean(-1, keepdim=True)
        values = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + spec.eps)
        if weight is not None:
            values = values * weight
        if self.bias is not None:
            values = values + self.bias.float()
        return values.to(hidden.dtype)


def add_scaled(hidden: torch.Tensor, mixed: torch.Tensor, multiplier: float) -> torch.Tensor:
    """``hidden``, overwritten by hidden + multiplier · mixed."""
    return hidden.add_(mixed if multiplier == 1.0 else mixed * multiplier)
