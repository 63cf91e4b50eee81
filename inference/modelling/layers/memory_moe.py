"""MemoryMixtureOfExperts: experts whose router reads what the routers before it have read, or which are skipped.

Source: transformers' ``zaya``.

Shape letters: T rows, h hidden, E experts, r width of the router.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.layers.layer import Layer
from inference.modelling.layers.moe import Experts, choose_experts
from inference.modelling.layers.norm import Norm
from inference.modelling.specs.zaya import MemoryMoESpec


class Float32Linear(Layer):
    """x Wᵀ (+ b) in float32: rounding would change which experts are chosen."""

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"weight", "bias"})

    def __init__(self, in_features: int, out_features: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """(T, in_features) to (T, out_features) float32."""
        return functional.linear(values.float(), self.weight, self.bias)


class MemoryRouter(Layer):
    """See ``MemoryMoESpec``.

    Args:
        spec: Rules and sizes.
        hidden_size: h.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"correction_bias", "memory_scale"})

    def __init__(self, spec: MemoryMoESpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        width, choices = spec.router_width, spec.num_choices
        self.down = Float32Linear(hidden_size, width, bias=True)
        self.norm = Norm(spec.memory_norm, width)
        self.fc1, self.fc2 = Float32Linear(width, width, bias=True), Float32Linear(width, width, bias=True)
        self.out = Float32Linear(width, choices, bias=False)
        self.correction_bias = nn.Parameter(torch.empty(choices), requires_grad=False)
        self.memory_scale = nn.Parameter(torch.empty(width), requires_grad=False) if spec.reads_memory else None

    def forward(self, hidden: torch.Tensor, memory: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """(T, h) and the memory (T, r) to logits (T, E + 1) and the next layer's memory (T, r), float32."""
        read = self.down(hidden)
        if self.memory_scale is not None:
            assert memory is not None
            read = read + memory * self.memory_scale
        values = functional.gelu(self.fc1(self.norm(read)))
        return self.out(functional.gelu(self.fc2(values))), read


class MemoryMixtureOfExperts(Layer):
    """Routed experts, or none of them.

    Args:
        spec: Rules and sizes.
        hidden_size: h.
    """

    def __init__(self, spec: MemoryMoESpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.router = MemoryRouter(spec, hidden_size)
        self.experts = Experts(spec, hidden_size)

    def forward(self, hidden: torch.Tensor, memory: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """(T, h) and the memory that the layer before leaves (T, r) to (T, h) and the memory for the next layer."""
        logits, memory = self.router(hidden, memory)
        weights, chosen = choose_experts(logits, self.spec, self.router.correction_bias)
        # None of them counts as the first with weight 0, so that the experts' kernels know nothing of it.
        is_none = chosen >= self.spec.num_experts
        mixed: torch.Tensor = self.experts(hidden, weights.masked_fill(is_none, 0.0), chosen.masked_fill(is_none, 0))
        return mixed, memory
