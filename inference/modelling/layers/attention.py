"""Grouped-query attention over the paged KV cache.

The rows of a step come in two kinds, and each has one path: all decoding sequences together in one gather and one
attention call; prefill chunks one by one, a fresh chunk over its own keys without any gather. Masks and slots depend on
the step only and are shared by the layers.

Shape letters: T rows, B decoding sequences, L longest context among them, n rows of a chunk, N tokens
up to its end, H query heads, V key/value heads, P head width, W width of a head's values.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.forward_batch import ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers.block_indexer import BlockIndexer
from inference.modelling.layers.head_experts import HeadExperts
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.norm import Norm
from inference.modelling.layers.pooled_indexer import PooledIndexer
from inference.modelling.layers.rotary import rotary_embedding, rotate_first
from inference.modelling.specs.indexer import PooledIndexerSpec
from inference.modelling.specs.layers import AttentionSpec


class Attention(Layer):
    """softmax(scale · q kᵀ + mask) v, with optional rotation, norms of q and k, sliding window and softcap.

    Args:
        spec: Sizes and rules.
        hidden_size: h.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"sinks", "lambdas"})

    def __init__(self, spec: AttentionSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        width = spec.num_heads * spec.value_dim
        self.qkv_proj = Linear(hidden_size, spec.qkv_rows, spec.qkv_bias)
        self.head_experts = None if spec.head_experts is None else HeadExperts(spec, hidden_size)
        if self.head_experts is None:
            self.o_proj = Linear(width, hidden_size, spec.o_bias)
        self.gate_proj = None
        if spec.output_gate:
            self.gate_proj = Linear(hidden_size, spec.num_heads if spec.gate_per_head else width)
        self.sinks = nn.Parameter(torch.empty(spec.num_heads), requires_grad=False) if spec.has_sinks else None
        self.heads_norm = None if spec.heads_norm is None else Norm(spec.heads_norm, spec.value_dim)
        self.output_norm = None if spec.output_norm is None else Norm(spec.output_norm, width)
        self.lambdas = self.difference_norm = None
        if spec.difference is not None:
            self.lambdas = nn.Parameter(torch.empty(4, spec.head_dim), requires_grad=False)
            self.difference_norm = Norm(spec.difference.norm, 2 * spec.head_dim)
        self.q_norm = self.k_norm = None
        if spec.qk_norm is not None:
            self.q_norm = Norm(spec.qk_norm, *spec.qk_norm_shape(spec.num_heads))
            if spec.kv_source is None:
                self.k_norm = Norm(spec.qk_norm, *spec.qk_norm_shape(spec.num_kv_heads))
        self.v_norm = None if spec.v_norm is None else Norm(spec.v_norm, spec.value_dim)
        self.rope = None if spec.rope is None else rotary_embedding(spec.rope)
        self.indexer = _indexer(spec, hidden_size)

    @property
    def is_plain(self) -> bool:
        """Whether the backends' kernels compute it."""
        spec = self.spec
        sees_usual = spec.slopes is None and spec.kv_source is None and spec.chunk_size is None
        has_usual = self.sinks is None and spec.v_head_dim is None and self.indexer is None
        has_usual = has_usual and spec.difference is None and self.head_experts is None
        return has_usual and not spec.qk_norm_after_rope and sees_usual

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to (T, h); the keys and values of the rows are written to ``state``."""
        joint = self.project(hidden, batch, state)
        routed = None if self.head_experts is None else self.head_experts.choose(hidden)
        if self.head_experts is not None and routed is not None:
            joint = torch.cat((self.head_experts.queries(hidden, routed[1]), joint), 1)
        if self.spec.qkv_clip is not None:
            joint = joint.clamp(-self.spec.qkv_clip, self.spec.qkv_clip)
        if self.spec.query_growth is not None:
            # A rotation keeps the factor, so that it can be applied before.
            width = self.spec.num_heads * self.spec.head_dim
            growth = query_growth(batch, *self.spec.query_growth, self.spec.query_growth_start).to(joint.dtype)
            joint = torch.cat((joint[:, :width] * growth, joint[:, width:]), 1)
        if self.v_norm is not None:
            first = (self.spec.num_heads + self.spec.num_kv_heads) * self.spec.head_dim
            value = self.v_norm(joint[:, first:].view(joint.shape[0], -1, self.spec.value_dim))
            joint = torch.cat((joint[:, :first], value.flatten(1)), 1)
        index = None if self.indexer is None else self.indexer.prepare(hidden, batch, state)
        if index is None or not self._is_sparse(batch):
            mixed = self.mix(joint, batch, state)
        else:
            mixed = Attention.mix(self, joint, batch, state, index)
        if self.spec.output_multiplier != 1.0:
            mixed = mixed * self.spec.output_multiplier
        if self.heads_norm is not None:
            mixed = self.heads_norm(mixed.view(mixed.shape[0], -1, self.spec.value_dim)).flatten(1)
        if self.gate_proj is not None:
            mixed = self._gated(mixed, self.gate_proj(hidden))
        if self.spec.difference is not None:
            mixed = self._difference(mixed, self.spec.difference.start)
        if self.output_norm is not None:
            mixed = self.output_norm(mixed)
        if self.head_experts is not None and routed is not None:
            return self.head_experts.output(mixed, *routed)
        return cast("torch.Tensor", self.o_proj(mixed))

    def _difference(self, mixed: torch.Tensor, start: float) -> torch.Tensor:
        """(T, H · 2P) to (T, H · P): ``DifferenceSpec``."""
        assert self.lambdas is not None
        assert self.difference_norm is not None
        first, second = mixed.view(mixed.shape[0], 2, -1, 2 * self.spec.head_dim).unbind(1)
        q1, k1, q2, k2 = self.lambdas.unbind()
        share = ((q1 * k1).sum().exp() - (q2 * k2).sum().exp() + start).to(mixed.dtype)
        normed: torch.Tensor = self.difference_norm(first - share * second)
        return (normed * (1.0 - start)).flatten(1)

    def _values(self, value: torch.Tensor) -> torch.Tensor:
        """Cached values (…, V, W) as the queries see them; with ``difference`` (…, V, 2W)."""
        if self.spec.difference is None:
            return value
        paired = torch.cat(value.chunk(2, -2), -1)
        return torch.cat((paired, paired), -2)

    def project(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to queries, keys and values side by side."""
        joint: torch.Tensor = self.qkv_proj(hidden)
        return joint

    def _gated(self, mixed: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """(T, H · P) times the function of the gate (T, H · P), or (T, H) with one value for each head."""
        if self.spec.gate_activation == "softplus":
            gate = functional.softplus(gate.float()).to(mixed.dtype)
        else:
            gate = gate.sigmoid()
        if not self.spec.gate_per_head:
            return mixed * gate
        return (mixed.view(*gate.shape, -1) * gate.unsqueeze(-1)).flatten(1)

    def _is_sparse(self, batch: ForwardBatch) -> bool:
        """Whether a sequence has more blocks than are chosen; else each query sees all tokens before it."""
        index = self.spec.block_indexer
        return index is not None and batch.attention.longest > index.top_k * index.block_size

    def mix(
        self, joint: torch.Tensor, batch: ForwardBatch, state: LayerState, index: torch.Tensor | None = None
    ) -> torch.Tensor:
        """What lies between the projections: qkv_proj's rows to o_proj's input (T, H · W).

        Args:
            index: (T, V, D), the indexer's queries, where they choose what is seen.
        """
        if self.spec.kv_source is None:
            query, key, value = self._heads(joint, batch)
            state["k"].index_copy_(0, batch.slot_mapping, key)
            state["v"].index_copy_(0, batch.slot_mapping, value)
        else:
            query, key, value = self._queries(joint, batch), None, None
        decodes = batch.num_decodes
        if not batch.prefills:
            mixed = self._decode(query, batch, state, index)
        else:
            mixed = query.new_empty(*query.shape[:2], self.spec.value_dim * (1 + (self.spec.difference is not None)))
            if decodes:
                own_index = None if index is None else index[:decodes]
                mixed[:decodes] = self._decode(query[:decodes], batch, state, own_index)
            for chunk in batch.prefills:
                rows = slice(chunk.start, chunk.stop)
                own = [None if part is None else part[rows] for part in (key, value, index)]
                mixed[rows] = self.attend_chunk(chunk, query[rows], own[0], own[1], batch, state, own[2])
        return mixed.flatten(1)

    def mix_whole_spans(self, mixed: torch.Tensor, joint: torch.Tensor, batch: ForwardBatch, state: LayerState) -> None:
        """Compute the chunks with ``whole_spans`` again, for forms that only see what is before a row.

        Args:
            mixed: (T, H, W), the result of such a form, overwritten there.
            joint: As in ``mix``; the state already has these rows' keys and values.
        """
        chunks = [chunk for chunk in batch.prefills if chunk.whole_spans]
        if not chunks:
            return
        query, key, value = self._heads(joint, batch)
        for chunk in chunks:
            rows = slice(chunk.start, chunk.stop)
            mixed[rows] = self.attend_chunk(chunk, query[rows], key[rows], value[rows], batch, state)

    def normed(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """q (T, H, P) and k (T, V, P) or their rows, over heads or rows as the spec says, to (T, heads, P)."""
        assert self.q_norm is not None and self.k_norm is not None
        width = self.spec.head_dim
        rows = query.shape[0]
        if self.spec.qk_norm_per_head:
            return self.q_norm(query.reshape(rows, -1, width)), self.k_norm(key.reshape(rows, -1, width))
        query, key = self.q_norm(query.reshape(rows, -1)), self.k_norm(key.reshape(rows, -1))
        return query.view(rows, -1, width), key.view(rows, -1, width)

    def _heads(self, joint: torch.Tensor, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q (T, H, P), k (T, V, P) and v (T, V, W), normed and rotated."""
        spec = self.spec
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        # q and k lie side by side, so that one rotation serves both.
        width = (heads + kv_heads) * spec.head_dim
        query_key = joint[:, :width].reshape(joint.shape[0], -1, spec.head_dim)
        value = joint[:, width:].reshape(joint.shape[0], -1, spec.value_dim)
        is_normed = self.q_norm is not None
        if is_normed and not spec.qk_norm_after_rope:
            query_key = torch.cat(self.normed(query_key[:, :heads], query_key[:, heads:]), 1)
        if self.rope is not None:
            query_key = rotate_first(query_key, self.rope.step(batch), self.rope.spec)
        if is_normed and spec.qk_norm_after_rope:
            query_key = torch.cat(self.normed(query_key[:, :heads], query_key[:, heads:]), 1)
        return query_key[:, :heads], query_key[:, heads:], value

    def _queries(self, joint: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """q (T, H, P), normed and rotated, of a layer without keys of its own."""
        query = joint.view(-1, self.spec.num_heads, self.spec.head_dim)
        if self.q_norm is not None:
            query = self.q_norm(query)
        return query if self.rope is None else rotate_first(query, self.rope.step(batch), self.rope.spec)

    def _decode(
        self, query: torch.Tensor, batch: ForwardBatch, state: LayerState, index: torch.Tensor | None = None
    ) -> torch.Tensor:
        """One query of each decoding sequence (B, H, P) over its context, to (B, H, W)."""
        spec = self.spec
        count = query.shape[0]
        key, value = (decode_rows(batch, state[name]) for name in ("k", "v"))
        key, value = key.transpose(1, 2), self._values(value).transpose(1, 2)
        # The query heads of one key/value head are its rows, so that no key is repeated for them.
        grouped = query.reshape(count, spec.num_kv_heads, -1, spec.head_dim)
        mask = decode_bias(batch, spec.sliding_window, query.dtype, spec.chunk_size)
        if spec.slopes is not None:
            falling = decode_slopes(batch, spec.slopes, query.dtype).view(count, spec.num_kv_heads, -1, key.shape[2])
            mask = falling if mask is None else falling + mask
        if index is not None and self.indexer is not None:
            newest = batch.attention.lengths[:count, None] - 1
            mask = self.indexer.bias(index.unsqueeze(1), decode_rows(batch, state["index_k"]), newest)
        sinks = None if self.sinks is None else self.sinks.view(spec.num_kv_heads, -1)
        mixed = attend(grouped, key, value, scale=spec.scale, mask=mask, softcap=spec.softcap, sinks=sinks)
        return mixed.reshape(count, spec.num_heads, -1)

    def attend_chunk(
        self,
        chunk: PrefillChunk,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        batch: ForwardBatch,
        state: LayerState,
        index: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A chunk's queries (n, H, P) over the tokens up to each of them, to (n, H, W).

        Args:
            key, value: (n, V, P) and (n, V, W), of the chunk's own tokens; None: they are in the cache only.
            index: (n, V, D), the indexer's queries.
        """
        spec = self.spec
        first = 0
        if chunk.context_len or key is None or value is None:
            # Positions that the chunk's first token doesn't see are seen by none of its tokens.
            first = max(0, first_visible(chunk.context_len, spec.sliding_window, spec.chunk_size))
            slots = chunk_slots(batch, chunk)[first:]
            key, value = state["k"].index_select(0, slots), state["v"].index_select(0, slots)
        mask = self.chunk_mask(chunk, first, query.dtype, batch, state, index)
        mixed = attend(
            query.transpose(0, 1).unsqueeze(0),
            key.transpose(0, 1).unsqueeze(0),
            self._values(value).transpose(0, 1).unsqueeze(0),
            scale=spec.scale,
            mask=mask,
            softcap=spec.softcap,
            causal=mask is None,
            sinks=None if self.sinks is None else self.sinks.unsqueeze(-1),
        )
        return mixed.squeeze(0).transpose(0, 1)

    def chunk_mask(
        self,
        chunk: PrefillChunk,
        first: int,
        dtype: torch.dtype,
        batch: ForwardBatch,
        state: LayerState,
        index: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """What is added to a chunk's scores over positions ``first`` …, broadcast to (H, n, N - first).

        It is -inf where a row doesn't see a column; None: row i sees columns up to i.
        """
        spec = self.spec
        mask = chunk_bias(batch, chunk, first, spec.sliding_window, dtype, spec.chunk_size)
        if spec.slopes is not None:
            falling = chunk_slopes(batch, chunk, first, spec.slopes, dtype)
            mask = falling if mask is None else falling + mask
        if index is not None and self.indexer is not None:
            keys = state["index_k"].index_select(0, chunk_slots(batch, chunk))
            rows = torch.arange(chunk.context_len, chunk.length, device=keys.device)
            # The query heads of one key/value head, or all of them, see the same blocks.
            mask = self.indexer.bias(index, keys, rows)
            mask = mask.repeat_interleave(spec.num_heads // mask.shape[0], 0)
        return mask


def _indexer(spec: AttentionSpec, hidden_size: int) -> BlockIndexer | PooledIndexer | None:
    """What chooses the blocks of keys that the queries see."""
    if spec.block_indexer is None or spec.rope is None:
        return None
    if isinstance(spec.block_indexer, PooledIndexerSpec):
        return PooledIndexer(spec.block_indexer, spec.rope, hidden_size)
    return BlockIndexer(spec.block_indexer, spec.num_kv_heads, spec.rope, hidden_size)


def query_growth(batch: ForwardBatch, slope: float, length: int, start: int) -> torch.Tensor:
    """(T, 1) float32 factors of ``AttentionSpec.query_growth``, shared by the layers.

    Source: https://arxiv.org/abs/2501.19399 (temperature that grows with the context).
    """
    key = ("query_growth", slope, length, start)
    factors: torch.Tensor | None = batch.shared.get(key)
    if factors is None:
        steps = torch.floor((batch.positions + start).float() / length)
        factors = batch.shared[key] = (1 + slope * torch.log1p(steps)).unsqueeze(1)
    return factors


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    mask: torch.Tensor | None,
    softcap: float | None = None,
    causal: bool = False,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Scaled dot-product attention.

    Args:
        query: (b, H, n, P).
        key: (b, V, m, P), V dividing H.
        value: (b, V, m, P').
        scale: Factor of q·k.
        mask: Added to the scores, broadcast to (b, H, n, m); None: no mask.
        softcap: cap · tanh(score / cap) before the mask.
        causal: Row i sees columns up to i; then n = m and ``mask`` is None.
        sinks: Scores of a column without a value, broadcast to (b, H, n); None: there is none.

    Returns:
        (b, H, n, P').
    """
    if softcap is None and sinks is None:
        shared_heads = query.shape[1] != key.shape[1]
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scale, is_causal=causal, enable_gqa=shared_heads
        )
    batch, kv_heads, columns = key.shape[:3]
    # The query heads that share a key/value head become further rows of it.
    grouped = query.reshape(batch, kv_heads, -1, query.shape[-1])
    scores = torch.matmul(grouped, key.transpose(-1, -2)).float() * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    # Sizes are named, as there may be no columns.
    scores = scores.view(*query.shape[:3], columns)
    if causal:
        rows = scores.shape[-2]
        mask = torch.full((rows, rows), -torch.inf, device=scores.device).triu(1)
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        scores = torch.cat((scores, sinks.float().expand(scores.shape[:3]).unsqueeze(-1)), -1)
    weights = scores.softmax(-1)[..., :columns].to(value.dtype).reshape(*grouped.shape[:3], columns)
    return torch.matmul(weights, value).view(*query.shape[:-1], value.shape[-1])


def decode_rows(batch: ForwardBatch, cache: torch.Tensor) -> torch.Tensor:
    """The rows of a cache (slots, …) that the decoding sequences attend to, padded: (B, L, …)."""
    slots = batch.attention.slots(0, batch.num_decodes)
    # Selecting by one flat index is ten times faster than by a matrix.
    return cache.index_select(0, slots.view(-1)).view(*slots.shape, *cache.shape[1:])


def chunk_slots(batch: ForwardBatch, chunk: PrefillChunk) -> torch.Tensor:
    """(N,) slots of the tokens up to a chunk's end."""
    return batch.attention.slots(chunk.sequence, chunk.sequence + 1, chunk.length)[0]


def decode_slopes(batch: ForwardBatch, slopes: tuple[float, ...], dtype: torch.dtype) -> torch.Tensor:
    """(B, H, L) of what the scores of the decoding rows lose by distance, shared by the layers."""
    key = ("decode_slopes", slopes, dtype)
    found: torch.Tensor | None = batch.shared.get(key)
    if found is None:
        count, longest = batch.attention.slots(0, batch.num_decodes).shape
        newest = batch.attention.lengths[:count, None] - 1
        distances = (torch.arange(longest, device=newest.device) - newest).clamp_(max=0)
        found = batch.shared[key] = falling_scores(distances, slopes, dtype)
    return found


def chunk_slopes(
    batch: ForwardBatch, chunk: PrefillChunk, first: int, slopes: tuple[float, ...], dtype: torch.dtype
) -> torch.Tensor:
    """(H, n, N - first) of what a chunk's scores lose by distance, -inf at later positions; shared by the layers."""
    key = ("chunk_slopes", chunk.start, first, slopes, dtype)
    found: torch.Tensor | None = batch.shared.get(key)
    if found is None:
        device = batch.positions.device
        rows = torch.arange(chunk.context_len, chunk.length, device=device).unsqueeze(1)
        distances = torch.arange(first, chunk.length, device=device) - rows
        falling = falling_scores(distances, slopes, dtype).transpose(0, 1)
        found = batch.shared[key] = falling.masked_fill(distances > 0, -torch.inf)
    return found


def falling_scores(distances: torch.Tensor, slopes: tuple[float, ...], dtype: torch.dtype) -> torch.Tensor:
    """(n, m) column minus row to (n, H, m) of what is added to the scores (ALiBi, https://arxiv.org/abs/2108.12409)."""
    return (distances.unsqueeze(1) * torch.tensor(slopes, device=distances.device)[:, None]).to(dtype)


def first_visible(position: int | torch.Tensor, sliding_window: int | None, chunk_size: int | None) -> Any:
    """The first position that a query sees, of the type of its own; below 0 where the window begins before 0."""
    if chunk_size is not None:
        return position - position % chunk_size
    return position * 0 if sliding_window is None else position - sliding_window + 1


def decode_bias(
    batch: ForwardBatch, sliding_window: int | None, dtype: torch.dtype, chunk_size: int | None = None
) -> torch.Tensor | None:
    """(B, 1, 1, L) of 0 and -inf for the decoding rows; None when all columns are seen.

    Args:
        batch: The step.
        sliding_window: Number of visible positions, the new token's own included; None: all.
        dtype: Of the mask.
        chunk_size: As in ``AttentionSpec``.
    """
    count, longest = batch.attention.slots(0, batch.num_decodes).shape
    if (sliding_window or chunk_size or longest) >= longest:
        sliding_window = chunk_size = None
    is_cut = sliding_window is not None or chunk_size is not None
    if count == 1 and not is_cut:
        return None  # a lone sequence has no padding
    key = ("decode_bias", sliding_window, chunk_size, dtype)
    bias: torch.Tensor | None = batch.shared.get(key)
    if bias is None:
        lengths = batch.attention.lengths[:count, None]
        columns = torch.arange(longest, device=lengths.device)
        hidden = columns >= lengths
        if is_cut:
            hidden |= columns < first_visible(lengths - 1, sliding_window, chunk_size)
        bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
        bias = batch.shared[key] = bias[:, None, None, :]
    return bias


def causal_bias(chunk: PrefillChunk, like: torch.Tensor) -> torch.Tensor:
    """(n, N) of 0 and -inf for a chunk's rows over all positions; dtype and device of ``like``."""
    bias = like.new_full((chunk.stop - chunk.start, chunk.length), -torch.inf)
    return bias.triu_(chunk.context_len + 1)


def chunk_bias(
    batch: ForwardBatch,
    chunk: PrefillChunk,
    first: int,
    sliding_window: int | None,
    dtype: torch.dtype,
    chunk_size: int | None = None,
) -> torch.Tensor | None:
    """(n, N - first) of 0 and -inf for a chunk's rows over positions ``first`` …; None: row i sees columns up to i.

    Rows of a run that see each other both ways (``PrefillChunk.whole_spans``) also see the later ones of it.
    """
    if (sliding_window or chunk_size or chunk.length) >= chunk.length:
        sliding_window = chunk_size = None
    is_cut = sliding_window is not None or chunk_size is not None
    if chunk.context_len == 0 and not is_cut and not chunk.whole_spans:
        return None
    key = ("chunk_bias", chunk.start, first, sliding_window, chunk_size, dtype)
    bias: torch.Tensor | None = batch.shared.get(key)
    if bias is None:
        device = batch.positions.device
        rows = torch.arange(chunk.context_len, chunk.length, device=device).unsqueeze(1)
        columns = torch.arange(first, chunk.length, device=device)
        hidden = columns > rows
        for start, stop in chunk.whole_spans:
            hidden &= ~((rows >= start) & (rows < stop) & (columns >= start) & (columns < stop))
        if is_cut:
            hidden |= columns < first_visible(rows, sliding_window, chunk_size)
        bias = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
        batch.shared[key] = bias
    return bias
