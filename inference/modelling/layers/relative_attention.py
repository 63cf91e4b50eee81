"""RelativeAttention: attention with a relative position bias that each query mixes from learned profiles.

Source: transformers' ``inkling``.

Shape letters: T rows, B decoding sequences, L longest context among them, n rows of a chunk, m columns, H query heads,
V key/value heads, P head width, r learned profiles of the bias, D distances that they cover.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.forward_batch import ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers.attention import Attention, attend, chunk_slots, decode_rows, first_visible
from inference.modelling.layers.conv import AddedConv1d
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.specs.inkling import RelativeAttentionSpec

MAX_SCORES = 1 << 26
"""Scores of a chunk that are in memory at once, 256 MiB in float32; longer chunks are computed in blocks of rows."""


class RelativeAttention(Attention):
    """See ``RelativeAttentionSpec``.

    Args:
        spec: Sizes and rules.
        hidden_size: h.
    """

    def __init__(self, spec: RelativeAttentionSpec, hidden_size: int) -> None:
        super().__init__(spec, hidden_size)
        self.relative = spec
        self.conv = self._make_conv()
        self.relative_proj = Linear(hidden_size, spec.num_heads * spec.relative_width)
        self.relative_profiles = nn.Parameter(torch.empty(spec.relative_width, spec.extent), requires_grad=False)

    def _make_conv(self) -> Layer:
        """The convolution of keys and values."""
        return AddedConv1d(self.relative.conv_width, self.relative.conv_kernel, self.relative.conv_scale)

    @property
    def is_plain(self) -> bool:
        """No kernel computes it."""
        return False

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to (T, h); the keys and values of the rows are written to ``state``."""
        query, key, value = self._heads(self.project(hidden, batch, state), batch)
        relative = self.relative_proj(hidden).view(*query.shape[:2], -1)
        out: torch.Tensor = self.o_proj(self.attend(query, key, value, relative, batch, state))
        return out

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        relative: torch.Tensor,
        batch: ForwardBatch,
        state: LayerState,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """What the rows' queries read of the cache, behind keys and values of their own, which are written there.

        Args:
            query: (T, H, P).
            key: (T, V, P), and ``value``.
            relative: (T, H, r).
            batch: The step.
            state: The layer's.
            sinks: (T, H), scores of a column without a value; None: there is none.

        Returns:
            (T, H · P).
        """
        state["k"].index_copy_(0, batch.slot_mapping, key)
        state["v"].index_copy_(0, batch.slot_mapping, value)
        query, relative = self.grown(query, relative, batch)
        decodes, mixed = batch.num_decodes, torch.empty_like(query)
        if decodes:
            of_decodes = None if sinks is None else sinks[:decodes]
            mixed[:decodes] = self._decode_rows(query[:decodes], relative[:decodes], batch, state, of_decodes)
        for chunk in batch.prefills:
            rows = slice(chunk.start, chunk.stop)
            of_chunk = None if sinks is None else sinks[rows].t()
            mixed[rows] = self._prefill_rows(chunk, query[rows], relative[rows], batch, state, of_chunk)
        return mixed.flatten(1)

    def project(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to queries, keys and values side by side, the latter two convolved."""
        query, others = self.qkv_proj(hidden).tensor_split((self.spec.num_heads * self.spec.head_dim,), 1)
        return torch.cat((query, self.conv(others, batch, state["conv_state"])), 1)

    def grown(
        self, query: torch.Tensor, relative: torch.Tensor, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries (T, H, P) and profiles' weights (T, H, r) times τ."""
        if self.relative.score_growth is None:
            return query, relative
        growth = score_growth(batch, *self.relative.score_growth)
        return (query.float() * growth).to(query.dtype), (relative.float() * growth).to(relative.dtype)

    def _decode_rows(
        self,
        query: torch.Tensor,
        relative: torch.Tensor,
        batch: ForwardBatch,
        state: LayerState,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """One query of each decoding sequence (B, H, P) over its context, to (B, H, P); ``sinks``: (B, H)."""
        spec, count = self.spec, query.shape[0]
        key, value = (decode_rows(batch, state[name]).transpose(1, 2) for name in ("k", "v"))
        columns = torch.arange(key.shape[2], device=query.device)
        newest = batch.attention.lengths[:count, None] - 1
        bias = self.bias(relative, newest - columns)
        # The query heads of one key/value head are its rows, so that no key is repeated for them.
        grouped, bias = (part.view(count, spec.num_kv_heads, -1, part.shape[-1]) for part in (query, bias))
        sinks = None if sinks is None else sinks.view(count, spec.num_kv_heads, -1)
        return attend(grouped, key, value, scale=spec.scale, mask=bias, sinks=sinks).reshape(query.shape)

    def _prefill_rows(
        self,
        chunk: PrefillChunk,
        query: torch.Tensor,
        relative: torch.Tensor,
        batch: ForwardBatch,
        state: LayerState,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """A chunk's queries (n, H, P) over the tokens up to each of them, to (n, H, P); ``sinks``: (H, n)."""
        # Positions that the chunk's first token doesn't see are seen by none of its tokens.
        first = max(0, first_visible(chunk.context_len, self.spec.sliding_window, None))
        slots = chunk_slots(batch, chunk)[first:]
        key, value = (state[name].index_select(0, slots).transpose(0, 1).unsqueeze(0) for name in ("k", "v"))
        rows, columns = (torch.arange(start, chunk.length, device=query.device) for start in (chunk.context_len, first))
        mixed = torch.empty_like(query)
        size = max(1, MAX_SCORES // (query.shape[1] * max(len(columns), self.relative.extent + 2)))
        for begin in range(0, len(rows), size):
            part = slice(begin, begin + size)
            bias = self.bias(relative[part], rows[part, None] - columns).transpose(0, 1)
            queries = query[part].transpose(0, 1).unsqueeze(0)
            of_part = None if sinks is None else sinks[:, part]
            out = attend(queries, key, value, scale=self.spec.scale, mask=bias, sinks=of_part)
            mixed[part] = out.squeeze(0).transpose(0, 1)
        return mixed

    def bias(self, relative: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
        """What is added to the scores, and -inf where a position isn't seen.

        Args:
            relative: (n, H, r).
            distances: (n, m), of the queries' positions to the columns'.

        Returns:
            (n, H, m).
        """
        extent, window = self.relative.extent, self.spec.sliding_window
        profiles = functional.pad(relative @ self.relative_profiles, (0, 2))
        profiles[..., -1] = -torch.inf
        # Behind the D distances: entry D is that of all greater ones, entry D + 1 that of positions that aren't seen.
        is_hidden = distances < 0
        if window is not None:
            is_hidden = is_hidden | (distances >= window)
        entries = distances.clamp(max=extent).masked_fill(is_hidden, extent + 1)
        return profiles.gather(-1, entries.unsqueeze(1).expand(-1, profiles.shape[1], -1))


def score_growth(batch: ForwardBatch, slope: float, length: int) -> torch.Tensor:
    """(T, 1, 1) float32 factors τ of ``RelativeAttentionSpec``, shared by the layers."""
    key = ("score_growth", slope, length)
    factors: torch.Tensor | None = batch.shared.get(key)
    if factors is None:
        ratios = (batch.positions + 1).float() / length
        factors = batch.shared[key] = (1 + slope * ratios.clamp(min=1).log()).view(-1, 1, 1)
    return factors
