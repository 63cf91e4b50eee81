"""BlockIndexer: chooses the blocks of keys that each query of grouped-query attention sees.

Shape letters: T rows, n queries, m keys, V key/value heads, D width of an index key, b blocks.

Source: transformers' ``minimax_m3_vl_text`` (MiniMax-M3).
"""

from __future__ import annotations

import torch
from torch.nn import functional

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.norm import Norm
from inference.modelling.layers.rotary import rotary_embedding, rotate_first
from inference.modelling.specs.indexer import BlockIndexerSpec
from inference.modelling.specs.parts import RopeSpec


class BlockIndexer(Layer):
    """A block's score is its best key's; the ``top_k`` best blocks are seen, and the query's own and those before it.

    Args:
        spec: Sizes.
        num_kv_heads: V; the query heads of each see blocks of their own.
        rope: The attention's rotation, which turns the first values of queries and keys here too.
        hidden_size: h.
    """

    def __init__(self, spec: BlockIndexerSpec, num_kv_heads: int, rope: RopeSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.q_proj = Linear(hidden_size, num_kv_heads * spec.head_dim)
        self.k_proj = Linear(hidden_size, spec.head_dim)
        self.q_norm = Norm(spec.norm, spec.head_dim)
        self.k_norm = Norm(spec.norm, spec.head_dim)
        self.rope = rotary_embedding(rope)

    def prepare(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to the rows' queries (T, V, D), rotated; their keys are written to ``state``."""
        query = self.q_norm(self.q_proj(hidden).view(hidden.shape[0], -1, self.spec.head_dim))
        key = self.k_norm(self.k_proj(hidden)).unsqueeze(1)
        rotated = rotate_first(torch.cat((query, key), 1), self.rope.step(batch), self.rope.spec)
        state["index_k"].index_copy_(0, batch.slot_mapping, rotated[:, -1])
        return rotated[:, :-1]

    def bias(self, query: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """0 for the keys that each query sees and -inf for the others; of equal blocks the earliest is better.

        Args:
            query: (…, n, V, D).
            keys: (…, m, D), of the positions from 0 on.
            positions: (…, n), of the queries.

        Returns:
            (…, V, n, m), in the dtype of ``query``.
        """
        size, count = self.spec.block_size, keys.shape[-2]
        columns = torch.arange(count, device=keys.device)
        is_later = (columns > positions.unsqueeze(-1)).unsqueeze(-3)
        scores = query.float().transpose(-2, -3) @ keys.float().transpose(-1, -2).unsqueeze(-3)
        scores = functional.pad(scores.masked_fill(is_later, -torch.inf), (0, -count % size), value=-torch.inf)
        best = scores.unflatten(-1, (-1, size)).amax(-1)  # type: ignore[no-untyped-call]
        # The query's own block and those just before it are chosen first.
        distance = (positions // size).unsqueeze(-1) - torch.arange(best.shape[-1], device=keys.device)
        is_near = ((distance >= 0) & (distance < self.spec.local_blocks)).unsqueeze(-3)
        ranked = best.masked_fill(is_near, torch.inf).sort(stable=True, dim=-1, descending=True).indices
        is_chosen = torch.zeros_like(best, dtype=torch.bool).scatter_(-1, ranked[..., : self.spec.top_k], True)
        is_seen = is_chosen.repeat_interleave(size, -1)[..., :count] & ~is_later
        return query.new_zeros(is_seen.shape).masked_fill_(~is_seen, -torch.inf)
