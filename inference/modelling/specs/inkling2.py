"""Specs of Inkling 2's parts: attention with vectors cut at a length, and residual streams of blocks of layers.

Shape letters: h hidden, H query heads, V key/value heads, P head width, r learned profiles of the bias, K taps, Q
inputs of a mixer.

Source: transformers' ``inkling2``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inference.modelling.specs.inkling import RelativeAttentionSpec
from inference.modelling.specs.parts import NormSpec, Shape, StateTensor, prefixed


@dataclass(frozen=True, slots=True)
class ClippedAttentionSpec(RelativeAttentionSpec):
    """Relative attention whose vectors are cut at a length, with a sink for each row and head, and an output gate.

    With clip(x, c) = x · min(1, c / (‖x‖ + 1e-6)) over a head, a query q becomes clip(s ⊙ q, c), a key clip(k, c) and
    the weights of the profiles clip(s' ⊙ ρ, c'), with learned s and s'. The sink is the score of a column without a
    value: a projection of the row, for each query head. Values have a norm without weights (``v_norm``).

    Attributes:
        qk_limit: c.
        relative_limit: c'.
        has_three_inputs: Queries, keys and values are projected from three different rows of each token. Then the
            convolution of keys and values is dynamic: K taps for each key/value head, projected from the key's or the
            value's row, are added to the learned ones, and ``qkv_proj`` has queries only.
    """

    kind: ClassVar[str] = "clipped_attention"
    qk_limit: float = 1.0
    relative_limit: float = 1.0
    has_three_inputs: bool = False

    @property
    def qkv_rows(self) -> int:
        """Rows of ``qkv_proj``."""
        queries = self.num_heads * self.head_dim
        return queries if self.has_three_inputs else queries + self.conv_width

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Those of relative attention, the factors before the cuts, the sinks' projection, and the taps'."""
        shapes = {
            **RelativeAttentionSpec.parameter_shapes(self, hidden_size),
            "query_scale": (self.num_heads, self.head_dim),
            "relative_scale": (self.num_heads, self.relative_width),
            "sink_proj.weight": (self.num_heads, hidden_size),
        }
        if self.has_three_inputs:
            del shapes["conv.conv1d.weight"]
            shapes["conv.taps"] = (self.conv_width, self.conv_kernel)
            for name in ("key", "value"):
                shapes[f"{name}_proj.weight"] = (self.conv_width // 2, hidden_size)
                shapes[f"{name}_taps_proj.weight"] = (self.num_kv_heads * self.conv_kernel, hidden_size)
        return shapes

    def state(self) -> tuple[StateTensor, ...]:
        """Keys and values of each token, and the convolution's last inputs.

        Those of a dynamic one have another name, as its form, which has no kernel, needs them in float32.
        """
        *tokens, conv = RelativeAttentionSpec.state(self)
        name = "dynamic_conv_state" if self.has_three_inputs else conv.name
        return (*tokens, StateTensor(name, conv.per, conv.shape, conv.dtype))


@dataclass(frozen=True, slots=True)
class BlockResidualSpec:
    """How the mixers of a layer read what blocks of layers gave, and add to it (attention residuals).

    The streams X are the embedding, the sum of what the mixers of each block gave, and last the sum of the block that
    has begun. With N = X / rms(X), each stream by itself, a learned query w reads

        Σ_i a_i · N_i,  a = softmax over the streams of w · N_i / √h.

    A norm lies behind each reading. What a mixer gives is added to the last stream; the first layer of a block begins
    a stream with what its token mixer gives.

    Attributes:
        norm: Behind each reading.
        num_inputs: Q, how many rows the token mixer reads of each token, each by a query and a norm of its own.
        begins_block: The layer is the first one of a block.
        reads_embedding: The token mixer's norms read the only stream there is, without a query: the first layer.
    """

    norm: NormSpec
    num_inputs: int = 1
    begins_block: bool = False
    reads_embedding: bool = False

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Shapes of the parameters of a layer, by name within ``blocks``."""
        shapes: dict[str, Shape] = {}
        for mixer, count in (("token", self.num_inputs), ("channel", 1)):
            shapes |= prefixed(f"{mixer}.norm", self.norm.parameter_shapes(count, hidden_size))
            shapes[f"{mixer}.query"] = (count, hidden_size)
        if self.reads_embedding:
            del shapes["token.query"]
        return shapes


@dataclass(frozen=True, slots=True)
class BlockStreamsSpec:
    """The streams of ``BlockResidualSpec`` begin as the embedding, and the final norm reads them by a query."""

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Shape of the query, by name within ``streams``."""
        return {"query": (1, hidden_size)}
