"""SharedMixtureOfExperts: chosen experts and shared ones, all weighed by one router.

Source: transformers' ``inkling``.

Shape letters: T rows, h hidden, E experts, k experts of a row, S shared experts.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.layers.layer import Layer
from inference.modelling.layers.moe import Experts, choose_experts
from inference.modelling.specs.inkling import SharedMoESpec


class SharedRouter(Layer):
    """See ``SharedMoESpec``.

    Args:
        spec: Rules and sizes.
        hidden_size: h.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"weight", "correction_bias", "scale"})

    def __init__(self, spec: SharedMoESpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        count = spec.num_experts + spec.num_shared_experts
        self.weight = nn.Parameter(torch.empty(count, hidden_size), requires_grad=False)
        self.correction_bias = nn.Parameter(torch.empty(spec.num_experts), requires_grad=False)
        self.scale = nn.Parameter(torch.empty(1), requires_grad=False)

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(T, h) to float32 weights (T, k + S), the shared experts' last, and the numbers of the chosen ones (T, k)."""
        logits = functional.linear(hidden.float(), self.weight)
        routed, shared = logits.tensor_split((self.spec.num_experts,), 1)
        chosen = choose_experts(routed, self.spec, self.correction_bias)[1]
        # exp(logsigmoid) = sigmoid: the softmax divides sigmoids by their sum, however small they are.
        shares = functional.logsigmoid(torch.cat((routed.gather(1, chosen), shared), 1)).softmax(1)
        return shares * (self.spec.routed_scaling_factor * self.scale), chosen


class SharedMixtureOfExperts(Layer):
    """Routed experts beside shared ones.

    Args:
        spec: Rules and sizes.
        hidden_size: h.
    """

    def __init__(self, spec: SharedMoESpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.router = SharedRouter(spec, hidden_size)
        self.experts = Experts(spec, hidden_size)
        self.shared_experts = Experts(spec.shared_experts, hidden_size)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(T, h) to (T, h)."""
        weights, chosen = self.router(hidden)
        all_shared = torch.arange(self.spec.num_shared_experts, device=hidden.device).repeat(hidden.shape[0], 1)
        of_chosen, of_shared = (part.contiguous() for part in weights.tensor_split((self.spec.top_k,), 1))
        mixed: torch.Tensor = self.experts(hidden, of_chosen, chosen)
        shared: torch.Tensor = self.shared_experts(hidden, of_shared, all_shared)
        return mixed + shared
