"""CompressedIndexer: chooses pooled entries, or windows of tokens, for each query; see ``CompressedIndexerSpec``.

Shape letters: T rows, B decoding sequences, L longest context among them, n queries, m tokens of a window, E entries, H
heads, D width of an entry, r rank of the queries' latent.

Sources: transformers' ``deepseek_v4``, and ``glm5_next`` for windows of tokens.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.compressor import Compressor
from inference.modelling.layers.indexer import Queries, choose_keys
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.rotary import rotate_last
from inference.modelling.specs.compressed import CompressedIndexerSpec, CompressorSpec


class CompressedIndexer(Layer):
    """score = Σ over heads of weight · relu(q · entry); the ``top_k`` best entries are seen.

    Args:
        spec: Sizes.
        hidden_size: h.
        q_lora_rank: r.
    """

    def __init__(self, spec: CompressedIndexerSpec, hidden_size: int, q_lora_rank: int) -> None:
        super().__init__()
        self.spec = spec
        self.q_proj = Linear(q_lora_rank, spec.num_heads * spec.compressor.width)
        self.head_weights = Linear(hidden_size, spec.num_heads)
        self.compressor = Compressor(spec.compressor, hidden_size, "index")

    def prepare(self, hidden: torch.Tensor, latent: torch.Tensor, batch: ForwardBatch, state: LayerState) -> Queries:
        """The rows' queries and weights, from (T, h) and (T, r); the entries in ``state`` advance."""
        self.compressor.update(hidden, batch, state)
        rope = self.compressor.rope
        query = self.q_proj(latent).view(len(latent), self.spec.num_heads, -1)
        if rope is not None:
            query = rotate_last(query, rope.step(batch), rope.spec)
        return query, self.head_weights(hidden).float()

    def choose(self, index: Queries, batch: ForwardBatch, state: LayerState) -> list[torch.Tensor]:
        """What each row of the step sees of the tokens, as ``Indexer.choose``; ``index``: of ``prepare``."""
        found: list[torch.Tensor] = []
        decodes, compressor, dtype = batch.num_decodes, self.compressor, index[0].dtype
        if decodes:
            positions = batch.positions[:decodes]
            count = batch.attention.slots(0, decodes).shape[1]
            entries = compressor.decode_entries(batch, state)
            seen = visible_entries(positions, compressor.spec, entries.shape[1]).unsqueeze(1)
            queries = (index[0][:decodes].unsqueeze(1), index[1][:decodes].unsqueeze(1))
            chosen = choose_keys(queries, entries, seen, self.spec.top_k).squeeze(1)
            found.append(tokens_of_windows(chosen, positions, compressor.spec.window, count).to(dtype)[:, None, None])
        for chunk in batch.prefills:
            rows = slice(chunk.start, chunk.stop)
            positions, entries = batch.positions[rows], compressor.chunk_entries(chunk, batch, state)
            seen = visible_entries(positions, compressor.spec, len(entries))
            chosen = choose_keys((index[0][rows], index[1][rows]), entries, seen, self.spec.top_k)
            found.append(tokens_of_windows(chosen, positions, compressor.spec.window, chunk.length).to(dtype))
        return found


def visible_entries(positions: torch.Tensor, spec: CompressorSpec, count: int) -> torch.Tensor:
    """(n, E) float32: 0 for entries whose windows end at a query's position or before, else -inf."""
    seen = ((positions + 1) // spec.window).unsqueeze(1)
    is_hidden = torch.arange(count, device=positions.device) >= seen
    return torch.zeros(is_hidden.shape, device=positions.device).masked_fill_(is_hidden, -torch.inf)


def tokens_of_windows(entries: torch.Tensor, positions: torch.Tensor, window: int, count: int) -> torch.Tensor:
    """Of windows that are seen to the tokens that are: theirs, and those of the query's own window up to itself.

    Args:
        entries: (n, E), 0 or -inf.
        positions: (n,), of the queries.
        window: m.
        count: L, at least E · m.

    Returns:
        (n, L) of 0 and -inf.
    """
    columns, own = torch.arange(count, device=positions.device), positions.unsqueeze(1)
    is_behind = (columns >= (own + 1) // window * window) & (columns <= own)
    expanded = entries.repeat_interleave(window, 1)
    return functional.pad(expanded, (0, count - expanded.shape[1]), value=-torch.inf).masked_fill(is_behind, 0.0)
