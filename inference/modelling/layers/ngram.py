"""NGramLayer: adds to several residual streams what a table has for the last tokens.

Shape letters: T rows, B decoding sequences, n rows of a chunk, h hidden, P streams, N tokens of the longest n-gram,
H heads of each order.

Source: transformers' ``qwen4_exp`` (its PLE).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from inference.errors import CorruptCheckpoint
from inference.modelling.forward_batch import ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers.conv import CausalConv1d
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Embedding, Linear
from inference.modelling.layers.norm import Norm
from inference.modelling.layers.recurrent import run_batch
from inference.modelling.specs.ngram import NGramSpec


class NGramHash(Layer):
    """The rows of the table that stand for the n-grams which end with a token.

    Args:
        spec: Sizes, and the token that bounds n-grams.
    """

    integer_parameters: ClassVar[frozenset[str]] = frozenset({"multipliers", "sizes", "offsets"})

    def __init__(self, spec: NGramSpec) -> None:
        super().__init__()
        self.spec = spec
        self.multipliers, self.sizes, self.offsets = (
            nn.Parameter(torch.empty(length, dtype=torch.int64), requires_grad=False)
            for length in (spec.order, spec.num_heads, spec.num_heads)
        )

    def check_values(self, name: str) -> None:
        """Refuse parts of the table that aren't in it.

        Args:
            name: Of this layer.

        Raises:
            CorruptCheckpoint: A part has no rows, or ends behind the table.
        """
        ends = self.offsets + self.sizes
        if int(self.sizes.min()) < 1 or int(self.offsets.min()) < 0 or int(ends.max()) > self.spec.rows:
            raise CorruptCheckpoint(
                f"the table of n-grams has {self.spec.rows} rows, but its parts (ngram_heads_offsets, "
                f"ngram_heads_vocab_sizes) end at {int(ends.max())}; the file is damaged.",
                param=name,
            )

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        """(T, N) int64, each row a token behind the N - 1 before it, to (T, (N - 1) · H) rows of the table."""
        tokens = windows.flip(1)  # column j is the token j places before
        # What lies before an earlier end of a text doesn't count, nor does the end itself.
        is_behind = (tokens[:, 1:] == self.spec.eos_token_id).cumsum(1) > 0
        earlier = tokens[:, 1:].masked_fill(is_behind, self.spec.eos_token_id)
        products = torch.cat((tokens[:, :1], earlier), 1) * self.multipliers
        mixed, found = products[:, 0], []
        for place in range(1, self.spec.order):
            mixed = mixed ^ products[:, place]
            found.append(mixed.unsqueeze(1).expand(-1, self.spec.heads_per_order))
        return torch.cat(found, 1).remainder(self.sizes) + self.offsets


class NGramLayer(Layer):
    """See ``NGramSpec``.

    Args:
        spec: Sizes.
    """

    def __init__(self, spec: NGramSpec) -> None:
        super().__init__()
        self.spec = spec
        hidden, streams = spec.hidden_size, spec.num_streams
        inputs = spec.num_heads * spec.head_dim
        self.hash = NGramHash(spec)
        self.table = Embedding(spec.rows, spec.head_dim, is_head=False)
        self.key_proj = Linear(inputs, streams * hidden)
        self.value_proj = Linear(inputs, hidden)
        self.key_norm, self.query_norm, self.conv_norm = (Norm(spec.norm, streams, hidden) for _ in range(3))
        self.conv1d = CausalConv1d(
            streams * hidden, spec.conv_kernel, bias=False, activation="silu", dilation=spec.order
        )

    def forward(self, streams: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, P, h) to the (T, P, h) that is added to it; the states of the batch's sequences advance."""
        rows = self.hash(self._windows(batch, state["ngram_tokens"]))
        embedded = self.table(rows.flatten()).view(rows.shape[0], -1)
        key = self.key_norm(self.key_proj(embedded).view_as(streams))
        score = (key * self.query_norm(streams)).sum(-1, keepdim=True) * self.spec.hidden_size**-0.5
        gate = (score.abs().clamp(min=1e-6).sqrt() * score.sign()).sigmoid()
        gated = gate * self.value_proj(embedded).unsqueeze(1)
        convolved = self.conv1d(self.conv_norm(gated).flatten(1), batch, state["ngram_conv_state"])
        added: torch.Tensor = gated + convolved.view_as(gated).to(gated.dtype)
        return added

    def _windows(self, batch: ForwardBatch, tokens: torch.Tensor) -> torch.Tensor:
        """(T, N) int64 of each row's token behind those before it; ``tokens`` (slots, N - 1) advance."""
        ids = batch.input_ids

        def decode(rows: slice, slots: torch.Tensor) -> torch.Tensor:
            found = torch.cat((tokens.index_select(0, slots), ids[rows].unsqueeze(1).to(tokens.dtype)), 1)
            tokens.index_copy_(0, slots, found[:, 1:])
            return found.long()

        def prefill(rows: slice, chunk: PrefillChunk) -> torch.Tensor:
            before = tokens[chunk.state_slot]
            if not chunk.context_len:
                before.fill_(self.spec.eos_token_id)
            history = torch.cat((before.long(), ids[rows]))
            before.copy_(history[1 - self.spec.order :])
            return history.unfold(0, self.spec.order, 1)

        return run_batch(batch, ids.new_empty(ids.shape[0], self.spec.order), decode, prefill)
