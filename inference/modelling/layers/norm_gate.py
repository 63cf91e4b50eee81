"""NormGate: what a norm gives, times sigmoid of a low-rank MLP of itself.

Source: transformers' ``axk2``.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear


class NormGate(Layer):
    """y · sigmoid(up(silu(down y))).

    Args:
        rank: r, width between both matrices.
        hidden_size: h.
    """

    def __init__(self, rank: int, hidden_size: int) -> None:
        super().__init__()
        self.down_proj = Linear(hidden_size, rank)
        self.up_proj = Linear(rank, hidden_size)

    def forward(self, normed: torch.Tensor) -> torch.Tensor:
        """(T, h) to (T, h)."""
        gate: torch.Tensor = self.up_proj(functional.silu(self.down_proj(normed)))
        return (normed * gate.float().sigmoid()).to(normed.dtype)
