"""What the Mamba layers share: rates from parameters, step sizes, the gated norm, and the way through a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.forward_batch import ForwardBatch, PrefillChunk
from inference.modelling.layers.layer import Layer
from inference.modelling.specs.parts import NormSpec

Decode = Callable[[slice, torch.Tensor], torch.Tensor]
Prefill = Callable[[slice, PrefillChunk], torch.Tensor]


class RecurrentMixer(Layer):
    """A token mixer with an ``A_log``. What goes through the recurrence stays float32 whatever the weights are."""

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"A_log", "D", "dt_bias", "b_bias", "c_bias"})
    A_log: nn.Parameter

    def __init__(self) -> None:
        super().__init__()
        self._rates: tuple[nn.Parameter, torch.Tensor] | None = None

    @abstractmethod
    def compute_decay_rates(self) -> torch.Tensor:
        """A, from ``A_log``."""

    def decay_rates(self) -> torch.Tensor:
        """A in float32, computed at the first call: the weights don't change after the load."""
        cached = self._rates
        if cached is None or cached[0] is not self.A_log or cached[1].device != self.A_log.device:
            cached = (self.A_log, self.compute_decay_rates())
            self._rates = cached
        return cached[1]


def head_decay_rates(
    a_log: torch.Tensor, clamp: tuple[float, float] | None, override: str | None = None
) -> torch.Tensor:
    """(H,) A = -exp(A_log), exp(A_log) within ``clamp``; or -(1, 2, …, H) if the operator chose so."""
    if override is not None:
        assert override == "-(1..H)", override
        return -torch.arange(1, a_log.shape[0] + 1, dtype=torch.float32, device=a_log.device)
    rates = a_log.float().exp()
    return -(rates if clamp is None else rates.clamp(*clamp))


def step_sizes(dt: torch.Tensor, bias: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """(T, H) Δ = softplus(dt + bias) within [low, high], float32."""
    delta = functional.softplus(dt.float() + bias.float())
    return delta.clamp_(low, high)


def run_batch(batch: ForwardBatch, out: torch.Tensor, decode: Decode, prefill: Prefill) -> torch.Tensor:
    """The batch's rows (T, …), put into ``out``: the decoding ones by one call, the prefill chunks one by one.

    Args:
        batch: The step.
        out: Room for the rows; a batch that only decodes needs none.
        decode: (rows, state slots) to the values of the decoding rows.
        prefill: (rows, chunk) to the values of a chunk's rows.
    """
    rows = slice(0, batch.num_decodes)
    if not batch.prefills:
        return decode(rows, batch.decode_state_slots)
    if batch.num_decodes:
        out[rows] = decode(rows, batch.decode_state_slots)
    for chunk in batch.prefills:
        rows = slice(chunk.start, chunk.stop)
        out[rows] = prefill(rows, chunk)
    return out


def run_recurrence(
    batch: ForwardBatch,
    out: torch.Tensor,
    pools: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    step: Callable[..., torch.Tensor],
    scan: Callable[..., torch.Tensor],
) -> torch.Tensor:
    """``run_batch`` of a recurrence that is a function of rows and states alone.

    Args:
        batch: The step.
        out: As in ``run_batch``.
        pools: The layer's state tensors (slots, …), advanced.
        inputs: (T, …) each; rows of them are the first arguments of ``step`` and ``scan``.
        step: One row of each decoding sequence, then each state tensor (B, …), advanced in place.
        scan: A chunk's rows, then the entry of each state tensor (…), advanced in place.
    """

    def decode(rows: slice, slots: torch.Tensor) -> torch.Tensor:
        entries = [pool.index_select(0, slots) for pool in pools]
        values = step(*(part[rows] for part in inputs), *entries)
        for pool, entry in zip(pools, entries, strict=True):
            pool.index_copy_(0, slots, entry)
        return values

    def prefill(rows: slice, chunk: PrefillChunk) -> torch.Tensor:
        return scan(*(part[rows] for part in inputs), *(slot_state(pool, chunk) for pool in pools))

    return run_batch(batch, out, decode, prefill)


def slot_state(pool: torch.Tensor, chunk: PrefillChunk) -> torch.Tensor:
    """The chunk's entry of a state tensor, a view; zeroed when the sequence starts here."""
    entry = pool[chunk.state_slot]
    return entry if chunk.context_len else entry.zero_()


class GatedNorm(Layer):
    """norm(y · silu(gate)) · w, or norm(y) · w · silu(gate), over groups of the last axis; float32 throughout.

    Args:
        spec: An RMS norm; None: y · silu(gate) alone.
        width: I.
        group_size: Values that share their mean square; divides I.
        norm_before_gate: The second form.
        gate: The function of the gate; sigmoid in place of silu (Kimi Linear).
        num_heads: How often the weight repeats itself: the values have ``num_heads`` · ``width``.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"weight"})

    def __init__(
        self,
        spec: NormSpec | None,
        width: int,
        group_size: int,
        *,
        norm_before_gate: bool = False,
        num_heads: int = 1,
        gate: Literal["silu", "sigmoid"] = "silu",
    ) -> None:
        super().__init__()
        assert spec is None or spec.kind == "rms", "a gated norm is an RMS norm"
        assert gate == "silu" or (spec is not None and norm_before_gate), "a sigmoid comes behind the norm"
        self.spec = spec
        self.group_size = group_size
        self.norm_before_gate = norm_before_gate
        self.gate = gate
        self._num_heads = num_heads
        self._repeated: tuple[nn.Parameter, torch.Tensor] | None = None
        has_weight = spec is not None and not spec.weightless
        self.weight = nn.Parameter(torch.empty(width), requires_grad=False) if has_weight else None

    def forward(self, values: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """(T, I) float32 and its gate to (T, I) in the gate's dtype."""
        return self.normalise(values, gate)

    def normalise(self, values: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """(T, I) float32 and its gate to (T, I) in the gate's dtype."""
        factor = functional.silu(gate.float()) if self.gate == "silu" else gate.float().sigmoid()
        if self.spec is None:
            normed = values * factor
        elif self.norm_before_gate:
            normed = self._norm(values, self.spec) * factor
        else:
            normed = self._norm(values * factor, self.spec)
        return normed.to(gate.dtype)

    def _norm(self, values: torch.Tensor, spec: NormSpec) -> torch.Tensor:
        grouped = values.view(values.shape[0], -1, self.group_size)
        scale = torch.rsqrt(grouped.square().mean(-1, keepdim=True) + spec.eps)
        normed = (grouped * scale).view_as(values)
        if self.weight is None:
            return normed
        weight = self.repeated_weight()
        return normed * (weight + spec.offset if spec.offset else weight)

    def repeated_weight(self) -> torch.Tensor:
        """(num_heads · I,) float32, computed at the first call: the weight doesn't change after the load."""
        assert self.weight is not None
        if self._num_heads == 1:
            return self.weight.float()
        if self._repeated is None or self._repeated[0] is not self.weight:
            self._repeated = (self.weight, self.weight.float().repeat(self._num_heads))
        return self._repeated[1]
