"""The dense channel mixer, and the activations that all channel mixers know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.norm import Norm
from inference.modelling.specs.layers import MLPSpec, MoESpec

Activation = Callable[[torch.Tensor], torch.Tensor]


def _gelu_tanh(values: torch.Tensor) -> torch.Tensor:
    return functional.gelu(values, approximate="tanh")


def _relu_squared(values: torch.Tensor) -> torch.Tensor:
    return functional.relu(values).square()


ACTIVATION_FUNCTIONS: Mapping[str, Activation] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": functional.relu,
    "relu2": _relu_squared,
}
"""``inference.modelling.specs.parts.ACTIVATIONS`` by name."""


def clamped_gate(gate: torch.Tensor, up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """``MoESpec.gate_clamp``'s activation: gate · sigmoid(α · gate) · (up + 1), both cut at ``limit``.

    Source: https://github.com/openai/gpt-oss.
    """
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


def limited_gate(gate: torch.Tensor, up: torch.Tensor, activation: str, limit: float) -> torch.Tensor:
    """``MoESpec.activation_limit``'s product: act(gate, cut from above at ``limit``) times up, cut on both sides."""
    return ACTIVATION_FUNCTIONS[activation](gate.clamp(max=limit)) * up.clamp(-limit, limit)


def limited_product(gate: torch.Tensor, up: torch.Tensor, activation: str, limit: float) -> torch.Tensor:
    """``MoESpec.post_activation_limit``'s product: act(gate), cut from above at ``limit``, times up, cut on both sides.

    Source: transformers' ``step3p7``.
    """
    return ACTIVATION_FUNCTIONS[activation](gate).clamp(max=limit) * up.clamp(-limit, limit)


def softcapped_gate(gate: torch.Tensor, up: torch.Tensor, gate_cap: float, up_cap: float) -> torch.Tensor:
    """``MoESpec.softcaps``' activation, in float32.

    Source: transformers' ``inkling2``.
    """
    left, right = gate.float(), up.float()
    capped = torch.tanh(left / gate_cap) * gate_cap * torch.sigmoid(left) * (torch.tanh(right / up_cap) * up_cap)
    return capped.to(gate.dtype)


def xielu(values: torch.Tensor, alphas: torch.Tensor) -> torch.Tensor:
    """xIELU, whose slopes on both sides are learned, in float32.

    Args:
        values: Any shape.
        alphas: (2,), of positive and of negative values, before their softplus.

    Source: https://arxiv.org/abs/2411.13010, with β = 0.5 and the bound that Apertus has.
    """
    x = values.float()
    positive, negative = functional.softplus(alphas.float())
    below = (torch.expm1(x.clamp(max=-1e-6)) - x) * (0.5 + negative)
    return (torch.where(x > 0, positive * x * x, below) + 0.5 * x).to(values.dtype)


def above_cut(values: torch.Tensor, sparsity: float) -> torch.Tensor:
    """What of (T, f) lies above the cut under which this share of normally spread values lies."""
    deviations = NormalDist().inv_cdf(sparsity)
    cut = values.mean(-1, keepdim=True) + deviations * values.std(-1, keepdim=True, correction=0)
    return functional.relu(values - cut)


def activate(values: torch.Tensor, activation: str, *, gated: bool) -> torch.Tensor:
    """(…, 2f) gate then up to (…, f) act(gate) · up; without gate (…, f) to act.

    Args:
        values: Output of the first product.
        activation: A name of ``ACTIVATION_FUNCTIONS``.
        gated: Whether there is a gate.
    """
    function = ACTIVATION_FUNCTIONS[activation]
    if not gated:
        return function(values)
    gate, up = values.chunk(2, -1)
    return function(gate) * up


def gated_product(gate: torch.Tensor, up: torch.Tensor, spec: MLPSpec | MoESpec) -> torch.Tensor:
    """act(gate) · up, both (…, f), cut as ``spec`` says."""
    if spec.gate_clamp is not None:
        return clamped_gate(gate, up, *spec.gate_clamp)
    if spec.activation_limit is not None:
        return limited_gate(gate, up, spec.activation, spec.activation_limit)
    if spec.post_activation_limit is not None:
        return limited_product(gate, up, spec.activation, spec.post_activation_limit)
    return ACTIVATION_FUNCTIONS[spec.activation](gate) * up


def cuts_gate(spec: MLPSpec | MoESpec) -> bool:
    """Whether ``gated_product`` cuts anything."""
    cuts = (spec.gate_clamp, spec.activation_limit, spec.post_activation_limit)
    return any(cut is not None for cut in cuts)


class MLP(Layer):
    """r · down(act(f · gate x) · up x), gate and up in one product; or r · down(act(up x)).

    Args:
        spec: Width, activation, gate, biases, factors.
        hidden_size: h.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"alphas"})

    def __init__(self, spec: MLPSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.alphas = nn.Parameter(torch.empty(2), requires_grad=False) if spec.activation == "xielu" else None
        if spec.gated:
            self.gate_up_proj = Linear(hidden_size, 2 * spec.intermediate_size, spec.bias)
        else:
            self.up_proj = Linear(hidden_size, spec.intermediate_size, spec.bias)
        self.down_proj = Linear(spec.intermediate_size, hidden_size, spec.bias)
        self.inner_norm = None if spec.inner_norm is None else Norm(spec.inner_norm, spec.intermediate_size)
        self.output_scale = nn.Parameter(torch.empty(1), requires_grad=False) if spec.has_output_scale else None

    @property
    def is_plain(self) -> bool:
        """Whether the backends' kernels compute the activation."""
        return not cuts_gate(self.spec)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(T, h) to (T, h)."""
        spec = self.spec
        values = self.gate_up_proj(hidden) if spec.gated else self.up_proj(hidden)
        if spec.gate_multiplier != 1.0:
            values[:, : spec.intermediate_size].mul_(spec.gate_multiplier)
        if spec.gate_sparsity:
            gate = values[:, : spec.intermediate_size]
            gate.copy_(above_cut(gate, spec.gate_sparsity))
        activated = self.activate(values)
        if self.inner_norm is not None:
            activated = self.inner_norm(activated)
        out: torch.Tensor = self.down_proj(activated)
        if self.output_scale is not None:
            out = out * self.output_scale
        return out if spec.output_multiplier == 1.0 else out * spec.output_multiplier

    def activate(self, values: torch.Tensor) -> torch.Tensor:
        """(T, 2f) gate then up, or (T, f), to (T, f)."""
        if self.alphas is not None:
            return xielu(values, self.alphas)
        if cuts_gate(self.spec):
            gate, up = values.chunk(2, -1)
            return gated_product(gate, up, self.spec)
        return activate(values, self.spec.activation, gated=self.spec.gated)
