"""Mamba-1: selective state space layer with a state matrix per channel.

Source: Gu and Dao 2023, https://arxiv.org/abs/2312.00752, section 3 and algorithm 2; inner norms as in
Jamba, https://arxiv.org/abs/2403.19887; growing, bounded state as in the oxidizr trainer; heads as in Zamba,
https://arxiv.org/abs/2405.16712, section 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.conv import CausalConv1d
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.norm import Norm
from inference.modelling.layers.recurrent import RecurrentMixer, run_recurrence
from inference.modelling.layers.scan import selective_scan, selective_step
from inference.modelling.specs.layers import Mamba1Spec

STEADY_ROWS = 8
"""Fewer rows are multiplied by other kernels of the library, whose sums differ in the last bit with the number of rows.
Quantised activations behind them turn that into whole codes, and a request's text would depend on its neighbours."""


class StepProjection(Layer):
    """``dt_proj``: product in the weights' dtype, its bias (which sets the time scales) in float32.

    No ``Linear``: the weight is a few columns wide, and what packing does to a bias would round the time scales.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"bias"})

    def __init__(self, rank: int, width: int, num_heads: int = 1) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.weight = nn.Parameter(torch.empty(width, rank), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(width), requires_grad=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(T, H · rank) to (T, I), without the bias."""
        if self.num_heads == 1:
            return functional.linear(with_steady_rows(hidden), self.weight)[: len(hidden)]
        return multiply_by_head(hidden, self.weight.view(self.num_heads, -1, self.weight.shape[1]))


class HeadProjection(Layer):
    """y = W x for each head alone, without a bias.

    Args:
        num_heads: H.
        width: Values of a head that come in.
        rows: Values of a head that go out.
    """

    def __init__(self, num_heads: int, width: int, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, rows, width), requires_grad=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(T, H · width) to (T, H · rows)."""
        return multiply_by_head(hidden, self.weight)


def multiply_by_head(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """(T, H · w) by (H, n, w) to (T, H · n)."""
    heads, rows, width = weight.shape
    by_head = with_steady_rows(hidden).reshape(-1, heads, width).transpose(0, 1)
    return torch.bmm(by_head, weight.transpose(1, 2)).transpose(0, 1).reshape(-1, heads * rows)[: len(hidden)]


def with_steady_rows(hidden: torch.Tensor) -> torch.Tensor:
    """(T, …) with zeros below, up to ``STEADY_ROWS`` rows on a CPU: a row's product is then the same beside others."""
    missing = STEADY_ROWS - len(hidden)
    if missing <= 0 or hidden.device.type != "cpu":
        return hidden
    return functional.pad(hidden, (0, 0, 0, missing))


class Mamba1Mixer(RecurrentMixer):
    """in_proj → (x, gate); x → convolution → (Δ, B, C) → recurrence; out_proj((y + D x) · silu(gate)).

    Args:
        spec: Sizes and rules.
        hidden_size: h.
    """

    def __init__(self, spec: Mamba1Spec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        inner, size = spec.intermediate_size, spec.state_size
        self.in_proj = Linear(hidden_size, 2 * inner, spec.proj_bias)
        self.conv1d = CausalConv1d(inner, spec.conv_kernel, bias=spec.conv_bias, activation=spec.activation)
        rows, heads = spec.dt_rank + 2 * size, spec.num_heads
        self.x_proj = Linear(inner, rows) if heads == 1 else HeadProjection(heads, inner // heads, rows)
        self.dt_proj = StepProjection(spec.dt_rank, inner, heads)
        self.A_log = nn.Parameter(torch.empty(inner, size), requires_grad=False)
        self.D = nn.Parameter(torch.empty(inner), requires_grad=False)
        self.out_proj = Linear(inner, hidden_size, spec.proj_bias)
        self.dt_norm = self.b_norm = self.c_norm = None
        if spec.inner_norm is not None:
            self.dt_norm = Norm(spec.inner_norm, spec.dt_rank)
            self.b_norm = Norm(spec.inner_norm, size)
            self.c_norm = Norm(spec.inner_norm, size)

    def compute_decay_rates(self) -> torch.Tensor:
        """(I, S): -exp(A_log), or +exp(-A_log) in the trainer's form."""
        stored = self.A_log.float()
        return (-stored).exp() if self.spec.positive_a else -stored.exp()

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to (T, h); the convolution tails and states of the batch's sequences advance."""
        x, gate = self.in_proj(hidden).chunk(2, 1)
        x = self.conv1d(x, batch, state["conv_state"])
        dt, b, c = self._step(x.to(hidden.dtype))
        out: torch.Tensor = self.out_proj(self.mix(x, dt, b, c, gate, batch, state))
        return out

    def mix(
        self, x: torch.Tensor, dt: torch.Tensor, b: torch.Tensor, c: torch.Tensor, gate: torch.Tensor,
        batch: ForwardBatch, state: LayerState,
    ) -> torch.Tensor:  # fmt: skip
        """Step sizes, recurrence and gate: what lies between the projections.

        Args:
            x: (T, I) float32, convolved.
            dt: (T, I), ``dt_proj``'s product.
            b, c: (T, H · S).
            gate: (T, I).
            batch: The step.
            state: Advances.

        Returns:
            (T, I) in the gate's dtype.
        """
        delta = self.step_sizes(dt)
        b, c = b.float(), c.float()
        a, limit, heads = self.decay_rates(), self.spec.state_clamp, self.spec.num_heads
        y = run_recurrence(
            batch,
            torch.empty_like(x),
            [state["ssm_state"]],
            (x, delta, b, c),
            lambda x, delta, b, c, entries: _by_head(selective_step, heads, x, delta, a, b, c, entries, limit),
            lambda x, delta, b, c, entry: _by_head(selective_scan, heads, x, delta, a, b, c, entry, limit),
        )
        y = y.addcmul_(x, self.D.float()) * functional.silu(gate.float())
        return y.to(gate.dtype)

    def step_sizes(self, dt: torch.Tensor) -> torch.Tensor:
        """(T, I) ``dt_proj``'s product to Δ, float32; the decay of a state is e^(Δ A)."""
        return functional.softplus(dt.float() + self.dt_proj.bias.float())

    def _step(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(T, I) to the step sizes before their bias (T, I), B and C (T, H · S)."""
        size, heads = self.spec.state_size, self.spec.num_heads
        projected = self.x_proj(x)
        if heads == 1:
            dt, b, c = projected.split([self.spec.dt_rank, size, size], 1)
        else:
            parts = projected.view(len(x), heads, -1).split([self.spec.dt_rank, size, size], 2)
            dt, b, c = (part.flatten(1) for part in parts)
        if self.dt_norm is not None and self.b_norm is not None and self.c_norm is not None:
            dt, b, c = self.dt_norm(dt), self.b_norm(b), self.c_norm(c)
        return self.dt_proj(dt), b, c


def _by_head(
    recurrence: Callable[..., torch.Tensor], num_heads: int, x: torch.Tensor, delta: torch.Tensor, a: torch.Tensor,
    b: torch.Tensor, c: torch.Tensor, state: torch.Tensor, limit: float | None,
) -> torch.Tensor:  # fmt: skip
    """``selective_step`` or ``selective_scan`` of each head's channels, with B and C of its own."""
    if num_heads == 1:
        return recurrence(x, delta, a, b, c, state, limit)
    parts = zip(
        *(part.chunk(num_heads, 1) for part in (x, delta)),
        a.chunk(num_heads),
        *(part.chunk(num_heads, 1) for part in (b, c)),
        state.chunk(num_heads, -2),
        strict=True,
    )
    return torch.cat([recurrence(*part, limit) for part in parts], 1)
