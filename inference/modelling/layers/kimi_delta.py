"""Kimi's delta attention: the gated delta rule with a decay for each key channel.

Source: Kimi Team 2025, https://arxiv.org/abs/2510.26692: equation 1 is the recurrence. What it shares with
``gated_delta`` is there.

Shape letters: T rows, B decoding sequences, n rows of a chunk, H heads, P their width.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.conv import CausalConv1d
from inference.modelling.layers.gated_delta import LEAST_LOG_DECAY, delta_step, scan_in_pieces, unit
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.recurrent import GatedNorm, RecurrentMixer, head_decay_rates, run_recurrence
from inference.modelling.specs.linear import KimiDeltaSpec

CHUNK = 16
"""Rows whose products with each other are computed at once: n² H P values, a decay for each pair and channel."""


class KimiDelta(RecurrentMixer):
    """out_proj(norm(o) σ(gate)), with o from q, k, v through the convolution, a decay per channel and σ(b).

    Args:
        spec: Sizes and rules.
        hidden_size: h.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"A_log", "dt_bias"})

    def __init__(self, spec: KimiDeltaSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        width, heads = spec.width, spec.num_heads
        self.in_proj = Linear(hidden_size, 3 * width)
        self._low_widths = [heads, spec.decay_rank or 0, spec.gate_rank or 0]
        self.low_rank_proj = Linear(hidden_size, sum(self._low_widths))
        self.decay_proj = Linear(spec.decay_rank or hidden_size, width)
        self.gate_proj = Linear(spec.gate_rank or hidden_size, width)
        self.conv1d = CausalConv1d(3 * width, spec.conv_kernel, bias=False, activation="silu")
        self.dt_bias = nn.Parameter(torch.empty(width), requires_grad=False)
        self.A_log = nn.Parameter(torch.empty(heads), requires_grad=False)
        self.norm = GatedNorm(
            spec.gated_norm, spec.head_dim, spec.head_dim, norm_before_gate=True, num_heads=heads, gate="sigmoid"
        )
        self.out_proj = Linear(width, hidden_size)

    def compute_decay_rates(self) -> torch.Tensor:
        """(H,) A, negative."""
        return head_decay_rates(self.A_log, None)

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to (T, h); the convolution tails and states of the batch's sequences advance."""
        spec = self.spec
        b, low_decay, low_gate = torch.split(self.low_rank_proj(hidden), self._low_widths, 1)
        decay = self.decay_proj(hidden if spec.decay_rank is None else low_decay)
        gate = self.gate_proj(hidden if spec.gate_rank is None else low_gate)
        out: torch.Tensor = self.out_proj(self.mix(self.in_proj(hidden), b, decay, gate, batch, state))
        return out

    def mix(
        self, qkv: torch.Tensor, b: torch.Tensor, decay: torch.Tensor, gate: torch.Tensor, batch: ForwardBatch,
        state: LayerState,
    ) -> torch.Tensor:  # fmt: skip
        """What lies between the projections.

        Args:
            qkv: (T, 3 H P), before the convolution.
            b: (T, H).
            decay, gate: (T, H P), projected.
            batch: The step.
            state: Tails and states, advanced.

        Returns:
            (T, H P) in the gate's dtype.
        """
        shape = (-1, self.spec.num_heads, self.spec.head_dim)
        convolved = self.conv1d(qkv, batch, state["conv_state"])
        query, key, value = (part.view(shape) for part in convolved.chunk(3, 1))
        query, key = unit(query) * self.spec.head_dim**-0.5, unit(key)
        beta, log_decay = b.float().sigmoid(), self.log_decays(decay.float()).view(shape)
        inputs, out = (query, key, value, beta, log_decay), torch.empty(value.shape, device=value.device)
        out = run_recurrence(batch, out, [state["delta_state"]], inputs, delta_step, channel_delta_scan)
        normed: torch.Tensor = self.norm(out.flatten(1), gate)
        return normed

    def log_decays(self, projected: torch.Tensor) -> torch.Tensor:
        """(T, H P) float32 to the logarithms of the decays."""
        spec = self.spec
        rates = self.decay_rates().repeat_interleave(spec.head_dim)
        values = projected + self.dt_bias.float()
        if spec.least_log_decay is None:
            return rates * functional.softplus(values)
        return spec.least_log_decay * (-rates * values).sigmoid()


def channel_delta_scan(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, beta: torch.Tensor, log_decay: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Rows of one sequence in their order.

    Args:
        query, key, value, log_decay: (n, H, P) float32.
        beta: (n, H).
        state: (H, P, P), advanced in place.

    Returns:
        (n, H, P).
    """
    return scan_in_pieces(_scan_piece, CHUNK, (query, key, value, beta, log_decay), state)


def _scan_piece(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, beta: torch.Tensor, log_decay: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """``channel_delta_scan`` of at most ``CHUNK`` rows, heads first.

    As in ``gated_delta``, with a fade for each channel p within the products: A_ij = β_i Σ_p k_ip k_jp e^(γ_ip - γ_jp).
    """
    count = query.shape[1]
    # In float64: the differences of sums of strong decays keep their digits.
    total = log_decay.clamp(min=LEAST_LOG_DECAY).double().cumsum(1)
    between = (total.unsqueeze(2) - total.unsqueeze(1)).clamp_(max=0.0).exp_().float()  # (H, n, n, P)
    faded_keys = between * key.unsqueeze(1)
    below = (torch.einsum("hip,hijp->hij", key, faded_keys) * beta.unsqueeze(2)).tril(-1)
    faded = total.exp().float()
    target = beta.unsqueeze(2) * (value - (key * faded) @ state)
    identity = torch.eye(count, dtype=below.dtype, device=below.device)
    written: torch.Tensor = torch.linalg.solve_triangular(below + identity, target, upper=False, unitriangular=True)
    out: torch.Tensor = (query * faded) @ state + torch.einsum("hip,hijp->hij", query, faded_keys).tril() @ written
    state.mul_(faded[:, -1].unsqueeze(2)).add_(faded_keys[:, -1].transpose(1, 2) @ written)
    return out.transpose(0, 1)
