"""CompressedAttention: attention over a window and pooled entries; see ``CompressedAttentionSpec``.

Shape letters: T rows, B decoding sequences, L longest context among them, n rows of a chunk, H query heads, P head
width, w positions of a window, E entries, G groups of heads, r rank of the queries' latent.

Source: transformers' ``deepseek_v4``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import torch
from torch import nn

from inference.modelling.forward_batch import ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers.attention import attend, chunk_slots
from inference.modelling.layers.compressed_indexer import CompressedIndexer, visible_entries
from inference.modelling.layers.compressor import Compressor
from inference.modelling.layers.indexer import Queries, choose_keys
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.norm import Norm
from inference.modelling.layers.rotary import rotary_embedding, rotate_last
from inference.modelling.specs.compressed import CompressedAttentionSpec
from inference.modelling.specs.parts import NormSpec

ROW_BLOCK = 256
"""Rows of a chunk whose scores are in memory at once."""


class Seen(NamedTuple):
    """What some rows of a chunk see.

    Attributes:
        rows: Which rows of the chunk they are.
        keys: (m, P).
        mask: (n, m) float32, 0 or -inf for each row and key.
        places: (m,) float32, the keys' positions, of an entry the middle of its window.
    """

    rows: slice
    keys: torch.Tensor
    mask: torch.Tensor
    places: torch.Tensor


class CompressedAttention(Layer):
    """See ``CompressedAttentionSpec``.

    Args:
        spec: Sizes and rules.
        hidden_size: h.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"sinks"})
    is_plain = False
    """No kernel computes it."""

    def __init__(self, spec: CompressedAttentionSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.q_a_proj = Linear(hidden_size, spec.q_lora_rank)
        self.q_a_norm = Norm(spec.norm, spec.q_lora_rank)
        self.q_b_proj = Linear(spec.q_lora_rank, spec.num_heads * spec.head_dim)
        self.q_norm = Norm(NormSpec("rms", spec.norm.eps, weightless=True), spec.head_dim)
        self.kv_proj = Linear(hidden_size, spec.head_dim)
        self.kv_norm = Norm(spec.norm, spec.head_dim)
        self.sinks = nn.Parameter(torch.empty(spec.num_heads), requires_grad=False)
        self.o_a = nn.ModuleDict({name: Linear(spec.group_width, spec.output_rank) for name in spec.output_names()})
        self.o_b_proj = Linear(spec.output_groups * spec.output_rank, hidden_size)
        self.compressor = None if spec.compressor is None else Compressor(spec.compressor, hidden_size, "pooled")
        self.indexer = None
        if spec.indexer is not None:
            self.indexer = CompressedIndexer(spec.indexer, hidden_size, spec.q_lora_rank)
        self.rope = rotary_embedding(spec.rope)

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to (T, h); ``state`` advances in place."""
        spec, cos_sin = self.spec, self.rope.step(batch)
        latent = self.q_a_norm(self.q_a_proj(hidden))
        query = self.q_norm(self.q_b_proj(latent).view(-1, spec.num_heads, spec.head_dim))
        key = self.kv_norm(self.kv_proj(hidden)).unsqueeze(1)
        rotated = rotate_last(torch.cat((query, key), 1), cos_sin, self.rope.spec)
        query = rotated[:, :-1]
        state["kv"].index_copy_(0, batch.slot_mapping, rotated[:, -1])
        if self.compressor is not None:
            self.compressor.update(hidden, batch, state)
        index = None if self.indexer is None else self.indexer.prepare(hidden, latent, batch, state)
        decodes, mixed = batch.num_decodes, torch.empty_like(query)
        if decodes:
            mixed[:decodes] = self._decode(query[:decodes], batch, state, _rows(index, slice(0, decodes)))
        for chunk in batch.prefills:
            rows = slice(chunk.start, chunk.stop)
            mixed[rows] = self.attend_chunk(chunk, query[rows], batch, state, _rows(index, rows))
        cos, sin = cos_sin
        mixed = rotate_last(mixed, (cos, -sin), self.rope.spec)
        groups = mixed.flatten(1).chunk(spec.output_groups, 1)
        lowered = [proj(part) for proj, part in zip(self.o_a.values(), groups, strict=True)]
        out: torch.Tensor = self.o_b_proj(torch.cat(lowered, 1))
        return out

    def _decode(
        self, query: torch.Tensor, batch: ForwardBatch, state: LayerState, index: Queries | None
    ) -> torch.Tensor:
        """One query of each decoding sequence (B, H, P) over what it sees, to (B, H, P)."""
        count = query.shape[0]
        slots, mask = window_slots(batch, self.spec.sliding_window)
        keys = state["kv"].index_select(0, slots.flatten()).view(*slots.shape, self.spec.head_dim)
        if self.compressor is not None and self.spec.compressor is not None:
            entries = self.compressor.decode_entries(batch, state)
            seen = visible_entries(batch.positions[:count], self.spec.compressor, entries.shape[1])
            if self.indexer is not None and index is not None:
                queries = (index[0].unsqueeze(1), index[1].unsqueeze(1))
                scored = self.indexer.compressor.decode_entries(batch, state)
                seen = choose_keys(queries, scored, seen.unsqueeze(1), self.indexer.spec.top_k).squeeze(1)
            keys, mask = torch.cat((keys, entries), 1), torch.cat((mask, seen), 1)
        keys = keys.unsqueeze(1)
        # The heads are rows of the one key/value head.
        mixed = attend(
            query.unsqueeze(1),
            keys,
            keys,
            scale=self.spec.scale,
            mask=mask[:, None, None, :],
            sinks=self.sinks.unsqueeze(0),
        )
        return mixed.squeeze(1)

    def attend_chunk(
        self, chunk: PrefillChunk, query: torch.Tensor, batch: ForwardBatch, state: LayerState, index: Queries | None
    ) -> torch.Tensor:
        """A chunk's queries (n, H, P) over what each of them sees, to (n, H, P), some rows at a time."""
        mixed = torch.empty_like(query)
        for rows, keys, mask, _ in self.seen(chunk, batch, state, index, ROW_BLOCK):
            own = attend(
                query[rows].transpose(0, 1).unsqueeze(0),
                keys[None, None],
                keys[None, None],
                scale=self.spec.scale,
                mask=mask,
                sinks=self.sinks.unsqueeze(-1),
            )
            mixed[rows] = own.squeeze(0).transpose(0, 1)
        return mixed

    def seen(
        self, chunk: PrefillChunk, batch: ForwardBatch, state: LayerState, index: Queries | None, row_block: int
    ) -> Iterator[Seen]:
        """What a chunk's rows see, ``row_block`` rows after the other: tokens themselves, then entries.

        Args:
            index: The indexer's queries of the whole chunk.
        """
        positions, slots = batch.positions[chunk.start : chunk.stop], chunk_slots(batch, chunk)
        window, scored = self.spec.sliding_window, None
        # The entries are gathered once for all blocks.
        if self.compressor is not None:
            entries, pooling = self.compressor.chunk_entries(chunk, batch, state), self.compressor.spec
            middles = torch.arange(len(entries), device=slots.device) * pooling.window + (pooling.window - 1) / 2
        if self.indexer is not None and index is not None:
            scored, top_k = self.indexer.compressor.chunk_entries(chunk, batch, state), self.indexer.spec.top_k
        for begin in range(0, len(positions), row_block):
            rows = slice(begin, min(begin + row_block, len(positions)))
            first, stop = max(0, chunk.context_len + begin - window + 1), chunk.context_len + rows.stop
            columns = torch.arange(first, stop, device=slots.device)
            keys, mask = state["kv"].index_select(0, slots[first:stop]), window_bias(positions[rows], columns, window)
            places = columns.float()
            if self.compressor is not None:
                visible = visible_entries(positions[rows], pooling, len(entries))
                if scored is not None and index is not None:
                    visible = choose_keys((index[0][rows], index[1][rows]), scored, visible, top_k)
                keys, mask = torch.cat((keys, entries)), torch.cat((mask, visible), 1)
                places = torch.cat((places, middles))
            yield Seen(rows, keys, mask, places)


def _rows(index: Queries | None, rows: slice) -> Queries | None:
    return None if index is None else (index[0][rows], index[1][rows])


def window_bias(positions: torch.Tensor, columns: torch.Tensor, window: int) -> torch.Tensor:
    """(n, m) float32: 0 for the positions (m,) that queries at others (n,) see themselves, else -inf."""
    distances = positions.unsqueeze(1) - columns
    is_hidden = (distances < 0) | (distances >= window)
    return torch.zeros(is_hidden.shape, device=positions.device).masked_fill_(is_hidden, -torch.inf)


def window_slots(batch: ForwardBatch, window: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots of the last positions of the decoding sequences, shared by the layers.

    Returns:
        (B, w) slots, and (B, w) float32 of 0, or -inf where a sequence has fewer.
    """
    key = ("window_slots", window)
    found: tuple[torch.Tensor, torch.Tensor] | None = batch.shared.get(key)
    if found is None:
        slots = batch.attention.slots(0, batch.num_decodes)
        width = min(window, slots.shape[1])
        lengths = batch.attention.lengths[: len(slots), None]
        columns = lengths - width + torch.arange(width, device=slots.device)
        mask = torch.zeros(columns.shape, device=slots.device).masked_fill_(columns < 0, -torch.inf)
        found = batch.shared[key] = slots.gather(1, columns.clamp(min=0)), mask
    return found
