"""Spec of multi-head latent attention.

Shape letters: h hidden, H heads, r rank of the latent that keys and values are made from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inference.modelling.specs.compressed import CompressedIndexerSpec
from inference.modelling.specs.indexer import IndexerSpec, softmax_scale_shapes
from inference.modelling.specs.parts import NormSpec, RopeSpec, Shape, StateTensor, prefixed


@dataclass(frozen=True, slots=True)
class MLASpec:
    """Multi-head latent attention; the cache holds the compressed latent and the rotated shared key.

    Two spellings, one arithmetic: DeepSeek norms the latents and takes the rotary query from the
    query latent; oxidizr has no norms and takes it from the hidden state (``q_rope_from_hidden``).

    Attributes:
        q_lora_rank: None: q comes straight from the hidden state.
        rope: None: the parts of queries and keys that would be rotated aren't (Kimi Linear).
        head_gate: Each head's output is multiplied by sigmoid of a projection of the input, before ``o_proj`` (Ling 3).
        scale: Factor of (q_nope·k_nope + q_rope·k_rope).
        latent_multiplier: Multiplies the latents that keys and values are made from (LongCat-Flash).
        indexer: Chooses the keys that each query sees; None: all.
        choice_source: Number of the earlier layer whose indexer's choice the queries see (GLM-5); None: its own.
        joins_latents: Queries and output gate are made from the query latent behind its norm and before it, side by
            side (A.X-K2).
        output_gate: The heads' values are multiplied by sigmoid of a projection of the input, or of the joined latents.
        has_sinks, query_growth: As in ``AttentionSpec``; the growth multiplies the rotated part of a query, too.
        has_softmax_scale: Each head's query at position p is multiplied by a · ln(p + 1) + b, both learned (Mistral
            Large 4).
        learned_frequencies: The frequencies of the rotation are multiplied by exp of a learned number each.
        kv_source: Number of the earlier layer whose cached latents and rotated keys the queries read; the layer
            computes none of its own; None: it does.
        k_rope_norm: Norm of the keys' rotated part, before the rotation (Dots 3 Note); None: there is none.
        sliding_window: As in ``AttentionSpec``.
    """

    kind: ClassVar[str] = "mla"
    num_heads: int
    kv_lora_rank: int
    q_lora_rank: int | None
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    scale: float
    rope: RopeSpec | None
    q_rope_from_hidden: bool = False
    q_a_norm: NormSpec | None = None
    kv_a_norm: NormSpec | None = None
    bias: bool = False
    head_gate: bool = False
    indexer: IndexerSpec | CompressedIndexerSpec | None = None
    latent_multiplier: float = 1.0
    choice_source: int | None = None
    joins_latents: bool = False
    output_gate: bool = False
    has_sinks: bool = False
    query_growth: tuple[float, int] | None = None
    has_softmax_scale: bool = False
    learned_frequencies: bool = False
    kv_source: int | None = None
    k_rope_norm: NormSpec | None = None
    sliding_window: int | None = None

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """``kv_a_proj`` is latent then rotary key; ``k_b_proj``, ``v_b_proj`` expand the latent per head."""
        heads, nope, rope = self.num_heads, self.qk_nope_head_dim, self.qk_rope_head_dim
        q_width = heads * (nope if self.q_rope_from_hidden else nope + rope)
        shapes = {} if self.kv_source is not None else self._latent_shapes(hidden_size)
        shapes["k_b_proj.weight"] = (heads * nope, self.kv_lora_rank)
        shapes["v_b_proj.weight"] = (heads * self.v_head_dim, self.kv_lora_rank)
        if self.q_lora_rank is None:
            shapes["q_proj.weight"] = (q_width, hidden_size)
        else:
            shapes["q_a_proj.weight"] = (self.q_lora_rank, hidden_size)
            if self.bias:
                shapes["q_a_proj.bias"] = (self.q_lora_rank,)
            if self.q_a_norm is not None:
                shapes |= prefixed("q_a_norm", self.q_a_norm.parameter_shapes(self.q_lora_rank))
            shapes["q_b_proj.weight"] = (q_width, self.query_input(self.q_lora_rank))
        if self.q_rope_from_hidden:
            shapes["q_rope_proj.weight"] = (heads * rope, hidden_size)
        if self.head_gate:
            shapes["head_gate.weight"] = (heads, hidden_size)
        if self.output_gate:
            inputs = self.query_input(self.q_lora_rank or 0) if self.joins_latents else hidden_size
            shapes["gate_proj.weight"] = (heads * self.v_head_dim, inputs)
        if self.has_sinks:
            shapes["sinks"] = (heads,)
        if self.has_softmax_scale:
            shapes |= prefixed("softmax_scale", softmax_scale_shapes(heads))
        if self.learned_frequencies:
            shapes["frequency_exponents"] = (rope // 2,)
        shapes["o_proj.weight"] = (hidden_size, heads * self.v_head_dim)
        if self.bias:
            shapes["o_proj.bias"] = (hidden_size,)
        if self.indexer is not None:
            shapes |= prefixed("indexer", self.indexer.parameter_shapes(hidden_size, self.q_lora_rank or hidden_size))
        return shapes

    def _latent_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Of what makes the cached rows."""
        width = self.kv_lora_rank + self.qk_rope_head_dim
        shapes: dict[str, Shape] = {"kv_a_proj.weight": (width, hidden_size)}
        if self.bias:
            shapes["kv_a_proj.bias"] = (width,)
        if self.kv_a_norm is not None:
            shapes |= prefixed("kv_a_norm", self.kv_a_norm.parameter_shapes(self.kv_lora_rank))
        if self.k_rope_norm is not None:
            shapes |= prefixed("k_rope_norm", self.k_rope_norm.parameter_shapes(self.qk_rope_head_dim))
        return shapes

    def query_input(self, rank: int) -> int:
        """Width of what ``q_b_proj`` reads."""
        return 2 * rank if self.joins_latents else rank

    def state(self) -> tuple[StateTensor, ...]:
        """One row per token: latent (normed where there is a norm), then the rotated key; the indexer's own."""
        latent = StateTensor("latent", "token", (self.kv_lora_rank + self.qk_rope_head_dim,))
        latents = (latent,) if self.kv_source is None else ()
        return latents if self.indexer is None else (*latents, *self.indexer.state())
