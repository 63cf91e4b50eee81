"""TimeMix and ChannelMix: the two mixers of an RWKV-4 layer, whose sums of weights are kept in the log domain.

Source: Peng et al. 2023, https://arxiv.org/abs/2305.13048, section 3 and appendix D for the stable form.

Shape letters: T rows, B decoding sequences, n rows of a chunk, h hidden, A channels.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from inference.modelling.forward_batch import ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.recurrent import run_batch, slot_state
from inference.modelling.specs.rwkv import ChannelMixSpec, TimeMixSpec

NOTHING = -1e38
"""Exponent of the weights before the first token: e to it is 0 beside any key's."""


def _vector(width: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(width), requires_grad=False)


def previous_rows(rows: torch.Tensor, batch: ForwardBatch, pool: torch.Tensor) -> torch.Tensor:
    """The row of the token before each row's; zeros before a sequence's first.

    Args:
        rows: (T, h).
        batch: The step.
        pool: (slots, h), the last row of each sequence, which the batch's last rows replace.

    Returns:
        (T, h) in the rows' dtype.
    """

    def decode(chosen: slice, slots: torch.Tensor) -> torch.Tensor:
        before = pool.index_select(0, slots)
        pool.index_copy_(0, slots, rows[chosen].to(pool.dtype))
        return before.to(rows.dtype)

    def prefill(chosen: slice, chunk: PrefillChunk) -> torch.Tensor:
        last = slot_state(pool, chunk)
        before = torch.cat((last.to(rows.dtype).unsqueeze(0), rows[chosen][:-1]))
        last.copy_(rows[chosen][-1])
        return before

    return run_batch(batch, torch.empty_like(rows), decode, prefill)


class TokenShift(Layer):
    """A layer whose inputs are each token's row mixed with the row before it, by shares that are its parameters."""

    shares: ClassVar[tuple[str, ...]]
    """Names of the parameters (h,), in the order in which ``shift`` gives the rows."""

    def __init__(self) -> None:
        super().__init__()
        self._stacked: tuple[nn.Parameter, torch.Tensor] | None = None

    def stacked_shares(self) -> torch.Tensor:
        """(n, h) float32, made at the first call: the weights don't change after the load."""
        cached, first = self._stacked, getattr(self, self.shares[0])
        if cached is None or cached[0] is not first or cached[1].device != first.device:
            cached = (first, torch.stack([getattr(self, name) for name in self.shares]))
            self._stacked = cached
        return cached[1]

    def shift(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> tuple[torch.Tensor, ...]:
        """(T, h) to share · row + (1 - share) · row before for each share; the sequences' last rows advance."""
        before = previous_rows(hidden, batch, state["shift_state"]).float()
        rows = hidden.float()
        return tuple(torch.lerp(before, rows, getattr(self, name)).to(hidden.dtype) for name in self.shares)


class TimeMix(TokenShift):
    """out_proj(sigmoid(r) · wkv): wkv is the mean of the values so far with weights of keys, decays and ages.

    Args:
        spec: Sizes.
        hidden_size: h.
    """

    shares = ("key_mix", "value_mix", "receptance_mix")
    float32_parameters: ClassVar[frozenset[str]] = frozenset({*shares, "decay", "bonus"})

    def __init__(self, spec: TimeMixSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.key_mix, self.value_mix, self.receptance_mix = (_vector(hidden_size) for _ in range(3))
        self.key_proj = Linear(hidden_size, spec.width)
        self.value_proj = Linear(hidden_size, spec.width)
        self.receptance_proj = Linear(hidden_size, spec.width)
        self.decay, self.bonus = _vector(spec.width), _vector(spec.width)
        self.out_proj = Linear(spec.width, hidden_size)

        self._log_decays: tuple[nn.Parameter, torch.Tensor] | None = None

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to (T, h); the last rows and the sums of the batch's sequences advance."""
        key, value, receptance = self.shift(hidden, batch, state)
        projected = self.key_proj(key), self.value_proj(value), self.receptance_proj(receptance)
        out: torch.Tensor = self.out_proj(self.mix(*projected, batch, state))
        return out

    def log_decays(self) -> torch.Tensor:
        """(A,) logarithms of the decays, which depend on no input and are computed at the first call."""
        cached = self._log_decays
        if cached is None or cached[0] is not self.decay or cached[1].device != self.decay.device:
            cached = (self.decay, -self.decay.exp())
            self._log_decays = cached
        return cached[1]

    def mix(
        self, key: torch.Tensor, value: torch.Tensor, receptance: torch.Tensor, batch: ForwardBatch, state: LayerState
    ) -> torch.Tensor:
        """(T, A) each to sigmoid(r) · wkv, (T, A) of the same dtype."""
        mean = self.recur(key.float(), value.float(), batch, state)
        return receptance.sigmoid() * mean.to(receptance.dtype)

    def recur(self, key: torch.Tensor, value: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, A) float32 keys and values to wkv, (T, A)."""
        log_decay = self.log_decays()
        pools = [state[name] for name in ("wkv_state", "weight_state", "max_state")]

        def decode(rows: slice, slots: torch.Tensor) -> torch.Tensor:
            entries = [pool.index_select(0, slots) for pool in pools]
            mixed = wkv_step(key[rows], value[rows], log_decay, self.bonus, *entries)
            for pool, entry in zip(pools, entries, strict=True):
                pool.index_copy_(0, slots, entry)
            return mixed

        def prefill(rows: slice, chunk: PrefillChunk) -> torch.Tensor:
            entries = [slot_state(pool, chunk) for pool in pools]
            if not chunk.context_len:
                entries[2].fill_(NOTHING)
            chosen = zip(key[rows], value[rows], strict=True)
            return torch.stack([wkv_step(k, v, log_decay, self.bonus, *entries) for k, v in chosen])

        return run_batch(batch, torch.empty_like(key), decode, prefill)


def wkv_step(
    key: torch.Tensor, value: torch.Tensor, log_decay: torch.Tensor, bonus: torch.Tensor,
    total: torch.Tensor, weight: torch.Tensor, peak: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """(e^m s + e^(u + k) v) / (e^m z + e^(u + k)); then s, z and m take the token in, behind one decay.

    Args:
        key, value: (…, A) float32, one row of each sequence.
        log_decay: (A,), below 0.
        bonus: (A,) u.
        total, weight, peak: (…, A) s, z and m, advanced in place.

    Returns:
        (…, A).
    """
    now = key + bonus
    highest = torch.maximum(peak, now)
    earlier, own = (peak - highest).exp(), (now - highest).exp()
    mixed = (earlier * total + own * value) / (earlier * weight + own)
    decayed = peak + log_decay
    torch.maximum(decayed, key, out=peak)
    kept, written = (decayed - peak).exp(), (key - peak).exp()
    total.mul_(kept).addcmul_(written, value)
    weight.mul_(kept).add_(written)
    return mixed


class ChannelMix(TokenShift):
    """sigmoid(receptance_proj r) · down_proj(relu(up_proj k)²), with k and r between a row and the one before.

    Args:
        spec: Sizes.
        hidden_size: h.
    """

    shares = ("key_mix", "receptance_mix")
    float32_parameters: ClassVar[frozenset[str]] = frozenset(shares)

    def __init__(self, spec: ChannelMixSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.key_mix, self.receptance_mix = _vector(hidden_size), _vector(hidden_size)
        self.up_proj = Linear(hidden_size, spec.intermediate_size)
        self.receptance_proj = Linear(hidden_size, hidden_size)
        self.down_proj = Linear(spec.intermediate_size, hidden_size)

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to (T, h); the last rows of the batch's sequences advance."""
        key, receptance = self.shift(hidden, batch, state)
        values = self.down_proj(self.up_proj(key).relu().square())
        return self.gate(self.receptance_proj(receptance), values)

    def gate(self, receptance: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """(T, h) each to sigmoid(receptance) · values."""
        return receptance.sigmoid() * values
