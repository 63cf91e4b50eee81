"""oxidizr's Mamba-3: trapezoidal recurrence, complex rotation of B and C, and several inputs per head.

Differences to Mamba-2: each token enters the state twice (at its own step and at the next), B and C
are normed, biased per head and rotated by a running angle, the convolution is optional, and with
``mimo_rank`` R the head's input is expanded from P to P·R before the recurrence and brought back after it.

Source: the oxidizr trainer's layer as defined (its recurrence, not its chunked approximation); the
ideas are those of Lahoti et al., "Mamba-3: Improved Sequence Modeling using State Space Principles".
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.forward_batch import ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers.conv import CausalConv1d
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.norm import Norm
from inference.modelling.layers.recurrent import (
    GatedNorm,
    RecurrentMixer,
    head_decay_rates,
    run_batch,
    run_recurrence,
    slot_state,
    step_sizes,
)
from inference.modelling.layers.scan import trapezoidal_scan, trapezoidal_step
from inference.modelling.specs.linear import Mamba3Spec


class Mamba3Mixer(RecurrentMixer):
    """in_proj → (gate, x, B, C, dt) → recurrence → out_proj(gated norm(y + D x)).

    Args:
        spec: Sizes and rules.
        hidden_size: h.
    """

    def __init__(self, spec: Mamba3Spec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        inner, heads, size = spec.intermediate_size, spec.num_heads, spec.state_size
        self.in_proj = Linear(hidden_size, inner + spec.conv_width + heads, bias=True)
        self.lambda_proj = Linear(hidden_size, heads, bias=True)
        self.b_bias = nn.Parameter(torch.empty(heads, size), requires_grad=False)
        self.c_bias = nn.Parameter(torch.empty(heads, size), requires_grad=False)
        self.dt_bias = nn.Parameter(torch.empty(heads), requires_grad=False)
        self.A_log = nn.Parameter(torch.empty(heads), requires_grad=False)
        self.D = nn.Parameter(torch.empty(heads), requires_grad=False)
        assert spec.bc_norm.kind == "rms" and not spec.bc_norm.offset, "B and C have a plain RMS norm"
        self.bc_norm = Norm(spec.bc_norm, size)
        self.norm = GatedNorm(spec.gated_norm, inner, inner)
        self.theta_proj = Linear(hidden_size, heads * size // 2, bias=True) if spec.complex_rope else None
        self.conv1d = None
        if spec.conv_kernel is not None:
            self.conv1d = CausalConv1d(spec.conv_width, spec.conv_kernel, bias=True, activation="silu")
        self.mimo_x_up = self.mimo_x_down = None
        if spec.mimo_rank > 0:
            self.mimo_x_up = Linear(spec.head_dim, spec.state_head_dim, bias=True)
            self.mimo_x_down = Linear(spec.state_head_dim, spec.head_dim, bias=True)
        self.out_proj = Linear(inner, hidden_size, bias=True)

    def compute_decay_rates(self) -> torch.Tensor:
        """(H,) A, negative."""
        return head_decay_rates(self.A_log, self.spec.a_clamp, self.spec.a_override)

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to (T, h); the states of the batch's sequences advance."""
        spec = self.spec
        gate, xbc, dt = self.in_proj(hidden).split([spec.intermediate_size, spec.conv_width, spec.num_heads], 1)
        y = self.mix(hidden, xbc, dt, batch, state)
        if self.mimo_x_down is not None:
            y = self.mimo_x_down(y.to(hidden.dtype)).float()
        out: torch.Tensor = self.out_proj(self.norm(y.flatten(1), gate))
        return out

    def mix(
        self, hidden: torch.Tensor, xbc: torch.Tensor, dt: torch.Tensor, batch: ForwardBatch, state: LayerState
    ) -> torch.Tensor:
        """The recurrence with its inputs and D.

        Args:
            hidden: (T, h).
            xbc, dt: (T, I + 2GS), (T, H), parts of ``in_proj``'s rows.
            batch: The step.
            state: Advances.

        Returns:
            (T, H, P · max(R, 1)) float32.
        """
        delta = step_sizes(dt, self.dt_bias, self.spec.dt_min, self.spec.dt_max)
        x, b, c = self._inputs(xbc, batch, state)
        if self.theta_proj is not None:
            turn = self.theta_proj(hidden).float().view(b.shape[0], self.spec.num_heads, -1) * delta.unsqueeze(2)
            angles = _running_angles(turn, batch, state["angle_state"])
            b, c = _rotate(b, c, angles)
        if self.mimo_x_up is not None:
            x = self.mimo_x_up(x.to(hidden.dtype)).float()
        y = self._recur(x, delta, self.lambda_proj(hidden).float().sigmoid(), b, c, batch, state)
        return y.addcmul_(x, self.D.float().unsqueeze(1))

    def _inputs(
        self, xbc: torch.Tensor, batch: ForwardBatch, state: LayerState
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x (T, H, P), normed and biased B and C (T, H, S), float32."""
        spec = self.spec
        rows, groups, size = xbc.shape[0], spec.num_groups, spec.state_size
        if self.conv1d is not None:
            xbc = self.conv1d(xbc, batch, state["conv_state"])
        x, b, c = torch.split(xbc.float(), [spec.intermediate_size, groups * size, groups * size], 1)
        if self.conv1d is None:
            x = functional.silu(x)
        # The norm sees single rows of length S, so it may come before the groups are repeated for their heads.
        per_head = (rows, groups, spec.num_heads // groups, size)
        expanded = [self.bc_norm(part.reshape(rows, groups, 1, size)).expand(per_head) for part in (b, c)]
        b, c = (part.reshape(rows, spec.num_heads, size) for part in expanded)
        return x.reshape(rows, spec.num_heads, spec.head_dim), b + self.b_bias.float(), c + self.c_bias.float()

    def log_decays(self, delta: torch.Tensor) -> torch.Tensor:
        """(T, H) step sizes to the logarithms of the decays."""
        return delta * self.decay_rates()

    def _recur(
        self,
        x: torch.Tensor,
        delta: torch.Tensor,
        share: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        batch: ForwardBatch,
        state: LayerState,
    ) -> torch.Tensor:
        log_decay = self.log_decays(delta)
        pools = [state["ssm_state"], state["x_state"], state["b_state"]]
        return run_recurrence(
            batch, torch.empty_like(x), pools, (x, delta, share, log_decay, b, c), trapezoidal_step, trapezoidal_scan
        )


def _running_angles(turn: torch.Tensor, batch: ForwardBatch, pool: torch.Tensor) -> torch.Tensor:
    """Angle of each row: the sum of all turns of its sequence so far.

    Sums are float64 and reduced to [0, 2π) before they are stored: a float32 that grows with the sequence
    would lose the digits that matter.

    Args:
        turn: (T, H, S/2) float32, this row's share.
        batch: The step.
        pool: (slots, H, S/2) float32, overwritten.

    Returns:
        (T, H, S/2) float32.
    """
    turn = turn.double()

    def decode(rows: slice, slots: torch.Tensor) -> torch.Tensor:
        angles = (pool.index_select(0, slots) + turn[rows]).remainder_(2 * math.pi).float()
        pool.index_copy_(0, slots, angles)
        return angles

    def prefill(rows: slice, chunk: PrefillChunk) -> torch.Tensor:
        entry = slot_state(pool, chunk)
        angles = turn[rows].cumsum(0).add_(entry).remainder_(2 * math.pi).float()
        entry.copy_(angles[-1])
        return angles

    return run_batch(batch, torch.empty_like(turn, dtype=torch.float32), decode, prefill)


def _rotate(b: torch.Tensor, c: torch.Tensor, angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """B and C (T, H, S) turned by ``angles`` (T, H, S/2) in adjacent pairs (2i, 2i+1)."""
    cos, sin = angles.cos(), angles.sin()

    def turned(values: torch.Tensor) -> torch.Tensor:
        first, second = values[..., 0::2], values[..., 1::2]
        return torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)

    return turned(b), turned(c)
