"""RGLRU: Griffin's recurrent block, a linear recurrence on each channel whose decay the input sets.

Source: De et al. 2024, https://arxiv.org/abs/2402.19427, section 2.4.

Shape letters: T rows, W channels, B blocks of the gates' matrices, w = W / B.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.forward_batch import ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers.conv import CausalConv1d
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.mlp import ACTIVATION_FUNCTIONS
from inference.modelling.layers.recurrent import run_batch, slot_state
from inference.modelling.specs.linear import RGLRUSpec

EXPONENT = 8.0
"""The decay of a channel at its strongest is e^(-8 softplus(Λ))."""


class BlockDiagonal(Layer):
    """x W + b with a W of B blocks, stored (B, w, w): input by output.

    Args:
        num_blocks: B.
        width: w.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"weight", "bias"})

    def __init__(self, num_blocks: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_blocks, width, width), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(num_blocks, width), requires_grad=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """(T, W) float32 to the same shape."""
        count, (blocks, width) = values.shape[0], self.bias.shape
        rows = values.view(count, blocks, width).transpose(0, 1)
        return torch.baddbmm(self.bias.unsqueeze(1), rows, self.weight).transpose(0, 1).reshape(count, -1)


class RGLRU(Layer):
    """out_proj(act(y) · s), s_t = a_t s_{t-1} + sqrt(1 - a_t²) i_t x_t, with x through the convolution.

    Args:
        spec: Sizes.
        hidden_size: h.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"decay"})

    def __init__(self, spec: RGLRUSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        width = spec.width
        self.in_proj = Linear(hidden_size, 2 * width, bias=True)
        self.conv1d = CausalConv1d(width, spec.conv_kernel, bias=True, activation=None)
        self.input_gate = BlockDiagonal(spec.num_blocks, width // spec.num_blocks)
        self.decay_gate = BlockDiagonal(spec.num_blocks, width // spec.num_blocks)
        self.decay = nn.Parameter(torch.empty(width), requires_grad=False)
        self.out_proj = Linear(width, hidden_size, bias=True)
        self._strengths: tuple[nn.Parameter, torch.Tensor] | None = None

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to (T, h); the convolution tails and states of the batch's sequences advance."""
        out: torch.Tensor = self.out_proj(self.mix(self.in_proj(hidden), batch, state))
        return out

    def strengths(self) -> torch.Tensor:
        """(W,) logarithms of the channels' strongest decays, computed at the first call: Λ doesn't change later."""
        cached = self._strengths
        if cached is None or cached[0] is not self.decay or cached[1].device != self.decay.device:
            cached = (self.decay, -EXPONENT * functional.softplus(self.decay))
            self._strengths = cached
        return cached[1]

    def log_decays(self, values: torch.Tensor) -> torch.Tensor:
        """(T, W) float32 behind the convolution to the logarithms of the decays."""
        gate: torch.Tensor = self.decay_gate(values)
        return gate.sigmoid() * self.strengths()

    def mix(self, projected: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, 2 W) rows of ``in_proj`` to (T, W) of the same dtype: act(y) · s."""
        gate, rows = projected.chunk(2, 1)
        values = self.conv1d(rows, batch, state["conv_state"])
        mixed = self.recur(values, batch, state)
        return ACTIVATION_FUNCTIONS[self.spec.activation](gate) * mixed.to(gate.dtype)

    def recur(self, values: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, W) float32 behind the convolution to s, (T, W)."""
        log_decay = self.log_decays(values)
        entering = values * self.input_gate(values).sigmoid()
        scaled = entering * torch.sqrt(1.0 - torch.exp(2.0 * log_decay))
        decay, pool = log_decay.exp(), state["lru_state"]

        def decode(rows: slice, slots: torch.Tensor) -> torch.Tensor:
            entries = torch.addcmul(scaled[rows], pool.index_select(0, slots), decay[rows])
            pool.index_copy_(0, slots, entries)
            return entries

        def prefill(rows: slice, chunk: PrefillChunk) -> torch.Tensor:
            # A sequence's first input enters as a whole.
            first = scaled if chunk.context_len else entering
            return lru_scan(torch.cat((first[rows][:1], scaled[rows][1:])), decay[rows], slot_state(pool, chunk))

        return run_batch(batch, torch.empty_like(values), decode, prefill)


def lru_scan(values: torch.Tensor, decay: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """s_t = a_t s_{t-1} + x_t, row by row.

    Args:
        values: x, (n, W) float32.
        decay: a, (n, W).
        state: (W,), advanced in place.

    Returns:
        s, (n, W).
    """
    out = torch.empty_like(values)
    before = state
    for row in range(len(values)):
        torch.addcmul(values[row], before, decay[row], out=out[row])
        before = out[row]
    state.copy_(before)
    return out
