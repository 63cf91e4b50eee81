"""Specs of transformer blocks whose weights several layers share (Zamba and Zamba 2).

Shape letters: h hidden, r rank of an adapter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inference.modelling.specs.layers import AttentionSpec, MLPSpec
from inference.modelling.specs.parts import NormSpec, Shape, StateTensor, prefixed


@dataclass(frozen=True, slots=True)
class SharedBlockSpec:
    """linear(mlp(norm(attention(norm([x | embedding]))))), https://arxiv.org/abs/2411.15242, section 2.

    Block and norms belong to all layers with the same ``block``; the last projection, and what adapters add to the
    projections of queries, keys and values and of the MLP's gate and up, to one layer.

    Attributes:
        block: Number of the block.
        attention: Reads 2h values.
        attention_rank: r of the adapters of queries, keys and values; None: there are none.
        mlp_rank: r of the MLP's adapter; None: there is none.
    """

    kind: ClassVar[str] = "shared_block"
    block: int
    attention: AttentionSpec
    mlp: MLPSpec
    norm: NormSpec
    attention_rank: int | None
    mlp_rank: int | None

    def block_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Parameters that the layers share."""
        attention = self.attention.parameter_shapes(2 * hidden_size)
        attention["o_proj.weight"] = (hidden_size, self.attention.num_heads * self.attention.head_dim)
        return {
            **prefixed("input_norm", self.norm.parameter_shapes(2 * hidden_size)),
            **prefixed("attention", attention),
            **prefixed("mlp_norm", self.norm.parameter_shapes(hidden_size)),
            **prefixed("mlp", self.mlp.parameter_shapes(hidden_size)),
        }

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """The block's, under ``block``, and the layer's own; ``qkv_down_proj`` stacks queries, keys and values."""
        shapes = prefixed("block", self.block_shapes(hidden_size))
        if self.attention_rank is not None:
            rank, spec = self.attention_rank, self.attention
            shapes["qkv_down_proj.weight"] = (3 * rank, 2 * hidden_size)
            for name, heads in (("q", spec.num_heads), ("k", spec.num_kv_heads), ("v", spec.num_kv_heads)):
                shapes[f"{name}_up_proj.weight"] = (heads * spec.head_dim, rank)
        if self.mlp_rank is not None:
            shapes["mlp_down_proj.weight"] = (self.mlp_rank, hidden_size)
            shapes["mlp_up_proj.weight"] = (2 * self.mlp.intermediate_size, self.mlp_rank)
        shapes["out_proj.weight"] = (hidden_size, hidden_size)
        return shapes

    def state(self) -> tuple[StateTensor, ...]:
        """Keys and values, of each layer that uses the block its own."""
        return self.attention.state()
