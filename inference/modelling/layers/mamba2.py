"""Mamba-2: state space dual layer with one decay per head.

Source: Dao and Gu 2024, https://arxiv.org/abs/2405.21060, section 7 (the block) and 6 (the algorithm).
"""

from __future__ import annotations

import torch
from torch import nn

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.conv import CausalConv1d
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.recurrent import (
    GatedNorm,
    RecurrentMixer,
    head_decay_rates,
    run_recurrence,
    step_sizes,
)
from inference.modelling.layers.scan import ssd_scan, ssd_step
from inference.modelling.specs.layers import Mamba2Spec


class Mamba2Mixer(RecurrentMixer):
    """in_proj → (gate, xBC, dt); xBC → convolution → recurrence; out_proj(gated norm(y + D x)).

    Args:
        spec: Sizes and rules.
        hidden_size: h.
    """

    def __init__(self, spec: Mamba2Spec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        inner, heads = spec.intermediate_size, spec.num_heads
        self.in_proj = Linear(hidden_size, inner + spec.conv_width + heads, spec.proj_bias)
        self.conv1d = CausalConv1d(spec.conv_width, spec.conv_kernel, bias=spec.conv_bias, activation=spec.activation)
        self.dt_bias = nn.Parameter(torch.empty(heads), requires_grad=False)
        self.A_log = nn.Parameter(torch.empty(heads), requires_grad=False)
        self.D = nn.Parameter(torch.empty(heads), requires_grad=False)
        self.norm = GatedNorm(spec.gated_norm, inner, spec.norm_group_size, norm_before_gate=spec.norm_before_gate)
        self.out_proj = Linear(inner, hidden_size, spec.proj_bias)
        self._factors: torch.Tensor | None = None

    def compute_decay_rates(self) -> torch.Tensor:
        """(H,) A, negative."""
        return head_decay_rates(self.A_log, self.spec.a_clamp, self.spec.a_override)

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to (T, h); the convolution tails and states of the batch's sequences advance."""
        projected = self.in_proj(hidden)
        if self.spec.multipliers is not None:
            projected = projected * self._multipliers(projected)
        out: torch.Tensor = self.out_proj(self.mix(projected, batch, state))
        return out

    def _multipliers(self, projected: torch.Tensor) -> torch.Tensor:
        """(rows of in_proj,) factor of each, made at the first call."""
        if self._factors is None or self._factors.device != projected.device:
            spec = self.spec
            assert spec.multipliers is not None
            bc_width = spec.num_groups * spec.state_size
            widths = [spec.intermediate_size, spec.intermediate_size, bc_width, bc_width, spec.num_heads]
            factors = torch.tensor(spec.multipliers).repeat_interleave(torch.tensor(widths))
            self._factors = factors.to(projected.device, projected.dtype)
        return self._factors

    def gates(self, dt: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(T, H) to the step sizes and the logarithms of the decays; (T, H) float32."""
        delta = step_sizes(dt, self.dt_bias, self.spec.dt_min, self.spec.dt_max)
        return delta, delta * self.decay_rates()

    def mix(self, projected: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """What lies between the projections: ``in_proj``'s rows to (T, I) in their dtype."""
        spec = self.spec
        bc_width = spec.num_groups * spec.state_size
        gate, xbc, dt = torch.split(projected, [spec.intermediate_size, spec.conv_width, spec.num_heads], 1)
        xbc = self.conv1d(xbc, batch, state["conv_state"])
        x, b, c = torch.split(xbc, [spec.intermediate_size, bc_width, bc_width], 1)
        x = x.view(-1, spec.num_heads, spec.head_dim)
        b, c = (part.view(-1, spec.num_groups, spec.state_size) for part in (b, c))
        delta, log_decay = self.gates(dt)
        entering = x * delta.unsqueeze(2)
        y = run_recurrence(
            batch, torch.empty_like(entering), [state["ssm_state"]], (entering, log_decay, b, c), ssd_step, ssd_scan
        )
        y.addcmul_(x, self.D.float().unsqueeze(1))
        normed: torch.Tensor = self.norm(y.flatten(1), gate)
        return normed
