"""SoftmaxScale: queries whose length grows with the logarithm of their position, head by head.

Source: Nakanishi 2025, https://arxiv.org/abs/2501.19399 (Scalable-Softmax), and transformers' ``mistral_large4``.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from inference.modelling.forward_batch import ForwardBatch
from inference.modelling.layers.layer import Layer

LOGARITHMS = "log_positions"
"""Where ``ForwardBatch.shared`` has ln(p + 1) of each row."""


class SoftmaxScale(Layer):
    """A query at position p is multiplied by scale · ln(p + 1) + bias of its head.

    Args:
        num_heads: H.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"scale", "bias"})

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(num_heads), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(num_heads), requires_grad=False)

    def forward(self, query: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """(T, H, D) to the same shape and dtype."""
        logarithms: torch.Tensor | None = batch.shared.get(LOGARITHMS)
        if logarithms is None:
            logarithms = batch.shared[LOGARITHMS] = torch.log1p(batch.positions.float()).unsqueeze(1)
        factors = self.scale * logarithms + self.bias
        return query * factors.to(query.dtype).unsqueeze(2)
