"""Gated delta rule: linear attention whose state forgets by a gate and overwrites what a key held before.

Source: Yang et al. 2024, https://arxiv.org/abs/2412.06464: equation 10 is the recurrence, section 3.3 the form in
chunks. Queries and keys are normalised to length 1.

Shape letters: T rows, B decoding sequences, n rows of a chunk, G key heads, H value heads, P width of a key head, V
width of a value head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.conv import CausalConv1d
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.recurrent import (
    GatedNorm,
    RecurrentMixer,
    head_decay_rates,
    run_recurrence,
)
from inference.modelling.specs.linear import GatedDeltaSpec

CHUNK = 64
"""Rows whose products with each other are computed as matrices; the state passes from one such piece to the next."""
LEAST_LOG_DECAY = -1000.0
"""Its exponential is 0 in float32, and sums of it stay finite."""
NORM_EPS = 1e-6
"""Added to the squared length of queries and keys, as all published models have it."""


class GatedDelta(RecurrentMixer):
    """in_proj to (q, k, v, gate); q, k, v through the convolution to the recurrence; out_proj(norm(o) silu(gate)).

    Args:
        spec: Sizes and rules.
        hidden_size: h.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"A_log", "dt_bias"})

    def __init__(self, spec: GatedDeltaSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        heads = spec.num_value_heads
        self.in_proj = Linear(hidden_size, spec.conv_width + spec.value_width)
        self.ba_proj = Linear(hidden_size, 2 * heads)
        self.conv1d = CausalConv1d(spec.conv_width, spec.conv_kernel, bias=False, activation="silu")
        self.dt_bias = nn.Parameter(torch.empty(heads), requires_grad=False)
        self.A_log = nn.Parameter(torch.empty(heads), requires_grad=False)
        self.norm = GatedNorm(
            spec.gated_norm,
            spec.value_head_dim,
            spec.value_head_dim,
            norm_before_gate=True,
            num_heads=heads,
            gate=spec.gate_activation,
        )
        self.out_proj = Linear(spec.value_width, hidden_size)

    def compute_decay_rates(self) -> torch.Tensor:
        """(H,) A, negative."""
        return head_decay_rates(self.A_log, None)

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to (T, h); the convolution tails and states of the batch's sequences advance."""
        out: torch.Tensor = self.out_proj(self.mix(self.in_proj(hidden), self.ba_proj(hidden), batch, state))
        return out

    def mix(self, projected: torch.Tensor, ba: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """What lies between the projections: their rows to (T, H · V) in their dtype."""
        spec = self.spec
        qkv, gate = torch.split(projected, [spec.conv_width, spec.value_width], 1)
        query, key, value = self._heads(self.conv1d(qkv, batch, state["conv_state"]))
        beta, log_decay = self.gates(ba)
        inputs, out = (query, key, value, beta, log_decay), torch.empty_like(value)
        out = run_recurrence(batch, out, [state["delta_state"]], inputs, delta_step, delta_scan)
        normed: torch.Tensor = self.norm(out.flatten(1), gate)
        return normed

    def _heads(self, convolved: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(T, C) float32 to normalised queries, scaled, and keys (T, H, P), and values (T, H, V)."""
        spec = self.spec
        query, key, value = torch.split(convolved, [spec.key_width, spec.key_width, spec.value_width], 1)
        repeats = spec.num_value_heads // spec.num_key_heads
        query, key = (unit(part.view(-1, spec.num_key_heads, spec.key_head_dim)) for part in (query, key))
        query = query * spec.key_head_dim**-0.5
        if repeats > 1:
            query, key = (part.repeat_interleave(repeats, 1) for part in (query, key))
        return query, key, value.view(-1, spec.num_value_heads, spec.value_head_dim)

    def gates(self, ba: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(T, 2H) to how much of the new value is written, and the logarithm of the decay; (T, H) float32."""
        b, a = ba.float().chunk(2, 1)
        beta = b.sigmoid()
        if self.spec.beta_scale != 1.0:
            beta = beta * self.spec.beta_scale
        return beta, functional.softplus(a + self.dt_bias.float()) * self.decay_rates()


def unit(vectors: torch.Tensor) -> torch.Tensor:
    """The vectors along the last axis at length 1."""
    return vectors * torch.rsqrt(vectors.square().sum(-1, keepdim=True) + NORM_EPS)


def delta_step(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, beta: torch.Tensor, log_decay: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """One row of each sequence: S = e^g S; S += kᵀ β (v - k S); o = q S.

    Args:
        query, key: (B, H, P) float32.
        value: (B, H, V).
        beta: (B, H).
        log_decay: (B, H), or (B, H, P): one for each key channel.
        state: (B, H, P, V), advanced in place.

    Returns:
        (B, H, V).
    """
    state.mul_(log_decay.exp().view(*beta.shape, -1, 1))
    held = (state * key.unsqueeze(-1)).sum(-2)
    written = (value - held) * beta.unsqueeze(-1)
    state.addcmul_(key.unsqueeze(-1), written.unsqueeze(-2))
    return (state * query.unsqueeze(-1)).sum(-2)


def delta_scan(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, beta: torch.Tensor, log_decay: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Rows of one sequence in their order.

    Args:
        query, key: (n, H, P) float32.
        value: (n, H, V).
        beta, log_decay: (n, H).
        state: (H, P, V), advanced in place.

    Returns:
        (n, H, V).
    """
    return scan_in_pieces(_scan_piece, CHUNK, (query, key, value, beta, log_decay), state)


def scan_in_pieces(
    scan_piece: Callable[..., torch.Tensor], size: int, inputs: Sequence[torch.Tensor], state: torch.Tensor
) -> torch.Tensor:
    """``scan_piece`` of up to ``size`` rows, (H, n, …) of each input, one after the other; (n, H, V)."""
    parts = []
    for start in range(0, inputs[0].shape[0], size):
        rows = slice(start, start + size)
        parts.append(scan_piece(*(part[rows].transpose(0, 1) for part in inputs), state))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _scan_piece(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, beta: torch.Tensor, log_decay: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """``delta_scan`` of at most ``CHUNK`` rows, heads first.

    Row i writes d_i = β_i (v_i - k_i S), where S is the state before it: what was there before the piece, and the rows
    j < i, each faded by e^(γ_i - γ_j), γ being the running sum of g. So (I + A) d = β (v - e^γ k S_0) with
    A_ij = β_i e^(γ_i - γ_j) k_i · k_j below the diagonal, which is solved from the top.
    """
    count = query.shape[1]
    # In float64: the differences of sums of strong decays keep their digits.
    total = log_decay.clamp(min=LEAST_LOG_DECAY).double().cumsum(1)
    fade = (total.unsqueeze(2) - total.unsqueeze(1)).tril().exp().tril().float()
    below = (key @ key.transpose(1, 2) * fade * beta.unsqueeze(2)).tril(-1)
    faded = total.exp().unsqueeze(2).float()
    target = beta.unsqueeze(2) * (value - faded * (key @ state))
    identity = torch.eye(count, dtype=below.dtype, device=below.device)
    written: torch.Tensor = torch.linalg.solve_triangular(below + identity, target, upper=False, unitriangular=True)
    out: torch.Tensor = faded * (query @ state) + (query @ key.transpose(1, 2) * fade) @ written
    left = (total[:, -1:] - total).exp().unsqueeze(2).float()
    state.mul_(total[:, -1].exp().float()[:, None, None]).add_((key * left).transpose(1, 2) @ written)
    return out.transpose(0, 1)
