"""PredictionHead: the network of a head for multi-token prediction, without what it shares with its model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layer_forms import make_layer
from inference.modelling.layers.linear import Embedding, Linear
from inference.modelling.layers.norm import Norm
from inference.modelling.network import HybridForCausalLM
from inference.modelling.residual_stream import ResidualStream
from inference.modelling.spec import PredictionHeadSpec


class PredictionHead(nn.Module):
    """What a ``PredictionHeadSpec`` describes.

    Built empty (on the meta device) and filled by ``inference.modelling.weights.load_prediction_head``. Row p of its
    sequence has the model's row at position p and the token at p + 1, whose embedding is read.

    Args:
        spec: Which.
    """

    def __init__(self, spec: PredictionHeadSpec) -> None:
        super().__init__()
        self.spec = spec
        assert spec.final_norm is not None
        width = spec.hidden_size
        self.eh_proj = Linear(2 * width, width)  # first, as the backend is chosen by the first parameter
        self.embedding_norm = Norm(spec.embedding_norm, width)
        self.hidden_norm = Norm(spec.hidden_norm, width)
        self.layers = nn.ModuleList(make_layer(layer, width, number, {}) for number, layer in enumerate(spec.layers))
        self.final_norm = Norm(spec.final_norm, width)
        self.embed_tokens = Embedding(spec.vocab_size, width, is_head=False) if spec.has_embedding else None
        self.lm_head = Linear(width, spec.vocab_size) if spec.has_lm_head else None

    def forward(
        self, model: HybridForCausalLM, batch: ForwardBatch, hidden: torch.Tensor, states: Sequence[LayerState]
    ) -> torch.Tensor:
        """Run the head.

        Args:
            model: The model, for its embedding.
            batch: The tokens after the model's rows, at the positions of those rows.
            hidden: (T, h) rows of the model after its final norm, or what this method returned for the position.
            states: One per layer, advanced in place.

        Returns:
            (T, h) rows that the head reads in the place of ``hidden`` to go on by one more token.
        """
        embedded = model.embed(batch).enter(None) if self.embed_tokens is None else self.embed_tokens(batch.input_ids)
        joined = torch.cat([self.embedding_norm.normalise(embedded), self.hidden_norm.normalise(hidden)], -1)
        stream = ResidualStream(self.eh_proj(joined))
        for layer, state in zip(self.layers, states, strict=True):
            layer(stream, batch, state)
        return stream.enter(self.final_norm if self.spec.feeds_normed_rows else None)

    def compute_logits(self, model: HybridForCausalLM, rows: torch.Tensor) -> torch.Tensor:
        """(n, h) rows of ``forward``'s result to (n, V) float32 logits."""
        normed = self.normed(rows)
        return model.compute_logits(normed) if self.lm_head is None else self.lm_head.logits(normed)

    def normed(self, rows: torch.Tensor) -> torch.Tensor:
        """(n, h) rows of ``forward``'s result as the head of the logits reads them."""
        return rows if self.spec.feeds_normed_rows else self.final_norm.normalise(rows)
