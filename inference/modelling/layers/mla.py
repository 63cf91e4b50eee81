"""Multi-head latent attention: the cache holds one compressed row per token for all heads.

A decoding query is multiplied into the space of the latents (the absorbed form), so that attention
runs over the cached rows as they are, as if there were one key/value head of width r + R; only its
result is expanded. A prefill chunk expands the latents to keys and values, which is cheaper when there
are many queries.

Shape letters: T rows, B decoding sequences, L longest context among them, n rows of a chunk, m tokens,
H heads, r kv_lora_rank, N unrotated and R rotated width of q and k, W width of v.

Source: DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1 and appendix C.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.forward_batch import ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers.attention import (
    attend,
    chunk_bias,
    chunk_slots,
    decode_bias,
    decode_rows,
    first_visible,
    query_growth,
)
from inference.modelling.layers.compressed_indexer import CompressedIndexer
from inference.modelling.layers.indexer import Indexer
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.norm import Norm
from inference.modelling.layers.rotary import CosSin, rotary_embedding, rotate
from inference.modelling.layers.softmax_scale import SoftmaxScale
from inference.modelling.specs.compressed import CompressedIndexerSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.parts import RopeSpec

Choice = Sequence[torch.Tensor]
"""0 or -inf for each query and key: (B, 1, 1, L) of the decoding rows if there are any, then (n, N) of each chunk."""
CHOICE = "latent_choice"
"""Where ``ForwardBatch.shared`` keeps the last indexer's choice; None: each query sees all tokens before it."""


def _indexer(spec: MLASpec, hidden_size: int) -> Indexer | CompressedIndexer | None:
    """What chooses the tokens that the queries see."""
    if spec.indexer is None:
        return None
    inputs = spec.q_lora_rank or hidden_size
    if isinstance(spec.indexer, CompressedIndexerSpec):
        return CompressedIndexer(spec.indexer, hidden_size, inputs)
    return Indexer(spec.indexer, hidden_size, inputs)


class HeadExpansion(Layer):
    """The matrix that expands latents head by head, (H · width, r), read as (H, width, r).

    Not a ``Linear``: the absorbed form needs the single heads' matrices, from both sides.
    """

    def __init__(self, num_heads: int, width: int, rank: int) -> None:
        super().__init__()
        self.num_heads, self.width = num_heads, width
        self.weight = nn.Parameter(torch.empty(num_heads * width, rank), requires_grad=False)

    def per_head(self) -> torch.Tensor:
        """(H, width, r)."""
        return self.weight.view(self.num_heads, self.width, -1)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """(m, r) to (m, H, width)."""
        return functional.linear(latents, self.weight).view(-1, self.num_heads, self.width)

    def absorb(self, query: torch.Tensor) -> torch.Tensor:
        """Queries (B, H, width) to (B, H, r): q · (W c) = (Wᵀ q) · c."""
        return torch.bmm(query.transpose(0, 1), self.per_head()).transpose(0, 1)

    def expand_mixed(self, mixed: torch.Tensor) -> torch.Tensor:
        """Mixed latents (B, H, r), another one for each head, to (B, H, width)."""
        return torch.bmm(mixed.transpose(0, 1), self.per_head().transpose(1, 2)).transpose(0, 1)


class MultiHeadLatentAttention(Layer):
    """MLA in DeepSeek's and oxidizr's spelling.

    Args:
        spec: Sizes and rules.
        hidden_size: h.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"sinks", "frequency_exponents"})

    def __init__(self, spec: MLASpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        heads, nope, rope = spec.num_heads, spec.qk_nope_head_dim, spec.qk_rope_head_dim
        q_width = heads * (nope if spec.q_rope_from_hidden else nope + rope)
        self.kv_a_proj = self.kv_a_norm = self.k_rope_norm = None
        if spec.kv_source is None:
            self.kv_a_proj = Linear(hidden_size, spec.kv_lora_rank + rope, spec.bias)
            self.kv_a_norm = None if spec.kv_a_norm is None else Norm(spec.kv_a_norm, spec.kv_lora_rank)
            self.k_rope_norm = None if spec.k_rope_norm is None else Norm(spec.k_rope_norm, rope)
        self.k_b_proj = HeadExpansion(heads, nope, spec.kv_lora_rank)
        self.v_b_proj = HeadExpansion(heads, spec.v_head_dim, spec.kv_lora_rank)
        self.q_a_norm = None
        if spec.q_lora_rank is None:
            self.q_proj = Linear(hidden_size, q_width)
        else:
            self.q_a_proj = Linear(hidden_size, spec.q_lora_rank, spec.bias)
            if spec.q_a_norm is not None:
                self.q_a_norm = Norm(spec.q_a_norm, spec.q_lora_rank)
            self.q_b_proj = Linear(spec.query_input(spec.q_lora_rank), q_width)
        if spec.q_rope_from_hidden:
            self.q_rope_proj = Linear(hidden_size, heads * rope)
        self.o_proj = Linear(heads * spec.v_head_dim, hidden_size, spec.bias)
        self.head_gate = Linear(hidden_size, heads) if spec.head_gate else None
        self.gate_proj = None
        if spec.output_gate:
            inputs = spec.query_input(spec.q_lora_rank or 0) if spec.joins_latents else hidden_size
            self.gate_proj = Linear(inputs, heads * spec.v_head_dim)
        self.sinks = nn.Parameter(torch.empty(heads), requires_grad=False) if spec.has_sinks else None
        self.rope = None if spec.rope is None else rotary_embedding(spec.rope)
        self.softmax_scale = SoftmaxScale(heads) if spec.has_softmax_scale else None
        self.frequency_exponents = None
        if spec.learned_frequencies:
            self.frequency_exponents = nn.Parameter(torch.empty(rope // 2), requires_grad=False)
        self.indexer = _indexer(spec, hidden_size)

    @property
    def is_plain(self) -> bool:
        """Whether the backends' kernels compute it."""
        return self.indexer is None and self.spec.choice_source is None and self._has_kernel

    @property
    def _has_kernel(self) -> bool:
        """Whether kernels compute it where no indexer chooses the keys."""
        spec = self.spec
        sees_usual = self.sinks is None and spec.kv_source is None and spec.sliding_window is None
        rotates_usual = spec.qk_rope_head_dim > 0 and spec.k_rope_norm is None and not spec.learned_frequencies
        return sees_usual and rotates_usual

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to (T, h); the latents of the rows are written to ``state``."""
        spec, q_latent = self.spec, self.query_latent(hidden)
        q_nope, q_rope = self.queries(hidden, q_latent)
        if spec.query_growth is not None:  # before the rotation, which keeps lengths
            growth = query_growth(batch, *spec.query_growth, 0).to(q_nope.dtype).unsqueeze(2)
            q_nope, q_rope = q_nope * growth, q_rope * growth
        if self.softmax_scale is not None:
            q_nope, q_rope = self.softmax_scale(q_nope, batch), self.softmax_scale(q_rope, batch)
        rows = None if self.kv_a_proj is None else self.kv_a_proj(hidden)
        # Keys and values are linear in the latents: their factor goes to what meets the keys, and to what comes out.
        if spec.latent_multiplier != 1.0:
            q_nope = q_nope * spec.latent_multiplier
        choice = self._choice(hidden, q_latent, batch, state)
        if choice is None and self._has_kernel:
            mixed = self.mix(q_nope, q_rope, rows, batch, state)
        else:
            mixed = MultiHeadLatentAttention.mix(self, q_nope, q_rope, rows, batch, state, choice)
        if spec.latent_multiplier != 1.0:
            mixed = mixed * spec.latent_multiplier
        if self.head_gate is not None:
            gate = self.head_gate(hidden).sigmoid().unsqueeze(2)
            mixed = (mixed.view(-1, spec.num_heads, spec.v_head_dim) * gate).flatten(1)
        if self.gate_proj is not None:
            mixed = mixed * self.gate_proj(q_latent if spec.joins_latents else hidden).sigmoid()
        return cast("torch.Tensor", self.o_proj(mixed))

    def _choice(
        self, hidden: torch.Tensor, q_latent: torch.Tensor, batch: ForwardBatch, state: LayerState
    ) -> Choice | None:
        """What each query sees, by this layer's indexer or the last one before it; None: all tokens before it.

        A query that has no more tokens before it than are chosen sees all of them.
        """
        if self.spec.choice_source is not None:
            found: Choice | None = batch.shared[CHOICE]
            return found
        if self.indexer is None:
            return None
        latent = q_latent[:, : self.spec.q_lora_rank]
        if isinstance(self.indexer, CompressedIndexer):
            index = self.indexer.prepare(hidden, latent, batch, state)
        else:
            cos_sin = self._index_rotation(self.indexer.spec.rope, batch)
            index = self.indexer.prepare(hidden, latent, batch, state, cos_sin)
        is_sparse = batch.attention.longest > self.indexer.spec.seen_tokens
        choice = batch.shared[CHOICE] = self.indexer.choose(index, batch, state) if is_sparse else None
        return choice

    def _rotation(self, batch: ForwardBatch) -> CosSin | None:
        """Of queries and keys; None: nothing is rotated."""
        if self.rope is None:
            return None
        if self.frequency_exponents is None:
            return self.rope.step(batch)
        return self.rope.cos_sin(batch.positions, batch.rope_lengths, self.frequency_exponents.exp())

    def _index_rotation(self, rope: RopeSpec | None, batch: ForwardBatch) -> CosSin | None:
        """Of the queries and keys of an indexer with this rotation; None: nothing is rotated."""
        if rope is None or rope == self.spec.rope:
            return self._rotation(batch)
        return rotary_embedding(rope).step(batch)

    def mix(
        self,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        rows: torch.Tensor | None,
        batch: ForwardBatch,
        state: LayerState,
        choice: Choice | None = None,
    ) -> torch.Tensor:
        """What lies between the projections.

        Args:
            q_nope: (T, H, N).
            q_rope: (T, H, R), not rotated yet.
            rows: (T, r + R), latents before their norm and keys before their rotation; None: the cache has them.
            batch: The step.
            state: The latents' cache, advanced.
            choice: What each query sees; None: all tokens before it.

        Returns:
            (T, H · W).
        """
        q_rope, latent = self._prepare(q_rope, rows, batch)
        if latent is not None:
            state["latent"].index_copy_(0, batch.slot_mapping, latent)
        decodes = batch.num_decodes
        biases: Sequence[torch.Tensor | None] = choice or (None,) * (bool(decodes) + len(batch.prefills))
        if not batch.prefills:
            mixed = self._decode(q_nope, q_rope, batch, state, biases[0])
        else:
            mixed = q_nope.new_empty(q_nope.shape[0], self.spec.num_heads, self.spec.v_head_dim)
            if decodes:
                mixed[:decodes] = self._decode(q_nope[:decodes], q_rope[:decodes], batch, state, biases[0])
            for chunk, bias in zip(batch.prefills, biases[bool(decodes) :], strict=True):
                span = slice(chunk.start, chunk.stop)
                own = None if latent is None else latent[span]
                mixed[span] = self.attend_chunk(chunk, q_nope[span], q_rope[span], own, batch, state, bias)
        return mixed.flatten(1)

    def _prepare(
        self, q_rope: torch.Tensor, rows: torch.Tensor | None, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rotated q_rope (T, H, R), and the cache's rows (T, r + R), normed and rotated, if there are ``rows``."""
        spec, cos_sin = self.spec, self._rotation(batch)
        interleaved = spec.rope is not None and spec.rope.interleaved
        if rows is None:
            return q_rope if cos_sin is None else rotate(q_rope, cos_sin, interleaved=interleaved), None
        latent, k_rope = rows[:, : spec.kv_lora_rank], rows[:, spec.kv_lora_rank :]
        if self.kv_a_norm is not None:
            latent = self.kv_a_norm(latent)
        if self.k_rope_norm is not None:
            k_rope = self.k_rope_norm(k_rope)
        if cos_sin is None:
            return q_rope, torch.cat((latent, k_rope), -1)
        # The shared key is one more head to rotate.
        rotated = rotate(torch.cat((q_rope, k_rope.unsqueeze(1)), 1), cos_sin, interleaved=interleaved)
        return rotated[:, :-1], torch.cat((latent, rotated[:, -1]), -1)

    def query_latent(self, hidden: torch.Tensor) -> torch.Tensor:
        """(T, h) to what the queries are made from: a latent (T, r), normed where there is a norm, or the same.

        Where ``joins_latents``: (T, 2r), the latent behind its norm and before it.
        """
        if self.spec.q_lora_rank is None:
            return hidden
        compressed: torch.Tensor = self.q_a_proj(hidden)
        normed = compressed if self.q_a_norm is None else self.q_a_norm(compressed)
        return torch.cat((normed, compressed), -1) if self.spec.joins_latents else normed

    def queries(self, hidden: torch.Tensor, q_latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """q_nope (T, H, N) and q_rope (T, H, R), not rotated yet."""
        spec = self.spec
        heads, nope, rope = spec.num_heads, spec.qk_nope_head_dim, spec.qk_rope_head_dim
        query = self.q_proj(q_latent) if spec.q_lora_rank is None else self.q_b_proj(q_latent)
        if spec.q_rope_from_hidden:
            return query.view(-1, heads, nope), self.q_rope_proj(hidden).view(-1, heads, rope)
        query = query.view(-1, heads, nope + rope)
        return query[..., :nope], query[..., nope:]

    def _decode(
        self,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        batch: ForwardBatch,
        state: LayerState,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(B, H, N) and (B, H, R) over the cached rows, absorbed, to (B, H, W); ``bias``: instead of the step's."""
        spec = self.spec
        mask = decode_bias(batch, spec.sliding_window, q_nope.dtype) if bias is None else bias
        rows = decode_rows(batch, state["latent"]).unsqueeze(1)
        query = torch.cat((self.k_b_proj.absorb(q_nope), q_rope), -1).unsqueeze(1)
        # The rows serve as values too, rotated part included: attention kernels want keys and values of one
        # width, and dropping the last R columns of the result is cheaper than a copy of the rows without them.
        sinks = None if self.sinks is None else self.sinks.unsqueeze(0)
        mixed = attend(query, rows, rows, scale=spec.scale, mask=mask, sinks=sinks)
        return self.v_b_proj.expand_mixed(mixed.squeeze(1)[..., : spec.kv_lora_rank])

    def attend_chunk(
        self,
        chunk: PrefillChunk,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        latent: torch.Tensor | None,
        batch: ForwardBatch,
        state: LayerState,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A chunk's queries over the expanded keys and values of the tokens up to each, to (n, H, W).

        Args:
            latent: (n, r + R), the chunk's own rows; None: they are in the cache only.
            bias: (n, N), instead of the chunk's own.
        """
        spec, first = self.spec, 0
        if chunk.context_len or latent is None:
            # Positions that the chunk's first token doesn't see are seen by none of its tokens.
            first = max(0, first_visible(chunk.context_len, spec.sliding_window, None))
            latent = state["latent"].index_select(0, chunk_slots(batch, chunk)[first:])
        key, value = self.expand(latent)
        query = torch.cat((q_nope, q_rope), -1)
        # Fused attention kernels want equal widths; columns of zeros change neither scores nor values.
        width = max(query.shape[-1], spec.v_head_dim)
        query, key, value = (functional.pad(part, (0, width - part.shape[-1])) for part in (query, key, value))
        mask = chunk_bias(batch, chunk, first, spec.sliding_window, query.dtype) if bias is None else bias
        mixed = attend(
            query.transpose(0, 1).unsqueeze(0),
            key.transpose(0, 1).unsqueeze(0),
            value.transpose(0, 1).unsqueeze(0),
            scale=spec.scale,
            mask=mask,
            causal=mask is None,
            sinks=None if self.sinks is None else self.sinks.unsqueeze(-1),
        )
        return mixed.squeeze(0).transpose(0, 1)[..., : spec.v_head_dim]

    def expand(self, latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cached rows (m, r + R) to keys (m, H, N + R) and values (m, H, W)."""
        rank = self.spec.kv_lora_rank
        compressed, k_rope = latent[:, :rank], latent[:, rank:]
        k_nope = self.k_b_proj(compressed)
        shared = k_rope.unsqueeze(1).expand(-1, self.spec.num_heads, -1)
        return torch.cat((k_nope, shared), -1), self.v_b_proj(compressed)
