"""Compressor: pools the rows of every m tokens of a sequence to one entry; see ``CompressorSpec``.

A window's softmax is three numbers for each value: the greatest gate, and the sums of exp(gate - greatest), without and
with kv. They don't depend on where chunks end but for rounding, so that chunks and single tokens advance them alike.

Shape letters: T rows, B decoding sequences, L longest context among them, n rows of a chunk, c windows that it touches,
m tokens of a window, S series, D width of an entry, E entries.

Source: transformers' ``deepseek_v4``.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.forward_batch import ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers.attention import chunk_slots
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.norm import Norm
from inference.modelling.layers.rotary import rotary_embedding, rotate_last
from inference.modelling.specs.compressed import CompressorSpec


class Compressor(Layer):
    """Entries of a layer: ``update`` takes in a step's rows, ``decode_entries`` and ``chunk_entries`` read.

    Args:
        spec: Sizes.
        hidden_size: h.
        name: Start of the names of the state tensors.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"position_bias"})

    def __init__(self, spec: CompressorSpec, hidden_size: int, name: str) -> None:
        super().__init__()
        self.spec, self.name = spec, name
        rows = spec.num_series * spec.width
        self.kv_gate_proj = Linear(hidden_size, 2 * rows)
        self.position_bias = nn.Parameter(torch.empty(spec.window, rows), requires_grad=False)
        self.norm = None if spec.norm is None else Norm(spec.norm, spec.width)
        self.kv_norm = None if spec.kv_norm is None else Norm(spec.kv_norm, spec.width)
        self.rope = None if spec.rope is None else rotary_embedding(spec.rope)

    def update(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> None:
        """Take in the rows (T, h); ``state`` advances in place."""
        shape = (hidden.shape[0], self.spec.num_series, self.spec.width)
        kv, gate = (part.reshape(shape) for part in self.kv_gate_proj(hidden).chunk(2, 1))
        kv, gate = (kv if self.kv_norm is None else self.kv_norm(kv)).float(), gate.float()
        gate = gate + self.position_bias[batch.positions % self.spec.window].view(shape)
        pieces = hidden.new_empty(shape[0], self.spec.piece_width)
        if batch.num_decodes:
            rows = slice(0, batch.num_decodes)
            pieces[rows] = self._decode(kv[rows], gate[rows], batch, state)
        for chunk in batch.prefills:
            rows = slice(chunk.start, chunk.stop)
            pieces[rows] = self._prefill(kv[rows], gate[rows], chunk, state)
        state[f"{self.name}_pieces"].index_copy_(0, batch.slot_mapping, pieces)

    def decode_entries(self, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """The entries (B, E, D) of the decoding sequences, those that a sequence doesn't have included."""
        spec, slots = self.spec, batch.attention.slots(0, batch.num_decodes)
        newest = state[f"{self.name}_newest"].index_select(0, batch.decode_state_slots)
        count = slots.shape[1] // spec.window
        if not count:
            return newest.new_zeros(newest.shape[0], 0, spec.width)
        stored = slots[:, spec.window : count * spec.window]
        entries = torch.cat((self._stored(stored, state), newest.unsqueeze(1)), 1)
        # The newest of a shorter sequence comes before the end; where there is none, entry 0 isn't seen.
        last = (batch.attention.lengths[: len(slots)] // spec.window - 1).clamp(min=0)
        return entries.index_put((torch.arange(len(slots), device=last.device), last), newest)

    def chunk_entries(self, chunk: PrefillChunk, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """The entries (E, D) of the windows that are whole at a chunk's end."""
        spec, newest = self.spec, state[f"{self.name}_newest"][chunk.state_slot]
        count = chunk.length // spec.window
        if not count:
            return newest.new_zeros(0, spec.width)
        stored = chunk_slots(batch, chunk)[spec.window : count * spec.window]
        return torch.cat((self._stored(stored, state), newest.unsqueeze(0)))

    def _stored(self, slots: torch.Tensor, state: LayerState) -> torch.Tensor:
        """Slots (…, e · m) of the windows behind those of e entries to the entries (…, e, D)."""
        spec = self.spec
        pieces = state[f"{self.name}_pieces"].index_select(0, slots.flatten())
        count = slots.shape[-1] // spec.window
        return pieces.view(*slots.shape[:-1], count, spec.window * spec.piece_width)[..., : spec.width]

    def _decode(self, kv: torch.Tensor, gate: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """One row of each decoding sequence, (B, S, D), to the pieces that it stores, (B, D / m)."""
        spec, slots = self.spec, batch.decode_state_slots
        sums, newest = (state[f"{self.name}_{part}"] for part in ("sums", "newest"))
        positions = batch.positions[: len(slots)]
        places = positions % spec.window
        own, entry = sums.index_select(0, slots), newest.index_select(0, slots)
        pieces = self._pieces(entry)[torch.arange(len(slots), device=slots.device), places]
        own = torch.where((places == 0).view(-1, 1, 1, 1), next_window(own), own)
        own = merge(own, torch.stack((gate, torch.ones_like(gate), kv), 1))
        sums.index_copy_(0, slots, own)
        found = self._entries(own[:, :, -1], positions - places, entry.dtype)
        newest.index_copy_(0, slots, torch.where((places == spec.window - 1).unsqueeze(1), found, entry))
        return pieces

    def _prefill(self, kv: torch.Tensor, gate: torch.Tensor, chunk: PrefillChunk, state: LayerState) -> torch.Tensor:
        """A chunk's rows (n, S, D) to the pieces that they store, (n, D / m)."""
        spec, rows = self.spec, len(kv)
        sums, newest = (state[f"{self.name}_{part}"][chunk.state_slot] for part in ("sums", "newest"))
        if not chunk.context_len:
            sums.copy_(empty_sums(sums))
            newest.zero_()
        first, offset = divmod(chunk.context_len, spec.window)
        own = self._window_sums(kv, gate, offset)
        start = sums if offset else next_window(sums.unsqueeze(0))[0]
        own[0] = merge(start.unsqueeze(0), own[:1])[0]
        if spec.overlaps:
            own[1:, :, -1] = merge(own[:-1, :, 0], own[1:, :, -1])
        starts = (first + torch.arange(len(own), device=kv.device)) * spec.window
        entries = self._entries(own[:, :, -1], starts, newest.dtype)
        # The tokens of a window store the entry of the window before.
        pieces = self._pieces(torch.cat((newest.unsqueeze(0), entries[:-1]))).flatten(0, 1)[offset : offset + rows]
        sums.copy_(own[-1])
        num_whole = (offset + rows) // spec.window
        if num_whole:
            newest.copy_(entries[num_whole - 1])
        return pieces

    def _window_sums(self, kv: torch.Tensor, gate: torch.Tensor, offset: int) -> torch.Tensor:
        """The sums (c, 3, S, D) of a chunk's rows (n, S, D) alone, the first of them at ``offset`` of a window."""
        window = self.spec.window
        count = -(-(offset + len(kv)) // window)
        padding = (0, 0, 0, 0, offset, count * window - offset - len(kv))
        shape = (count, window, *kv.shape[1:])
        values = functional.pad(kv, padding).view(shape)
        gates = functional.pad(gate, padding, value=-torch.inf).view(shape)
        peak = gates.amax(1)
        weights = (gates - peak.unsqueeze(1)).exp()
        return torch.stack((peak, weights.sum(1), (weights * values).sum(1)), 1)

    def _entries(self, sums: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The sums (n, 3, D) of windows that begin at ``positions`` (n,) to their entries (n, D)."""
        pooled = (sums[:, 2] / sums[:, 1]).to(dtype)
        if self.norm is not None:
            pooled = self.norm(pooled)
        if self.rope is None:
            return pooled
        return rotate_last(pooled.unsqueeze(1), self.rope.cos_sin(positions), self.rope.spec).squeeze(1)

    def _pieces(self, entries: torch.Tensor) -> torch.Tensor:
        """(n, D) to (n, m, D / m), the last ones filled up with zeros."""
        spec = self.spec
        padded = functional.pad(entries, (0, spec.window * spec.piece_width - spec.width))
        return padded.view(-1, spec.window, spec.piece_width)


def empty_sums(like: torch.Tensor) -> torch.Tensor:
    """The sums (…, 3, S, D) of no token, in the shape of ``like``."""
    sums = torch.zeros_like(like)
    sums.select(-3, 0).fill_(-torch.inf)
    return sums


def next_window(sums: torch.Tensor) -> torch.Tensor:
    """The sums (n, 3, S, D) with which the next window begins: of two series, the first becomes the second."""
    begun = empty_sums(sums)
    if sums.shape[2] > 1:
        begun[:, :, 1] = sums[:, :, 0]
    return begun


def merge(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The sums (n, 3, …) of two sets of tokens together; of the second set none is empty."""
    peak = torch.maximum(first[:, 0], second[:, 0])
    scales = [(part[:, 0] - peak).exp() for part in (first, second)]
    totals = first[:, 1:] * scales[0].unsqueeze(1) + second[:, 1:] * scales[1].unsqueeze(1)
    return torch.cat((peak.unsqueeze(1), totals), 1)
