"""HybridForCausalLM: the network that a ``ModelSpec`` describes, whatever its layers are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from torch import nn

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.hybrid_layer import build_norm
from inference.modelling.layer_forms import make_layer, normalised
from inference.modelling.layers.altup import Streams
from inference.modelling.layers.block_residual import BlockStreams
from inference.modelling.layers.gated_streams import StreamGate
from inference.modelling.layers.hyper import HyperStreams
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.layer_inputs import LayerInputs
from inference.modelling.layers.linear import Embedding, Linear
from inference.modelling.layers.scaled_residual import ScaledEntry
from inference.modelling.layers.shared_block import SharedWeights
from inference.modelling.layers.sinkhorn_streams import MeanStreams
from inference.modelling.layers.sinusoids import Sinusoids
from inference.modelling.residual_stream import ResidualStream
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.gated_streams import GatedStreamsSpec
from inference.modelling.specs.hyper import HyperStreamsSpec
from inference.modelling.specs.inkling2 import BlockStreamsSpec
from inference.modelling.specs.sinkhorn_streams import MeanStreamsSpec
from inference.modelling.stored_states import StepEntries, StoredStates


def _build_streams(spec: ModelSpec) -> Streams | HyperStreams | StreamGate | MeanStreams | BlockStreams | None:
    """The begin and end of several streams; None: there is one."""
    if isinstance(spec.streams, HyperStreamsSpec):
        return HyperStreams(spec.streams, spec.hidden_size)
    if isinstance(spec.streams, GatedStreamsSpec):
        return StreamGate(spec.streams, spec.hidden_size, 1)
    if isinstance(spec.streams, MeanStreamsSpec):
        return MeanStreams(spec.streams)
    if isinstance(spec.streams, BlockStreamsSpec):
        return BlockStreams(spec.hidden_size)
    return None if spec.streams is None else Streams(spec.streams, spec.hidden_size)


class HybridForCausalLM(nn.Module):
    """Embedding, layers, final norm, head.

    Built empty (on the meta device) and filled by ``inference.modelling.weights.load_network``.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embed_tokens = Embedding(spec.vocab_size, spec.hidden_size, is_head=spec.tie_word_embeddings)
        self.embed_positions = None
        if spec.position_rows:
            self.embed_positions = Embedding(spec.position_rows, spec.hidden_size, is_head=False)
        self.sinusoids = None if spec.sinusoids is None else Sinusoids(spec.sinusoids, spec.hidden_size)
        self.embedding_norm = build_norm(spec.embedding_norm, spec.hidden_size)
        self.embedding_scale = ScaledEntry(spec.hidden_size) if spec.scales_embedding else None
        blocks: dict[int, SharedWeights] = {}
        self.layer_inputs = None
        if spec.layer_inputs is not None:
            self.layer_inputs = LayerInputs(spec.layer_inputs, spec.hidden_size)
        self.layers = nn.ModuleList(
            make_layer(layer, spec.hidden_size, number, blocks) for number, layer in enumerate(spec.layers)
        )
        self.streams = _build_streams(spec)
        self._state_numbers = spec.state_numbers()
        self._stored = StoredStates(spec)
        self._reads_embedding = bool(blocks)
        self.final_norm = build_norm(spec.final_norm, spec.hidden_size)
        self.lm_head = None if spec.tie_word_embeddings else Linear(spec.hidden_size, spec.vocab_size, spec.head_bias)
        for name in spec.rounding_matrices():
            linear = self.get_submodule(name.rpartition(".")[0])
            assert isinstance(linear, Linear), name
            linear.rounds_inputs = True

    def forward(self, batch: ForwardBatch, states: Sequence[LayerState]) -> torch.Tensor:
        """Run one step.

        Args:
            batch: The step's tokens.
            states: One per layer, advanced in place.

        Returns:
            (T, h), after the final norm.
        """
        stream, own_states = self.embed(batch), self.states_by_layer(states)
        copied = self._stored.states_to_copy(cast("Sequence[Layer]", self.layers), states)
        entries = StepEntries(batch) if any(copied) else None
        for layer, state, names in zip(self.layers, own_states, copied, strict=True):
            if entries is None or not names:
                layer(stream, batch, state)
            else:
                entries.run(partial(layer, stream), state, names)
        return self.finish(stream)

    def finish(self, stream: ResidualStream) -> torch.Tensor:
        """(T, h) of the stream behind the last layer, after the final norm."""
        if self.embedding_scale is not None:
            return normalised(self.final_norm, stream.enter(None))
        if self.streams is None:
            return stream.enter(self.final_norm)
        merged = self.streams.merge(stream.enter(None))
        return merged if self.final_norm is None else self.final_norm.normalise(merged)

    def states_by_layer(self, states: Sequence[LayerState]) -> list[LayerState]:
        """The state that each layer reads and writes: its own, and that of the layer whose keys and values it reads."""
        return [
            states[source] if source == number or not states[number] else states[source] | states[number]
            for number, source in enumerate(self._state_numbers)
        ]

    def embed(self, batch: ForwardBatch) -> ResidualStream:
        """The stream that enters the first layer."""
        hidden: torch.Tensor = self.embed_tokens(batch.input_ids)
        if self.spec.embedding_multiplier != 1.0:
            hidden = hidden * self.spec.embedding_multiplier
        if batch.embedded is not None:
            hidden = batch.embedded.merged(hidden)
        if self.embed_positions is not None:
            hidden = hidden + self.embed_positions(batch.positions)
        if self.sinusoids is not None:
            hidden = hidden + self.sinusoids(batch.positions).to(hidden.dtype)
        if self.embedding_norm is not None:
            hidden = self.embedding_norm(hidden)
        if self.embedding_scale is not None:
            hidden = self.embedding_scale(hidden)
        layer_inputs = None if self.layer_inputs is None else self.layer_inputs(batch.input_ids, hidden)
        first = hidden if self.streams is None else self.streams.split(hidden)
        return ResidualStream(first, hidden.clone() if self._reads_embedding else None, layer_inputs)

    @property
    def can_choose(self) -> bool:
        """Whether ``argmax_logits`` is there: a native head whose sums are the logits."""
        is_plain = self.spec.logits_multiplier == 1.0 and self.spec.logits_softcap is None
        return is_plain and self._head.has_argmax

    def argmax_logits(self, hidden: torch.Tensor, masked: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """(n, h) rows of ``forward``'s result to what a greedy choice needs of ``compute_logits``.

        Args:
            masked: ``output_bits`` of tokens that can't be chosen.

        Returns:
            (n,) int64 and (n,) float32: each row's argmax, the first among equals, and its logit; NaN if
            there is one in the row.
        """
        return self._head.argmax(hidden, masked)

    @property
    def _head(self) -> Embedding | Linear:
        return self.embed_tokens if self.lm_head is None else self.lm_head

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(n, h) rows of ``forward``'s result to (n, V) float32 logits."""
        logits = self._head.logits(hidden)
        if self.spec.logits_multiplier != 1.0:
            logits = logits * self.spec.logits_multiplier
        if self.spec.logits_softcap is not None:
            logits = torch.tanh(logits / self.spec.logits_softcap) * self.spec.logits_softcap
        return logits
