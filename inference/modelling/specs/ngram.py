"""Spec of what a layer adds to several residual streams from the last tokens themselves (Qwen4-Exp's PLE).

Shape letters: h hidden, P streams, N tokens of the longest n-gram, H heads of each order, E width of all heads, K
kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.modelling.specs.parts import NormSpec, Shape, StateTensor, prefixed


@dataclass(frozen=True, slots=True)
class NGramSpec:
    """Embeddings of the last 2 … N tokens, gated by each stream, then a convolution with gaps.

    An n-gram's row is (xor of token · multiplier) modulo the size of the head's part of the table, in int64. With
    e = the rows of all heads side by side, and per stream i

        a_i = key_norm(key(e))_i · query_norm(X)_i / √h,  y_i = sigmoid(sign(a_i) · √max(|a_i|, 1e-6)) · value(e),

    the streams become X + y + silu(conv(conv_norm(y))). The convolution's taps are N tokens apart.

    Source: transformers' ``qwen4_exp``.

    Attributes:
        hidden_size: h.
        num_streams: P.
        order: N.
        heads_per_order: H.
        head_dim: E = (N - 1) · H · ``head_dim``.
        rows: Of the table, those of all heads one below the other.
        conv_kernel: K.
        eos_token_id: Stands for the tokens before the start, and for those before another one of it.
        norm: Of keys, queries and what enters the convolution; each stream has weights of its own.
    """

    hidden_size: int
    num_streams: int
    order: int
    heads_per_order: int
    head_dim: int
    rows: int
    conv_kernel: int
    eos_token_id: int
    norm: NormSpec

    @property
    def num_heads(self) -> int:
        """(N - 1) · H."""
        return (self.order - 1) * self.heads_per_order

    @property
    def conv_length(self) -> int:
        """Inputs that the convolution keeps."""
        return (self.conv_kernel - 1) * self.order

    def parameter_shapes(self) -> dict[str, Shape]:
        """Shapes of the parameters, by name within ``ngram``."""
        width, inputs = self.num_streams * self.hidden_size, self.num_heads * self.head_dim
        shapes: dict[str, Shape] = {
            "table.weight": (self.rows, self.head_dim),
            "hash.multipliers": (self.order,),
            "hash.sizes": (self.num_heads,),
            "hash.offsets": (self.num_heads,),
            "key_proj.weight": (width, inputs),
            "value_proj.weight": (self.hidden_size, inputs),
            "conv1d.weight": (width, 1, self.conv_kernel),
        }
        for name in ("key_norm", "query_norm", "conv_norm"):
            shapes |= prefixed(name, self.norm.parameter_shapes(self.num_streams, self.hidden_size))
        return shapes

    def integer_parameters(self) -> tuple[str, ...]:
        """Those that are int64."""
        return ("hash.multipliers", "hash.sizes", "hash.offsets")

    def state(self) -> tuple[StateTensor, ...]:
        """The last N - 1 tokens, whose numbers float32 holds exactly up to 2^24, and the convolution's inputs."""
        channels = self.num_streams * self.hidden_size
        return (
            StateTensor("ngram_tokens", "sequence", (self.order - 1,), "float32"),
            StateTensor("ngram_conv_state", "sequence", (channels, self.conv_length), "state"),
        )
