"""HybridForCausalLM: the network that a ``ModelSpec`` describes, whatever its layers are."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import cast

import torch
from torch import nn

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.gated_stream_specs import GatedStreamsSpec
from inference.modelling.hyper_specs import HyperStreamsSpec
from inference.modelling.layer_parts import NormSpec
from inference.modelling.layer_specs import ChannelMixerSpec
from inference.modelling.layers.altup import AltUp, Streams
from inference.modelling.layers.gated_streams import StreamGate
from inference.modelling.layers.hyper import HyperConnections, HyperStreams
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.layer_inputs import LayerInput, LayerInputs
from inference.modelling.layers.linear import Embedding, Linear
from inference.modelling.layers.memory_moe import MemoryMixtureOfExperts
from inference.modelling.layers.ngram import NGramLayer
from inference.modelling.layers.norm import Norm, add_scaled
from inference.modelling.layers.norm_gate import NormGate
from inference.modelling.layers.scaled_residual import ScaledEntry, ScaledResidual
from inference.modelling.layers.shared_block import SharedBlock, SharedWeights
from inference.modelling.layers.sinusoids import Sinusoids
from inference.modelling.parallel_specs import MixerSpec, ParallelSpec
from inference.modelling.spec import LayerSpec, ModelSpec

MIXERS: dict[str, str] = {
    "attention": "attention:Attention",
    "mla": "mla:MultiHeadLatentAttention",
    "mamba1": "mamba1:Mamba1Mixer",
    "mamba2": "mamba2:Mamba2Mixer",
    "mamba3": "mamba3:Mamba3Mixer",
    "gated_delta": "gated_delta:GatedDelta",
    "kimi_delta": "kimi_delta:KimiDelta",
    "lightning": "lightning:LightningAttention",
    "rg_lru": "rg_lru:RGLRU",
    "mlstm": "mlstm:MLSTM",
    "short_conv": "short_conv:ShortConv",
    "time_mix": "rwkv:TimeMix",
    "channel_mix": "rwkv:ChannelMix",
    "parallel": "parallel:Parallel",
    "convolved_attention": "convolved_attention:ConvolvedAttention",
    "mlp": "mlp:MLP",
    "memory_moe": "memory_moe:MemoryMixtureOfExperts",
    "moe": "moe:MixtureOfExperts",
}
"""A spec's ``kind`` to "module:Class" in ``inference.modelling.layers``."""


def _build_mixer(part: MixerSpec | ChannelMixerSpec, hidden_size: int) -> nn.Module:
    module, _, name = MIXERS[part.kind].partition(":")
    cls = getattr(import_module(f"inference.modelling.layers.{module}"), name)
    if isinstance(part, ParallelSpec):
        return cast("nn.Module", cls(part, hidden_size, _build_mixer))
    return cast("nn.Module", cls(part, hidden_size))


def _build_norm(spec: NormSpec | None, width: int) -> Norm | None:
    return None if spec is None else Norm(spec, width)


def _normed(norm: Norm | None, stream: torch.Tensor) -> torch.Tensor:
    """(T, h) of a stream in float32 to its norm, in the dtype that the network computes in."""
    assert norm is not None and norm.weight is not None
    return norm.normalise(stream.to(norm.weight.dtype))


def _build_streams(spec: ModelSpec) -> Streams | HyperStreams | StreamGate | None:
    """The begin and end of several streams; None: there is one."""
    if isinstance(spec.streams, HyperStreamsSpec):
        return HyperStreams(spec.streams, spec.hidden_size)
    if isinstance(spec.streams, GatedStreamsSpec):
        return StreamGate(spec.streams, spec.hidden_size, 1)
    return None if spec.streams is None else Streams(spec.streams, spec.hidden_size)


class ResidualStream:
    """The residual stream, and the sublayer's result that is still to be added to it.

    The addition waits for the next norm, so that both are one pass over the rows.

    Args:
        hidden: (T, h), overwritten; (P, T, h) or (T, P, h) where there are several streams.
        embedding: (T, h), the embedding for layers that read it again.
        layer_inputs: (T, L, p), the inputs of the layers that have one of their own.

    Attributes:
        shortcut: (T, h) of the last layer's experts, for the end of the next one.
        router_memory: (T, r) that the last layer's router leaves for the next one's.
    """

    __slots__ = ("_hidden", "_mixed", "_multiplier", "embedding", "layer_inputs", "router_memory", "shortcut")

    def __init__(
        self, hidden: torch.Tensor, embedding: torch.Tensor | None = None, layer_inputs: torch.Tensor | None = None
    ) -> None:
        self._hidden = hidden
        self.embedding = embedding
        self.layer_inputs = layer_inputs
        self.shortcut: torch.Tensor | None = None
        self.router_memory: torch.Tensor | None = None
        self._mixed: torch.Tensor | None = None
        self._multiplier = 1.0

    def copy(self) -> ResidualStream:
        """The same stream in memory of its own, to compute what follows several times."""
        copied = ResidualStream(self._hidden.clone(), self.embedding, self.layer_inputs)
        copied._mixed = None if self._mixed is None else self._mixed.clone()
        copied._multiplier = self._multiplier
        copied.shortcut, copied.router_memory = self.shortcut, self.router_memory
        return copied

    def enter(self, norm: Norm | None, *, replaces: bool = False) -> torch.Tensor:
        """(T, h) as the next sublayer sees it: the stream, normalised where there is a norm.

        Args:
            replaces: The stream goes on from these rows, in the same memory.
        """
        rows = self._enter(norm)
        if replaces:
            self._hidden = rows
        return rows

    def _enter(self, norm: Norm | None) -> torch.Tensor:
        mixed, self._mixed = self._mixed, None
        if norm is None:
            return self._hidden if mixed is None else add_scaled(self._hidden, mixed, self._multiplier)
        if mixed is None:
            return norm.normalise(self._hidden)
        return norm.add_normalise(self._hidden, mixed, self._multiplier)

    def leave(self, mixed: torch.Tensor, multiplier: float) -> None:
        """Add a sublayer's result (T, h), times ``multiplier``."""
        assert self._mixed is None, "a sublayer left the stream without entering it"
        self._mixed, self._multiplier = mixed, multiplier

    def replace(self, streams: torch.Tensor) -> None:
        """Go on from several streams."""
        self._hidden = streams

    def scale(self, factor: torch.Tensor) -> None:
        """Multiply the stream by a number (1,)."""
        self.enter(None).mul_(factor)


class HybridLayer(Layer):
    """One layer of the residual stream: a token mixer, a channel mixer, or both.

    Args:
        spec: Which.
        hidden_size: h.
        number: Of the layer.
        blocks: The shared blocks by number; the layer adds the one that it is the first to use.
    """

    def __init__(self, spec: LayerSpec, hidden_size: int, number: int, blocks: dict[int, SharedWeights]) -> None:
        super().__init__()
        self.spec = spec
        self.number = number
        self.prologue = None
        if spec.prologue is not None:
            if spec.prologue.block not in blocks:
                blocks[spec.prologue.block] = SharedWeights(spec.prologue, hidden_size)
            self.prologue = SharedBlock(spec.prologue, hidden_size, blocks[spec.prologue.block])
        self.token_norm = _build_norm(spec.token_norm, hidden_size)
        self.token_mixer = None if spec.token_mixer is None else _build_mixer(spec.token_mixer, hidden_size)
        self.token_post_norm = _build_norm(spec.token_post_norm, hidden_size)
        self.channel_norm = _build_norm(spec.channel_norm, hidden_size)
        self.channel_mixer = None if spec.channel_mixer is None else _build_mixer(spec.channel_mixer, hidden_size)
        self.channel_post_norm = _build_norm(spec.channel_post_norm, hidden_size)
        self.shortcut = None if spec.shortcut is None else _build_mixer(spec.shortcut, hidden_size)
        self.altup = None if spec.altup is None else AltUp(spec.altup, hidden_size)
        self.hyper = None if spec.hyper is None else HyperConnections(spec.hyper, hidden_size)
        self.ngram = None if spec.ngram is None else NGramLayer(spec.ngram)
        self.token_residual = ScaledResidual(hidden_size) if spec.scales_residual else None
        self.channel_residual = ScaledResidual(hidden_size) if spec.scales_residual else None
        self.layer_input = None if spec.layer_input is None else LayerInput(spec.layer_input, hidden_size)
        self.stream_scale = nn.Parameter(torch.empty(1), requires_grad=False) if spec.has_stream_scale else None
        self.token_gate = NormGate(spec.token_gate_rank, hidden_size) if spec.token_gate_rank else None
        self.channel_gate = NormGate(spec.channel_gate_rank, hidden_size) if spec.channel_gate_rank else None

    def forward(self, stream: ResidualStream, batch: ForwardBatch, state: LayerState) -> None:
        """Pass the residual stream through; ``state`` advances in place."""
        if self.spec.is_parallel:
            self._forward_parallel(stream, batch, state)
            return
        if self.altup is not None:
            stream.replace(self._forward_streams(self.altup, stream, batch, state))
            return
        if self.hyper is not None:
            stream.replace(self._forward_hyper(self.hyper, stream.enter(None), batch, state))
            return
        if self.token_residual is not None:
            stream.replace(self._forward_scaled(self.token_residual, stream, batch, state))
            return
        spec = self.spec
        if self.token_mixer is not None:
            mixed = self.token_mixer(self._enter(stream, batch, state), batch, state)
            self._leave(stream, mixed, self.token_post_norm)
        if self.channel_mixer is not None:
            entering = stream.enter(self.channel_norm, replaces=spec.replaces_stream)
            if self.channel_gate is not None:
                entering = self.channel_gate(entering)
            ends_here, stream.shortcut = stream.shortcut, None
            if self.shortcut is not None:
                stream.shortcut = self.shortcut(entering)
            mixed = self.channel_mixer(entering)
            if ends_here is not None:
                mixed = mixed + ends_here
            multiplier = spec.residual_multiplier if spec.channel_multiplier is None else spec.channel_multiplier
            stream.leave(mixed if self.channel_post_norm is None else self.channel_post_norm(mixed), multiplier)
        if self.layer_input is not None:
            assert stream.layer_inputs is not None
            stream.leave(self.layer_input(stream.enter(None), stream.layer_inputs[:, self.number]), 1.0)
        if self.stream_scale is not None:
            stream.scale(self.stream_scale)

    def _enter(self, stream: ResidualStream, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """What the token mixer reads."""
        if self.prologue is None:
            entering = stream.enter(self.token_norm, replaces=self.spec.replaces_stream)
            return entering if self.token_gate is None else cast("torch.Tensor", self.token_gate(entering))
        assert self.token_norm is not None and stream.embedding is not None
        hidden = stream.enter(None)
        return self.token_norm.normalise(hidden + self.prologue(hidden, stream.embedding, batch, state))

    def _forward_parallel(self, stream: ResidualStream, batch: ForwardBatch, state: LayerState) -> None:
        assert self.token_mixer is not None and self.channel_mixer is not None
        normed = stream.enter(self.token_norm)
        mixed = self.token_mixer(normed, batch, state)
        second = normed if self.channel_norm is None else stream.enter(self.channel_norm)
        self._leave(stream, mixed + self.channel_mixer(second), None)

    def _forward_streams(
        self, altup: AltUp, stream: ResidualStream, batch: ForwardBatch, state: LayerState
    ) -> torch.Tensor:
        """The streams (P, T, h) after the layer; see ``AltUpSpec``."""
        assert self.token_mixer is not None and self.channel_mixer is not None and self.layer_input is not None
        assert self.token_norm is not None and self.token_post_norm is not None and stream.layer_inputs is not None
        assert self.channel_norm is not None and self.channel_post_norm is not None
        predicted = altup.predict(stream.enter(None))
        active = predicted[altup.spec.active]
        normed = self.token_norm(active)
        attended = self.token_post_norm(self.token_mixer(normed, batch, state))
        hidden = (active + attended + altup.laurel(normed)) * 2**-0.5
        hidden = hidden + self.channel_post_norm(self.channel_mixer(self.channel_norm(hidden)))
        streams = altup.correct(predicted, hidden)
        streams[1:] += self.layer_input(altup.gate_input(streams), stream.layer_inputs[:, self.number])
        return streams

    def _forward_hyper(
        self, hyper: HyperConnections, streams: torch.Tensor, batch: ForwardBatch, state: LayerState
    ) -> torch.Tensor:
        """The streams (T, P, h) after the layer; see ``HyperConnectionSpec`` and ``GatedStreamsSpec``."""
        assert self.token_mixer is not None and self.channel_mixer is not None
        if self.ngram is not None:
            streams = streams + self.ngram(streams, batch, state)
        entering, weights = hyper.token.enter(streams)
        mixed = self.token_mixer(entering if self.token_norm is None else self.token_norm(entering), batch, state)
        streams = (streams + weights * mixed.unsqueeze(1)).to(streams.dtype)
        entering, weights = hyper.channel.enter(streams)
        mixed = self.channel_mixer(entering if self.channel_norm is None else self.channel_norm(entering))
        after: torch.Tensor = (streams + weights * mixed.unsqueeze(1)).to(streams.dtype)
        return after

    def _forward_scaled(
        self, token_residual: ScaledResidual, stream: ResidualStream, batch: ForwardBatch, state: LayerState
    ) -> torch.Tensor:
        """The stream (T, h), float32, after a layer with ``LayerSpec.scales_residual``."""
        assert self.token_mixer is not None and self.channel_mixer is not None and self.channel_residual is not None
        hidden = stream.enter(None)
        hidden = token_residual(self.token_mixer(_normed(self.token_norm, hidden), batch, state), hidden)
        entering = _normed(self.channel_norm, hidden)
        if isinstance(self.channel_mixer, MemoryMixtureOfExperts):
            mixed, stream.router_memory = self.channel_mixer(entering, stream.router_memory)
        else:
            mixed = self.channel_mixer(entering)
        after: torch.Tensor = self.channel_residual(mixed, hidden)
        return after

    def _leave(self, stream: ResidualStream, mixed: torch.Tensor, post_norm: Norm | None) -> None:
        stream.leave(mixed if post_norm is None else post_norm(mixed), self.spec.residual_multiplier)


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
        self.embedding_norm = _build_norm(spec.embedding_norm, spec.hidden_size)
        self.embedding_scale = ScaledEntry(spec.hidden_size) if spec.scales_embedding else None
        blocks: dict[int, SharedWeights] = {}
        self.layer_inputs = None
        if spec.layer_inputs is not None:
            self.layer_inputs = LayerInputs(spec.layer_inputs, spec.hidden_size)
        self.layers = nn.ModuleList(
            HybridLayer(layer, spec.hidden_size, number, blocks) for number, layer in enumerate(spec.layers)
        )
        self.streams = _build_streams(spec)
        self._state_numbers = spec.state_numbers()
        self._reads_embedding = bool(blocks)
        self.final_norm = _build_norm(spec.final_norm, spec.hidden_size)
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
        stream = self.embed(batch)
        for layer, state in zip(self.layers, self.states_by_layer(states), strict=True):
            layer(stream, batch, state)
        return self.finish(stream)

    def finish(self, stream: ResidualStream) -> torch.Tensor:
        """(T, h) of the stream behind the last layer, after the final norm."""
        if self.embedding_scale is not None:
            return _normed(self.final_norm, stream.enter(None))
        if self.streams is None:
            return stream.enter(self.final_norm)
        merged = self.streams.merge(stream.enter(None))
        return merged if self.final_norm is None else self.final_norm.normalise(merged)

    def states_by_layer(self, states: Sequence[LayerState]) -> list[LayerState]:
        """The state that each layer reads and writes: its own, or that of the layer whose keys and values it reads."""
        return [states[number] for number in self._state_numbers]

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
