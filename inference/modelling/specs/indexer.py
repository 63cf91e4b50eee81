"""Specs of what chooses the keys that queries see, in layers of sparse attention.

Shape letters: h hidden, r rank of the latent that queries are made from.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.modelling.specs.parts import NormSpec, RopeSpec, Shape, StateTensor, prefixed


@dataclass(frozen=True, slots=True)
class BlockIndexerSpec:
    """What chooses the blocks of keys that the query heads of each key/value head see (MiniMax-M3).

    Attributes:
        head_dim: Of its queries, one for each key/value head, and of the key of each token.
        top_k: Number of blocks that a query sees.
        local_blocks: So many of them are the query's own and those before it.
    """

    head_dim: int
    block_size: int
    top_k: int
    local_blocks: int
    norm: NormSpec

    def parameter_shapes(self, hidden_size: int, num_kv_heads: int) -> dict[str, Shape]:
        """Shapes of the parameters, by name within ``indexer``."""
        return {
            "q_proj.weight": (num_kv_heads * self.head_dim, hidden_size),
            "k_proj.weight": (self.head_dim, hidden_size),
            **prefixed("q_norm", self.norm.parameter_shapes(self.head_dim)),
            **prefixed("k_norm", self.norm.parameter_shapes(self.head_dim)),
        }


@dataclass(frozen=True, slots=True)
class PooledIndexerSpec:
    """What chooses the blocks of keys that the queries of all heads see, by the mean of each block's keys (Qwen4-Exp).

    Attributes:
        num_heads: Queries of each token.
        head_dim: Of a query, and of the key of each token.
        top_k: Number of whole blocks that a query sees, beside the tokens behind the last whole one.
        norm: Of queries, and of the means.
    """

    num_heads: int
    head_dim: int
    block_size: int
    top_k: int
    norm: NormSpec

    def parameter_shapes(self, hidden_size: int, num_kv_heads: int) -> dict[str, Shape]:
        """Shapes of the parameters, by name within ``indexer``; ``qk_proj`` is the queries, then the key."""
        return {
            "qk_proj.weight": ((self.num_heads + 1) * self.head_dim, hidden_size),
            **prefixed("q_norm", self.norm.parameter_shapes(self.head_dim)),
            **prefixed("k_norm", self.norm.parameter_shapes(self.head_dim)),
        }


@dataclass(frozen=True, slots=True)
class IndexerSpec:
    """What chooses the keys that each query sees (DeepSeek-V3.2).

    Attributes:
        head_dim: Of its queries, and of the key of each token, whose first values are rotated.
        top_k: Number of keys that a query sees.
        rope: As the attention's, but for the order of the pairs; None: nothing is rotated.
        rotates_last: Their last values are rotated instead (HY 4).
        hidden_norm: Its queries are made from this norm of the hidden state (Mistral Large 4); None: from what the
            attention makes its own queries from.
        has_softmax_scale: As in ``MLASpec``.
    """

    num_heads: int
    head_dim: int
    top_k: int
    rope: RopeSpec | None
    k_norm: NormSpec
    rotates_last: bool = False
    hidden_norm: NormSpec | None = None
    has_softmax_scale: bool = False

    @property
    def seen_tokens(self) -> int:
        """Longest context, the query's own token included, of which a query sees every token."""
        return self.top_k

    def macs(self, context: int) -> int:
        """Multiply-adds of a token's scores."""
        return self.num_heads * self.head_dim * context

    def state(self) -> tuple[StateTensor, ...]:
        """The key of each token."""
        return (StateTensor("index_k", "token", (self.head_dim,)),)

    def parameter_shapes(self, hidden_size: int, query_input: int) -> dict[str, Shape]:
        """Shapes of the parameters, by name within ``indexer``; ``query_input``: width of what queries come from."""
        shapes = {
            "q_proj.weight": (self.num_heads * self.head_dim, query_input),
            "k_proj.weight": (self.head_dim, hidden_size),
            **prefixed("k_norm", self.k_norm.parameter_shapes(self.head_dim)),
            "head_weights.weight": (self.num_heads, hidden_size),
        }
        if self.hidden_norm is not None:
            shapes |= prefixed("hidden_norm", self.hidden_norm.parameter_shapes(hidden_size))
        if self.has_softmax_scale:
            shapes |= prefixed("softmax_scale", softmax_scale_shapes(self.num_heads))
        return shapes


def softmax_scale_shapes(num_heads: int) -> dict[str, Shape]:
    """Shapes of the parameters of ``MLASpec.has_softmax_scale``."""
    return {"scale": (num_heads,), "bias": (num_heads,)}
