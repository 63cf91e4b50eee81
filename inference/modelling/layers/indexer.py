"""Indexer: chooses the keys that each query of latent attention sees, by small queries and keys of its own.

Shape letters: T rows, B decoding sequences, L longest context among them, n queries, m keys, N tokens up to a chunk's
end, h hidden, r width of what queries are made from; of the indexer itself H heads, D width of a head.

Source: DeepSeek-V3.2 (https://arxiv.org/abs/2512.02556, section 2.1), and transformers' ``deepseek_v32``. Its kernels
for 8-bit scores and the Hadamard rotation before them change the scores by rounding only, and are left out.
"""

from __future__ import annotations

import torch

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.attention import causal_bias, chunk_slots, decode_bias, decode_rows
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.norm import Norm
from inference.modelling.layers.rotary import CosSin, rotate_first
from inference.modelling.layers.softmax_scale import SoftmaxScale
from inference.modelling.specs.indexer import IndexerSpec

Queries = tuple[torch.Tensor, torch.Tensor]
"""Queries (T, H, D), rotated, and the heads' weights (T, H) in float32."""


class Indexer(Layer):
    """score = Σ over heads of weight · relu(q · k); the ``top_k`` best keys are seen.

    Args:
        spec: Sizes.
        hidden_size: h.
        query_input: Width of what the queries are made from.
    """

    def __init__(self, spec: IndexerSpec, hidden_size: int, query_input: int) -> None:
        super().__init__()
        self.spec = spec
        self.q_proj = Linear(query_input, spec.num_heads * spec.head_dim)
        self.k_proj = Linear(hidden_size, spec.head_dim)
        self.k_norm = Norm(spec.k_norm, spec.head_dim)
        self.head_weights = Linear(hidden_size, spec.num_heads)
        self.hidden_norm = None if spec.hidden_norm is None else Norm(spec.hidden_norm, hidden_size)
        self.softmax_scale = SoftmaxScale(spec.num_heads) if spec.has_softmax_scale else None

    def prepare(
        self,
        hidden: torch.Tensor,
        q_latent: torch.Tensor,
        batch: ForwardBatch,
        state: LayerState,
        cos_sin: CosSin | None,
    ) -> Queries:
        """The rows' queries and weights; their keys are written to ``state``.

        Args:
            hidden: (T, h).
            q_latent: (T, r), what the attention makes its own queries from.
            batch: The step.
            state: Of the layer, advanced.
            cos_sin: Of the rotation of its spec; None: nothing is rotated.
        """
        spec = self.spec
        source = q_latent if self.hidden_norm is None else self.hidden_norm(hidden)
        query = self.q_proj(source).view(-1, spec.num_heads, spec.head_dim)
        if self.softmax_scale is not None:
            query = self.softmax_scale(query, batch)
        key = self.k_norm(self.k_proj(hidden)).unsqueeze(1)
        rotated = self._rotate(torch.cat((query, key), 1), cos_sin)
        state["index_k"].index_copy_(0, batch.slot_mapping, rotated[:, -1])
        return rotated[:, :-1], self.head_weights(hidden).float()

    def choose(self, index: Queries, batch: ForwardBatch, state: LayerState) -> list[torch.Tensor]:
        """What each row of the step sees, 0 or -inf for each query and key.

        Args:
            index: The rows' queries and weights.
            batch: The step.
            state: Of the layer, with the keys of its rows.

        Returns:
            (B, 1, 1, L) of the decoding rows if there are any, then (n, N) of each chunk.
        """
        found: list[torch.Tensor] = []
        decodes, dtype, top_k = batch.num_decodes, index[0].dtype, self.spec.top_k
        if decodes:
            keys = decode_rows(batch, state["index_k"])
            visible = decode_bias(batch, None, dtype)
            visible = index[0].new_zeros(keys.shape[:2]) if visible is None else visible[:, 0, 0]
            queries = (index[0][:decodes].unsqueeze(1), index[1][:decodes].unsqueeze(1))
            found.append(choose_keys(queries, keys, visible.unsqueeze(1), top_k).unsqueeze(1))
        for chunk in batch.prefills:
            span = slice(chunk.start, chunk.stop)
            keys = state["index_k"].index_select(0, chunk_slots(batch, chunk))
            queries = (index[0][span], index[1][span])
            found.append(choose_keys(queries, keys, causal_bias(chunk, index[0]), top_k))
        return found

    def _rotate(self, heads: torch.Tensor, cos_sin: CosSin | None) -> torch.Tensor:
        """(T, n, D), rotated; where the last values are, they move to the front, which scores don't see."""
        rope = self.spec.rope
        if rope is None or cos_sin is None:
            return heads
        if self.spec.rotates_last:
            heads = heads.roll(rope.rotary_dim, -1)
        return rotate_first(heads, cos_sin, rope)


def choose_keys(queries: Queries, keys: torch.Tensor, visible: torch.Tensor, top_k: int) -> torch.Tensor:
    """0 for the keys that each query sees and -inf for the others; of equal scores the earliest key is better.

    Args:
        queries: (…, n, H, D) and (…, n, H).
        keys: (…, m, D).
        visible: (…, n, m), added to the scores: 0, or -inf for what a query can't see anyway.
        top_k: Keys that a query sees at most.

    Returns:
        (…, n, m), in the dtype of ``visible``.
    """
    query, weights = queries
    transposed = keys.float().transpose(-1, -2)
    scores = visible.float()
    # Head by head, as all scores at once would take H times the memory.
    for head in range(query.shape[-2]):
        own = torch.relu(query[..., head, :].float() @ transposed)
        scores = scores + weights[..., head, None] * own
    chosen = scores.sort(stable=True, dim=-1, descending=True).indices[..., :top_k]
    return visible + torch.full_like(visible, -torch.inf).scatter_(-1, chosen, 0.0)
