"""MLSTM: xLSTM's layer with a matrix as its memory, exponential input gates and a running maximum of their exponents.

Source: Beck et al. 2024, https://arxiv.org/abs/2405.04517, equations 19 to 27, and appendix A.3 for the form in chunks.

Shape letters: T rows, B decoding sequences, n rows of a chunk, H heads, P width of a key, V width of a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.recurrent import run_recurrence
from inference.modelling.specs.linear import MLSTMSpec

CHUNK = 64
"""Rows whose products with each other are computed as matrices."""
STATES = ("memory_state", "norm_state", "max_state")


class HeadNorm(Layer):
    """A layer norm of each head's values without bias, float32.

    Args:
        num_heads, width: Heads and their widths.
        eps: Added to the variance.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"weight"})

    def __init__(self, num_heads: int, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(num_heads * width), requires_grad=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """(T, H, V) to (T, H V)."""
        return functional.layer_norm(values, values.shape[-1:], eps=self.eps).flatten(1) * self.weight


class MLSTM(Layer):
    """out_proj(σ(gate) · norm(o)), with o from q, k, v and the gates i and f of each head.

    Args:
        spec: Sizes and caps.
        hidden_size: h.
    """

    def __init__(self, spec: MLSTMSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.in_proj = Linear(hidden_size, 2 * spec.key_width + 2 * spec.value_width)
        self.gates = Linear(hidden_size, 2 * spec.num_heads, bias=True)
        self.norm = HeadNorm(spec.num_heads, spec.value_head_dim, spec.norm_eps)
        self.out_proj = Linear(spec.value_width, hidden_size)

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to (T, h); the states of the batch's sequences advance."""
        out: torch.Tensor = self.out_proj(self.mix(self.in_proj(hidden), self.gates(hidden), batch, state))
        return out

    def gate_values(self, gates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(T, 2 H) to the input gate and the logarithm of the decay; (T, H) float32."""
        cap = self.spec.gate_cap
        write, keep = (cap * torch.tanh(gates.float() / cap)).chunk(2, 1)
        return write, functional.logsigmoid(keep)

    def mix(self, projected: torch.Tensor, gates: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """Rows of ``in_proj`` and (T, 2 H) gates to σ(gate) · norm(o), (T, H V) of the rows' dtype."""
        spec = self.spec
        qkv, gate = torch.split(projected, [2 * spec.key_width + spec.value_width, spec.value_width], 1)
        mixed: torch.Tensor = self.norm(self.recur(qkv, gates, batch, state))
        return gate.sigmoid() * mixed.to(gate.dtype)

    def recur(self, qkv: torch.Tensor, gates: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, 2 H P + H V) and (T, 2 H) to (T, H, V) float32."""
        spec = self.spec
        query, key, value = torch.split(qkv.float(), [spec.key_width, spec.key_width, spec.value_width], 1)
        query, key = (part.reshape(-1, spec.num_heads, spec.key_head_dim) for part in (query, key))
        value = value.reshape(-1, spec.num_heads, spec.value_head_dim)
        query = query * spec.key_head_dim**-0.5
        write, log_keep = self.gate_values(gates)
        pools = [state[name] for name in STATES]
        return run_recurrence(
            batch,
            torch.empty_like(value),
            pools,
            (query, key, value, write, log_keep),
            lambda q, k, v, w, keep, *entries: mlstm_step(q, k, v, w, keep, entries, spec.eps),
            lambda q, k, v, w, keep, *entries: mlstm_scan(q, k, v, w, keep, entries, spec.eps),
        )


def mlstm_step(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, write: torch.Tensor, log_keep: torch.Tensor,
    states: Sequence[torch.Tensor], eps: float,
) -> torch.Tensor:  # fmt: skip
    """One row of each sequence: C = f C + i kᵀ v, n = f n + i k, o = q C / max(|q · n|, 1), gates over e^m.

    Args:
        query, key: (B, H, P) float32, queries scaled.
        value: (B, H, V).
        write, log_keep: (B, H), the exponents of the input gate and of the forget gate.
        states: C (B, H, P, V), n (B, H, P) and m (B, H), advanced in place.
        eps: Added to the divisor.

    Returns:
        (B, H, V).
    """
    memory, total, peak = states
    before = log_keep + peak
    torch.maximum(before, write, out=peak)
    keeps, writes = (before - peak).exp().unsqueeze(2), (write - peak).exp().unsqueeze(2)
    written = writes * key
    memory.mul_(keeps.unsqueeze(3)).addcmul_(written.unsqueeze(3), value.unsqueeze(2))
    total.mul_(keeps).add_(written)
    divisor = torch.maximum((query * total).sum(2).abs(), (-peak).exp()) + eps
    return (memory * query.unsqueeze(3)).sum(2) / divisor.unsqueeze(2)


def mlstm_scan(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, write: torch.Tensor, log_keep: torch.Tensor,
    states: Sequence[torch.Tensor], eps: float,
) -> torch.Tensor:  # fmt: skip
    """Rows of one sequence in their order: arguments as of ``mlstm_step``, with n rows and the states of one sequence.

    Returns:
        (n, H, V).
    """
    parts = []
    for start in range(0, query.shape[0], CHUNK):
        rows = slice(start, start + CHUNK)
        q, k, v, i, f = (part[rows].transpose(0, 1) for part in (query, key, value, write, log_keep))
        parts.append(_scan_piece(q, k, v, i, f, states, eps))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _scan_piece(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, write: torch.Tensor, log_keep: torch.Tensor,
    states: Sequence[torch.Tensor], eps: float,
) -> torch.Tensor:  # fmt: skip
    """``mlstm_scan`` of at most ``CHUNK`` rows, heads first.

    With F the running sum of the forget gate's exponents, what row j wrote has the exponent F_t - F_j + i_j at row t,
    and what was there before F_t + m.
    """
    memory, total, before = states
    sums = log_keep.double().cumsum(1)  # in float64: their differences keep their digits
    within = sums.unsqueeze(2) - sums.unsqueeze(1) + write.double().unsqueeze(1)
    future = torch.ones(within.shape[1:], dtype=torch.bool, device=within.device).triu_(1)
    within = within.masked_fill_(future, -torch.inf)
    earlier = sums + before.double().unsqueeze(1)
    peak = torch.maximum(within.amax(2), earlier)  # (H, n)
    shares = (within - peak.unsqueeze(2)).exp().float()
    carried = (earlier - peak).exp().float().unsqueeze(2)
    scores = query @ key.transpose(1, 2) * shares
    mixed = scores @ value + carried * (query @ memory)
    products = scores.sum(2) + carried.squeeze(2) * (query @ total.unsqueeze(2)).squeeze(2)
    divisor = torch.maximum(products.abs(), (-peak).exp().float()) + eps
    written = shares[:, -1].unsqueeze(2) * key
    memory.mul_(carried[:, -1:]).add_(written.transpose(1, 2) @ value)
    total.mul_(carried[:, -1]).add_(written.sum(1))
    before.copy_(peak[:, -1])
    return (mixed / divisor.unsqueeze(2)).transpose(0, 1)
