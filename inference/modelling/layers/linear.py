"""Linear: the one matrix product that every layer uses, so that packed weights have one home."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Linear(nn.Module):
    """y = x Wᵀ (+ b), the weight stored (out, in) without initialisation.

    Args:
        in_features: Length of the input's last axis.
        out_features: Length of the output's.
        bias: Whether there is a b.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(…, in_features) to (…, out_features)."""
        return functional.linear(hidden, self.weight, self.bias)
