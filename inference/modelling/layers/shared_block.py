"""SharedBlock: a transformer block whose weights several layers share, with adapters of each layer's own.

Source: https://arxiv.org/abs/2411.15242, section 2.

Shape letters: T rows, h hidden, r rank of an adapter.
"""

from __future__ import annotations

import torch

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.attention import Attention
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.mlp import MLP
from inference.modelling.layers.norm import Norm
from inference.modelling.specs.shared_blocks import SharedBlockSpec


class SharedWeights(Layer):
    """What the layers share.

    Args:
        spec: Of any of these layers.
        hidden_size: h.
    """

    def __init__(self, spec: SharedBlockSpec, hidden_size: int) -> None:
        super().__init__()
        self.input_norm = Norm(spec.norm, 2 * hidden_size)
        self.attention = Attention(spec.attention, 2 * hidden_size)
        self.attention.o_proj = Linear(spec.attention.num_heads * spec.attention.head_dim, hidden_size)
        self.mlp_norm = Norm(spec.norm, hidden_size)
        self.mlp = MLP(spec.mlp, hidden_size)


class SharedBlock(Layer):
    """One layer's use of a block: linear(mlp(norm(attention(norm([x | embedding]))))).

    Args:
        spec: Sizes and ranks.
        hidden_size: h.
        block: The weights, which are other layers' too.
    """

    def __init__(self, spec: SharedBlockSpec, hidden_size: int, block: SharedWeights) -> None:
        super().__init__()
        self.spec = spec
        self.block = block
        if spec.attention_rank is not None:
            rank, heads = spec.attention_rank, spec.attention
            self.qkv_down_proj = Linear(2 * hidden_size, 3 * rank)
            self.q_up_proj = Linear(rank, heads.num_heads * heads.head_dim)
            self.k_up_proj = Linear(rank, heads.num_kv_heads * heads.head_dim)
            self.v_up_proj = Linear(rank, heads.num_kv_heads * heads.head_dim)
        if spec.mlp_rank is not None:
            self.mlp_down_proj = Linear(hidden_size, spec.mlp_rank)
            self.mlp_up_proj = Linear(spec.mlp_rank, 2 * spec.mlp.intermediate_size)
        self.out_proj = Linear(hidden_size, hidden_size)

    def forward(
        self, hidden: torch.Tensor, embedding: torch.Tensor, batch: ForwardBatch, state: LayerState
    ) -> torch.Tensor:
        """(T, h) of the stream and of the embedding to (T, h); the rows' keys and values are written to ``state``."""
        block = self.block
        normed = block.input_norm(torch.cat((hidden, embedding), 1))
        joint = block.attention.qkv_proj(normed)
        if self.spec.attention_rank is not None:
            low = self.qkv_down_proj(normed).chunk(3, 1)
            ups = (self.q_up_proj, self.k_up_proj, self.v_up_proj)
            joint = joint + torch.cat([up(part.contiguous()) for up, part in zip(ups, low, strict=True)], 1)
        attended = block.attention.o_proj(block.attention.mix(joint, batch, state))
        entering = block.mlp_norm(attended)
        values = block.mlp.gate_up_proj(entering)
        if self.spec.mlp_rank is not None:
            values = values + self.mlp_up_proj(self.mlp_down_proj(entering))
        out: torch.Tensor = self.out_proj(block.mlp.down_proj(block.mlp.activate(values)))
        return out
