"""PooledIndexer: chooses the blocks of keys that each query sees, by the mean of the keys in each block.

Shape letters: T rows, n queries, m keys, H index heads, D width of an index key, b whole blocks.

Source: transformers' ``qwen4_exp`` (its QSA).
"""

from __future__ import annotations

import torch
from torch.nn import functional

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.norm import Norm
from inference.modelling.layers.rotary import rotary_embedding, rotate_first
from inference.modelling.specs.indexer import PooledIndexerSpec
from inference.modelling.specs.parts import RopeSpec


class PooledIndexer(Layer):
    """A block's score is Σ_heads relu(q · mean key); seen are the best whole blocks, and the tokens behind the last.

    Means are normed, then rotated as the first position of their block.

    Args:
        spec: Sizes.
        rope: The attention's rotation, which turns the first values of queries and means here too.
        hidden_size: h.
    """

    def __init__(self, spec: PooledIndexerSpec, rope: RopeSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.qk_proj = Linear(hidden_size, (spec.num_heads + 1) * spec.head_dim)
        self.q_norm = Norm(spec.norm, spec.head_dim)
        self.k_norm = Norm(spec.norm, spec.head_dim)
        self.rope = rotary_embedding(rope)

    def prepare(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to the rows' queries (T, H, D), rotated; their keys are written to ``state`` as they are."""
        rows = self.qk_proj(hidden).view(hidden.shape[0], -1, self.spec.head_dim)
        state["index_k"].index_copy_(0, batch.slot_mapping, rows[:, -1])
        return rotate_first(self.q_norm(rows[:, :-1]), self.rope.step(batch), self.rope.spec)

    def bias(self, query: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """0 for the keys that each query sees and -inf for the others; of equal blocks the earliest is better.

        Args:
            query: (…, n, H, D).
            keys: (…, m, D), of the positions from 0 on.
            positions: (…, n), of the queries.

        Returns:
            (…, 1, n, m), for all heads, in the dtype of ``query``.
        """
        size, count = self.spec.block_size, keys.shape[-2]
        scores = self._scores(query, self._block_keys(keys))
        num_whole = ((positions + 1) // size).unsqueeze(-1)
        blocks = torch.arange(scores.shape[-1], device=keys.device)
        is_whole = blocks < num_whole
        ranked = scores.masked_fill(~is_whole, -torch.inf).sort(stable=True, dim=-1, descending=True).indices
        is_chosen = torch.zeros_like(is_whole).scatter_(-1, ranked[..., : self.spec.top_k], True) & is_whole
        columns = torch.arange(count, device=keys.device)
        is_behind = (columns >= num_whole * size) & (columns <= positions.unsqueeze(-1))
        is_seen = is_chosen.repeat_interleave(size, -1)
        is_seen = functional.pad(is_seen, (0, count - is_seen.shape[-1])) | is_behind
        return query.new_zeros(is_seen.shape).masked_fill_(~is_seen, -torch.inf).unsqueeze(-3)

    def _block_keys(self, keys: torch.Tensor) -> torch.Tensor:
        """(…, m, D) to (…, b, D) of the whole blocks."""
        size = self.spec.block_size
        whole = keys.shape[-2] // size
        blocks = keys[..., : whole * size, :].unflatten(-2, (whole, size))  # type: ignore[no-untyped-call]
        pooled = self.k_norm(blocks.float().mean(-2).to(keys.dtype))
        starts = self.rope.cos_sin(torch.arange(whole, device=keys.device) * size)
        return rotate_first(pooled.unsqueeze(-2), starts, self.rope.spec).squeeze(-2)

    def _scores(self, query: torch.Tensor, block_keys: torch.Tensor) -> torch.Tensor:
        """(…, n, H, D) and (…, b, D) to (…, n, b), float32."""
        products = functional.relu(query.float() @ block_keys.float().transpose(-1, -2).unsqueeze(-3))
        scores: torch.Tensor = products.sum(-2) * self.spec.head_dim**-0.5
        return scores
