"""HeadExperts: query heads and output projections that are chosen for each row, like experts.

Shape letters: T rows, h hidden, k experts of a row, V key/value heads, P head width.

Source: https://arxiv.org/abs/2404.07413 (JetMoE).
"""

from __future__ import annotations

import torch
from torch import nn

from inference.modelling.layers.layer import Layer
from inference.modelling.layers.moe import Experts, Router
from inference.modelling.specs.layers import AttentionSpec, MoESpec


class HeadExperts(Layer):
    """What an attention layer has in place of its query and output projections.

    Args:
        spec: Of the attention.
        hidden_size: h.
    """

    def __init__(self, spec: AttentionSpec, hidden_size: int) -> None:
        super().__init__()
        assert spec.head_experts is not None
        self.num_kv_heads, self.head_dim = spec.num_kv_heads, spec.head_dim
        width = spec.num_kv_heads * spec.head_dim
        rules = MoESpec(spec.head_experts.num_experts, spec.head_experts.top_k, width, gated=False)
        self.router = Router(rules, hidden_size)
        self.experts = Experts(rules, hidden_size)
        self.bias = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def choose(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(T, h) to weights (T, k) float32 and numbers (T, k) of each row's experts."""
        return self.router.choose(self.router(hidden))

    def queries(self, hidden: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """(T, h) to (T, V · k · P): those of one key/value head lie together."""
        found = self.experts.each(hidden, chosen, lambda expert, rows: self.experts.product("up_proj", expert, rows))
        return found.view(*chosen.shape, self.num_kv_heads, self.head_dim).transpose(1, 2).flatten(1)

    def output(self, mixed: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """What the heads give, (T, V · k · P), to (T, h)."""
        rows, count = chosen.shape
        by_expert = mixed.view(rows, self.num_kv_heads, count, self.head_dim).transpose(1, 2).reshape(rows * count, -1)
        parts = self.experts.each(
            by_expert, chosen.reshape(-1, 1), lambda expert, part: self.experts.product("down_proj", expert, part)
        )
        summed = torch.bmm(weights.unsqueeze(1), parts.view(rows, count, -1).float()).squeeze(1)
        return summed.to(mixed.dtype) + self.bias
