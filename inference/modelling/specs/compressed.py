"""Specs of attention over a window and pooled entries for what lies before it (DeepSeek V4).

Shape letters: h hidden, H heads, P head width, r rank of the latent that queries are made from, G groups of heads, m
tokens of an entry, S series, D width of an entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inference.modelling.specs.parts import NormSpec, RopeSpec, Shape, StateTensor, prefixed


@dataclass(frozen=True, slots=True)
class CompressorSpec:
    """What pools the rows of every m tokens to one entry.

    With kv and gate two projections of a token's row, and b a bias for each place in a window, an entry is the norm of

        Σ softmax(gate + b) · kv,  the softmax over tokens, for each of the D values alone,

    rotated as the first position of its window; kv may be normed before. Without overlap the sum runs over the window's
    m tokens. With it there are two series of kv and gate: the sum runs over the first series of the window before, if
    there is one, and the second series of the window itself.

    Attributes:
        window: m.
        width: D.
        overlaps: Whether there are two series.
        rope: Of the last values of an entry; None: it isn't rotated.
        norm: Of entries; None: there is none.
        kv_norm: Of kv; None: there is none.
    """

    window: int
    width: int
    overlaps: bool
    rope: RopeSpec | None
    norm: NormSpec | None
    kv_norm: NormSpec | None = None

    @property
    def num_series(self) -> int:
        """S."""
        return 2 if self.overlaps else 1

    @property
    def piece_width(self) -> int:
        """Values of an entry that lie with one token."""
        return -(-self.width // self.window)

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Shapes of the parameters, by name within the compressor; ``kv_gate_proj`` is kv, then gate."""
        rows = self.num_series * self.width
        shapes: dict[str, Shape] = {"kv_gate_proj.weight": (2 * rows, hidden_size)}
        shapes["position_bias"] = (self.window, rows)
        for name, norm in (("norm", self.norm), ("kv_norm", self.kv_norm)):
            if norm is not None:
                shapes |= prefixed(name, norm.parameter_shapes(self.width))
        return shapes

    def state(self, name: str) -> tuple[StateTensor, ...]:
        """What is stored of the entries.

        A token never writes to the slot of another one, which another sequence may share. So the entry of a window is
        stored by the tokens of the next window, ``piece_width`` values each: D / m values for each token of a sequence,
        which is what the entries themselves take. Until then it is ``newest``.

        The unfinished window is the sums of its softmax, not its rows: for each series and value the greatest gate, and
        Σ exp(gate - greatest) without and with kv. That is 3 · S · D values for each sequence whatever m is.

        Args:
            name: Start of the tensors' names.
        """
        return (
            StateTensor(f"{name}_pieces", "token", (self.piece_width,)),
            StateTensor(f"{name}_newest", "sequence", (self.width,)),
            StateTensor(f"{name}_sums", "sequence", (3, self.num_series, self.width), "float32"),
        )


@dataclass(frozen=True, slots=True)
class CompressedIndexerSpec:
    """What chooses the entries that each query sees, by small queries, and entries of its own to score them with.

    In latent attention (GLM-5.3) it chooses windows, and the query sees their tokens. It always sees the tokens after
    the last whole window.

    Attributes:
        num_heads: Queries of each token.
        top_k: Number of entries that a query sees.
        compressor: Of its own entries, whose windows are those of the attention's.
    """

    num_heads: int
    top_k: int
    compressor: CompressorSpec

    def parameter_shapes(self, hidden_size: int, q_lora_rank: int) -> dict[str, Shape]:
        """Shapes of the parameters, by name within ``indexer``."""
        return {
            "q_proj.weight": (self.num_heads * self.compressor.width, q_lora_rank),
            "head_weights.weight": (self.num_heads, hidden_size),
            **prefixed("compressor", self.compressor.parameter_shapes(hidden_size)),
        }

    @property
    def seen_tokens(self) -> int:
        """Longest context, the query's own token included, of which a query of latent attention sees every token."""
        return (self.top_k + 1) * self.compressor.window - 1

    def macs(self, context: int) -> int:
        """Multiply-adds of a token's scores."""
        return self.num_heads * self.compressor.width * (context // self.compressor.window)

    def state(self) -> tuple[StateTensor, ...]:
        """What is stored of its own entries."""
        return self.compressor.state("index")


@dataclass(frozen=True, slots=True)
class CompressedAttentionSpec:
    """Attention with one head of keys, which are the values too, over a window and pooled entries.

    Queries come from a latent, and each head of them is normed without weights. The last values of queries and keys are
    rotated; those of the result are rotated back, so that what a token adds depends on its distance. The heads' results
    pass a low-rank projection in G groups of neighbouring heads.

    Attributes:
        scale: Factor of q · k.
        norm: Of the latent, of each query head (without weights) and of the keys.
        sliding_window: Tokens that a query sees themselves, its own included.
        output_groups: G.
        output_rank: Values that a group's first output projection gives.
        compressor: Makes the entries; a query sees those of all whole windows up to its position. None: there are none.
        indexer: Chooses among them; None: all are seen.
    """

    kind: ClassVar[str] = "compressed_attention"
    num_heads: int
    head_dim: int
    q_lora_rank: int
    scale: float
    rope: RopeSpec
    norm: NormSpec
    sliding_window: int
    output_groups: int
    output_rank: int
    compressor: CompressorSpec | None = None
    indexer: CompressedIndexerSpec | None = None

    @property
    def group_width(self) -> int:
        """H · P / G, what the first output projection of a group reads."""
        return self.num_heads * self.head_dim // self.output_groups

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Shapes of the parameters; the groups' first output projections are matrices of their own."""
        shapes: dict[str, Shape] = {
            "q_a_proj.weight": (self.q_lora_rank, hidden_size),
            "q_b_proj.weight": (self.num_heads * self.head_dim, self.q_lora_rank),
            "kv_proj.weight": (self.head_dim, hidden_size),
            **prefixed("q_a_norm", self.norm.parameter_shapes(self.q_lora_rank)),
            **prefixed("kv_norm", self.norm.parameter_shapes(self.head_dim)),
            "sinks": (self.num_heads,),
            "o_b_proj.weight": (hidden_size, self.output_groups * self.output_rank),
        }
        for name in self.output_names():
            shapes[f"o_a.{name}.weight"] = (self.output_rank, self.group_width)
        if self.compressor is not None:
            shapes |= prefixed("compressor", self.compressor.parameter_shapes(hidden_size))
        if self.indexer is not None:
            shapes |= prefixed("indexer", self.indexer.parameter_shapes(hidden_size, self.q_lora_rank))
        return shapes

    def output_names(self) -> tuple[str, ...]:
        """Names of the groups' first output projections, within ``o_a``."""
        return tuple(f"group{number}_proj" for number in range(self.output_groups))

    def state(self) -> tuple[StateTensor, ...]:
        """The rotated key of each token, and what is stored of entries."""
        found: tuple[StateTensor, ...] = (StateTensor("kv", "token", (self.head_dim,)),)
        if self.compressor is not None:
            found = (*found, *self.compressor.state("pooled"))
        return found if self.indexer is None else (*found, *self.indexer.state())
