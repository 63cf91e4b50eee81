"""The forms of a layer by what becomes of the residual stream, and ``make_layer``, which takes the one of a spec.

``HybridLayer`` adds what its mixers give. The others here mix the stream, or several streams, in another way around
the same mixers.
"""

from __future__ import annotations

import torch
from torch import nn

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.hybrid_layer import HybridLayer
from inference.modelling.layers.altup import AltUp
from inference.modelling.layers.block_residual import BlockResidual
from inference.modelling.layers.conv import AddedConv1d
from inference.modelling.layers.hyper import HyperConnections
from inference.modelling.layers.layer_inputs import LayerInput
from inference.modelling.layers.memory_moe import MemoryMixtureOfExperts
from inference.modelling.layers.ngram import NGramLayer
from inference.modelling.layers.norm import Norm
from inference.modelling.layers.residual_gate import ResidualGate
from inference.modelling.layers.scaled_residual import ScaledResidual
from inference.modelling.layers.shared_block import SharedWeights
from inference.modelling.layers.sinkhorn_streams import SinkhornConnections
from inference.modelling.layers.token_moe import TokenMixtureOfExperts
from inference.modelling.residual_stream import ResidualStream
from inference.modelling.spec import LayerSpec
from inference.modelling.specs.sinkhorn_streams import SinkhornStreamsSpec


def make_layer(spec: LayerSpec, hidden_size: int, number: int, blocks: dict[int, SharedWeights]) -> HybridLayer:
    """Build the layer of a spec; the arguments are those of ``HybridLayer``."""
    form: type[HybridLayer] = HybridLayer
    if spec.is_parallel:
        form = ParallelLayer
    elif spec.altup is not None:
        form = AltUpLayer
    elif isinstance(spec.hyper, SinkhornStreamsSpec):
        form = MixedStreamsLayer
    elif spec.hyper is not None:
        form = HyperLayer
    elif spec.scales_residual:
        form = ScaledLayer
    elif spec.residual_temperature:
        form = GatedLayer
    elif spec.blocks is not None:
        form = BlockLayer
    elif spec.mixer_convs is not None:
        form = ConvolvedLayer
    return form(spec, hidden_size, number, blocks)


def normalised(norm: Norm | None, stream: torch.Tensor) -> torch.Tensor:
    """(T, h) of a stream in float32 to its norm, in the dtype that the network computes in."""
    assert norm is not None and norm.weight is not None
    return norm.normalise(stream.to(norm.weight.dtype))


class TwoMixers(HybridLayer):
    """A layer that has both mixers."""

    token_mixer: nn.Module
    channel_mixer: nn.Module

    def __init__(self, spec: LayerSpec, hidden_size: int, number: int, blocks: dict[int, SharedWeights]) -> None:
        super().__init__(spec, hidden_size, number, blocks)
        assert spec.token_mixer is not None and spec.channel_mixer is not None


class ParallelLayer(TwoMixers):
    """Both mixers read the same stream; see ``LayerSpec.is_parallel``."""

    def forward(self, stream: ResidualStream, batch: ForwardBatch, state: LayerState) -> None:
        """Pass the residual stream through; ``state`` advances in place."""
        normed = stream.enter(self.token_norm)
        mixed = self.token_mixer(normed, batch, state)
        second = normed if self.channel_norm is None else stream.enter(self.channel_norm)
        stream.leave(mixed + self.channel_mixer(second), self.spec.residual_multiplier)


class AltUpLayer(TwoMixers):
    """Several streams, of which the mixers read one; see ``AltUpSpec``."""

    token_norm: Norm
    token_post_norm: Norm
    channel_norm: Norm
    channel_post_norm: Norm
    layer_input: LayerInput

    def __init__(self, spec: LayerSpec, hidden_size: int, number: int, blocks: dict[int, SharedWeights]) -> None:
        super().__init__(spec, hidden_size, number, blocks)
        assert spec.altup is not None
        self.altup = AltUp(spec.altup, hidden_size)

    def forward(self, stream: ResidualStream, batch: ForwardBatch, state: LayerState) -> None:
        """Pass the streams (P, T, h) through; ``state`` advances in place."""
        assert stream.layer_inputs is not None
        altup = self.altup
        predicted = altup.predict(stream.enter(None))
        active = predicted[altup.spec.active]
        normed = self.token_norm(active)
        attended = self.token_post_norm(self.token_mixer(normed, batch, state))
        hidden = (active + attended + altup.laurel(normed)) * 2**-0.5
        hidden = hidden + self.channel_post_norm(self.channel_mixer(self.channel_norm(hidden)))
        streams = altup.correct(predicted, hidden)
        streams[1:] += self.layer_input(altup.gate_input(streams), stream.layer_inputs[:, self.number])
        stream.replace(streams)


class HyperLayer(TwoMixers):
    """Several streams, of which each mixer reads a mix; see ``HyperConnectionSpec`` and ``GatedStreamsSpec``."""

    def __init__(self, spec: LayerSpec, hidden_size: int, number: int, blocks: dict[int, SharedWeights]) -> None:
        super().__init__(spec, hidden_size, number, blocks)
        assert spec.hyper is not None
        self.hyper = HyperConnections(spec.hyper, hidden_size)
        self.ngram = None if spec.ngram is None else NGramLayer(spec.ngram)

    def forward(self, stream: ResidualStream, batch: ForwardBatch, state: LayerState) -> None:
        """Pass the streams (T, P, h) through; ``state`` advances in place."""
        streams = stream.enter(None)
        if self.ngram is not None:
            streams = streams + self.ngram(streams, batch, state)
        entering, weights = self.hyper.token.enter(streams)
        mixed = self.token_mixer(entering if self.token_norm is None else self.token_norm(entering), batch, state)
        streams = (streams + weights * mixed.unsqueeze(1)).to(streams.dtype)
        entering, weights = self.hyper.channel.enter(streams)
        mixed = self.channel_mixer(entering if self.channel_norm is None else self.channel_norm(entering))
        stream.replace((streams + weights * mixed.unsqueeze(1)).to(streams.dtype))


class MixedStreamsLayer(TwoMixers):
    """Several streams that are mixed anew around each mixer; see ``SinkhornStreamsSpec``."""

    token_norm: Norm
    channel_norm: Norm

    def __init__(self, spec: LayerSpec, hidden_size: int, number: int, blocks: dict[int, SharedWeights]) -> None:
        super().__init__(spec, hidden_size, number, blocks)
        assert isinstance(spec.hyper, SinkhornStreamsSpec)
        self.hyper = SinkhornConnections(spec.hyper, hidden_size)

    def forward(self, stream: ResidualStream, batch: ForwardBatch, state: LayerState) -> None:
        """Pass the streams (T, P, h) through; ``state`` advances in place."""
        streams = stream.enter(None)
        entering, weights, carried = self.hyper.token.enter(streams)
        mixed = self.token_mixer(self.token_norm(entering), batch, state)
        streams = (carried + weights * mixed.unsqueeze(1)).to(streams.dtype)
        entering, weights, carried = self.hyper.channel.enter(streams)
        normed = self.channel_norm(entering)
        if isinstance(self.channel_mixer, TokenMixtureOfExperts):
            mixed = self.channel_mixer(normed, batch.input_ids)
        else:
            mixed = self.channel_mixer(normed)
        stream.replace((carried + weights * mixed.unsqueeze(1)).to(streams.dtype))


class ScaledLayer(TwoMixers):
    """A stream in float32, scaled with each addition; see ``LayerSpec.scales_residual``."""

    def __init__(self, spec: LayerSpec, hidden_size: int, number: int, blocks: dict[int, SharedWeights]) -> None:
        super().__init__(spec, hidden_size, number, blocks)
        self.token_residual = ScaledResidual(hidden_size)
        self.channel_residual = ScaledResidual(hidden_size)

    def forward(self, stream: ResidualStream, batch: ForwardBatch, state: LayerState) -> None:
        """Pass the stream (T, h) through; ``state`` advances in place."""
        hidden = stream.enter(None)
        hidden = self.token_residual(self.token_mixer(normalised(self.token_norm, hidden), batch, state), hidden)
        entering = normalised(self.channel_norm, hidden)
        if isinstance(self.channel_mixer, MemoryMixtureOfExperts):
            mixed, stream.router_memory = self.channel_mixer(entering, stream.router_memory)
        else:
            mixed = self.channel_mixer(entering)
        stream.replace(self.channel_residual(mixed, hidden))


class GatedLayer(TwoMixers):
    """Learned gates weigh the stream and what a mixer gives; see ``LayerSpec.residual_temperature``."""

    token_post_norm: Norm
    channel_post_norm: Norm

    def __init__(self, spec: LayerSpec, hidden_size: int, number: int, blocks: dict[int, SharedWeights]) -> None:
        super().__init__(spec, hidden_size, number, blocks)
        self.token_residual = ResidualGate(hidden_size, spec.residual_temperature)
        self.channel_residual = ResidualGate(hidden_size, spec.residual_temperature)

    def forward(self, stream: ResidualStream, batch: ForwardBatch, state: LayerState) -> None:
        """Pass the stream (T, h) through; ``state`` advances in place."""
        mixed = self.token_post_norm(self.token_mixer(stream.enter(self.token_norm), batch, state))
        stream.replace(self.token_residual(mixed, stream.enter(None)))
        mixed = self.channel_post_norm(self.channel_mixer(stream.enter(self.channel_norm)))
        stream.replace(self.channel_residual(mixed, stream.enter(None)))


class ConvolvedLayer(TwoMixers):
    """What each mixer gives passes a short convolution; see ``MixerConvsSpec``."""

    def __init__(self, spec: LayerSpec, hidden_size: int, number: int, blocks: dict[int, SharedWeights]) -> None:
        super().__init__(spec, hidden_size, number, blocks)
        assert spec.mixer_convs is not None
        convs = spec.mixer_convs
        self.token_conv, self.channel_conv = (
            AddedConv1d(hidden_size, convs.kernel_size, convs.scale) for _ in range(2)
        )

    def forward(self, stream: ResidualStream, batch: ForwardBatch, state: LayerState) -> None:
        """Pass the residual stream through; ``state`` advances in place."""
        mixed = self.token_mixer(stream.enter(self.token_norm), batch, state)
        stream.leave(self.token_conv(mixed, batch, state["token_conv_state"]), 1.0)
        mixed = self.channel_mixer(stream.enter(self.channel_norm))
        stream.leave(self.channel_conv(mixed, batch, state["channel_conv_state"]), 1.0)


class BlockLayer(ConvolvedLayer):
    """Mixers read what blocks of layers gave; see ``BlockResidualSpec``."""

    def __init__(self, spec: LayerSpec, hidden_size: int, number: int, blocks: dict[int, SharedWeights]) -> None:
        super().__init__(spec, hidden_size, number, blocks)
        assert spec.blocks is not None
        self.blocks = BlockResidual(spec.blocks, hidden_size)
        self.begins_block = spec.blocks.begins_block

    def forward(self, stream: ResidualStream, batch: ForwardBatch, state: LayerState) -> None:
        """Pass the streams (T, N, h) through, to N + 1 where a block begins; ``state`` advances in place."""
        streams = stream.enter(None)
        mixed = self.token_mixer(self.blocks.token(streams), batch, state)
        mixed = self.token_conv(mixed, batch, state["token_conv_state"])
        if self.begins_block:
            streams = torch.cat((streams, mixed.unsqueeze(1)), 1)
        else:
            streams[:, -1] += mixed
        mixed = self.channel_mixer(self.blocks.channel(streams))
        streams[:, -1] += self.channel_conv(mixed, batch, state["channel_conv_state"])
        stream.replace(streams)
