"""The forms of a layer: which spec gets which, and their arithmetic written out beside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from inference.modelling.forward_batch import ForwardBatch, PrefillChunk
from inference.modelling.hybrid_layer import HybridLayer
from inference.modelling.layer_forms import (
    AltUpLayer,
    BlockLayer,
    ConvolvedLayer,
    GatedLayer,
    MixedStreamsLayer,
    ParallelLayer,
    ScaledLayer,
    make_layer,
)
from inference.modelling.residual_stream import ResidualStream
from inference.modelling.spec import LayerSpec
from inference.modelling.specs.altup import AltUpSpec
from inference.modelling.specs.inkling import MixerConvsSpec
from inference.modelling.specs.inkling2 import BlockResidualSpec
from inference.modelling.specs.layer_inputs import LayerInputSpec
from inference.modelling.specs.layers import AttentionSpec, MLPSpec
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.sinkhorn_streams import SinkhornStreamsSpec
from inference.modelling.specs.token_moe import TokenMoESpec
from tests.inference.modelling.test_hybrid_layer import HIDDEN, Twice, filled

NORM = NormSpec(eps=1e-6)


def spec(**fields: Any) -> LayerSpec:
    attention = AttentionSpec(2, 1, 4, 0.5)
    return LayerSpec(**{"token_mixer": attention, "token_norm": NORM, "channel_mixer": MLPSpec(16), **fields})


def make(**fields: Any) -> HybridLayer:
    layer = filled(make_layer(spec(**fields), HIDDEN, 0, {}))
    layer.token_mixer = Twice()
    return layer


def passed(layer: HybridLayer, rows: torch.Tensor) -> torch.Tensor:
    stream = ResidualStream(rows.clone())
    layer(stream, None, None)
    return stream.enter(None)


STREAMS = SinkhornStreamsSpec(3, 2.0, 0.01, 1e-6, 3)
ALTUP: dict[str, Any] = {
    "altup": AltUpSpec(3, 1, 2, NORM), "token_post_norm": NORM, "channel_norm": NORM, "channel_post_norm": NORM,
    "layer_input": LayerInputSpec(4, "gelu", NORM),
}  # fmt: skip


GATED: dict[str, Any] = {
    "residual_temperature": 0.3, "channel_norm": NORM, "token_post_norm": NormSpec(weightless=True),
    "channel_post_norm": NormSpec(scales_input=True),
}  # fmt: skip
BLOCKS: dict[str, Any] = {
    "mixer_convs": MixerConvsSpec(HIDDEN, 1, 0.5), "token_norm": None, "blocks": BlockResidualSpec(NORM)
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"channel_norm": NORM}, HybridLayer),
        ({"is_parallel": True}, ParallelLayer),
        ({"scales_residual": True, "channel_norm": NORM}, ScaledLayer),
        (GATED, GatedLayer),
        ({"mixer_convs": MixerConvsSpec(HIDDEN, 3), "channel_norm": NORM}, ConvolvedLayer),
        (BLOCKS, BlockLayer),
        ({"hyper": STREAMS, "channel_norm": NORM}, MixedStreamsLayer),
        (ALTUP, AltUpLayer),
    ],
)
def test_each_form_has_the_parameters_of_its_spec(fields: dict[str, Any], form: type[nn.Module]) -> None:
    wanted = spec(**fields)
    layer = make_layer(wanted, HIDDEN, 0, {})
    assert type(layer) is form
    assert {name: tuple(value.shape) for name, value in layer.named_parameters()} == wanted.parameter_shapes(HIDDEN)


@pytest.mark.parametrize("has_second_norm", [False, True])
def test_parallel_mixers_read_one_stream(has_second_norm: bool) -> None:
    second = {"channel_norm": NORM} if has_second_norm else {}
    layer, rows = make(is_parallel=True, residual_multiplier=0.5, **second), torch.randn(5, HIDDEN)
    normed = layer.token_norm(rows)
    channel = layer.channel_mixer(layer.channel_norm(rows) if has_second_norm else normed)
    torch.testing.assert_close(passed(layer, rows), rows + 0.5 * (2 * normed + channel))


def test_a_scaled_stream_is_scaled_with_each_addition() -> None:
    layer, rows = make(scales_residual=True, channel_norm=NORM), torch.randn(5, HIDDEN)
    first, second = layer.token_residual, layer.channel_residual
    x = first(2 * layer.token_norm(rows), rows)
    torch.testing.assert_close(passed(layer, rows), second(layer.channel_mixer(layer.channel_norm(x)), x))


def test_gates_weigh_the_stream_and_what_mixers_give() -> None:
    layer, rows = make(**GATED), torch.randn(5, HIDDEN)
    x = layer.token_residual(layer.token_post_norm(2 * layer.token_norm(rows)), rows)
    mixed = layer.channel_post_norm(layer.channel_mixer(layer.channel_norm(x)))
    torch.testing.assert_close(passed(layer, rows), layer.channel_residual(mixed, x))


def test_convolutions_behind_mixers_see_what_is_added() -> None:
    layer = make(mixer_convs=MixerConvsSpec(HIDDEN, 3), channel_norm=NORM)
    rows = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(1))
    zeros = torch.zeros(5, dtype=torch.int64)
    batch = ForwardBatch(zeros, zeros, zeros, torch.tensor([1]), 0, (PrefillChunk(0, 5, 0, 0, 1),))
    states = {f"{name}_conv_state": torch.zeros(2, HIDDEN, 2) for name in ("token", "channel")}
    stream = ResidualStream(rows.clone())
    layer(stream, batch, states)

    def convolved(taps: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        padded = torch.cat((torch.zeros(2, HIDDEN), x))
        return x + sum(padded[at : at + 5] * taps[:, 0, at] for at in range(3))

    x = rows + convolved(layer.token_conv.conv1d.weight, 2 * layer.token_norm(rows))
    mixed = layer.channel_mixer(layer.channel_norm(x))
    found = stream.enter(None)
    torch.testing.assert_close(found, x + convolved(layer.channel_conv.conv1d.weight, mixed), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(states["channel_conv_state"][1], mixed[-2:].T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("begins", [False, True])
def test_mixers_add_to_the_stream_of_the_block_that_has_begun(begins: bool) -> None:
    layer = make(**{**BLOCKS, "blocks": BlockResidualSpec(NORM, begins_block=begins)})
    streams = torch.randn(5, 3, HIDDEN, generator=torch.Generator().manual_seed(1))
    zeros = torch.zeros(5, dtype=torch.int64)
    batch = ForwardBatch(zeros, zeros, zeros, torch.tensor([1]), 0, (PrefillChunk(0, 5, 0, 0, 1),))
    states = {f"{name}_conv_state": torch.zeros(2, HIDDEN, 0) for name in ("token", "channel")}
    stream = ResidualStream(streams.clone())
    layer(stream, batch, states)
    mixed = (2 * layer.blocks.token(streams)) * (1 + layer.token_conv.conv1d.weight[:, 0, 0]) / 2
    if begins:
        expected = torch.cat((streams, mixed.unsqueeze(1)), 1)
    else:
        expected = torch.cat((streams[:, :2], (streams[:, 2] + mixed).unsqueeze(1)), 1)
    mixed = layer.channel_mixer(layer.blocks.channel(expected)) * (1 + layer.channel_conv.conv1d.weight[:, 0, 0]) / 2
    expected[:, -1] += mixed
    torch.testing.assert_close(stream.enter(None), expected, rtol=1e-4, atol=1e-4)


def test_streams_are_mixed_around_each_mixer_and_tokens_choose_experts() -> None:
    experts = TokenMoESpec(3, 2, 8, vocab_size=5)
    layer = make_layer(spec(hyper=STREAMS, channel_norm=NORM, channel_mixer=experts), HIDDEN, 0, {})
    filled(layer)
    layer.channel_mixer.token_experts.data = torch.tensor([[0, 1], [1, 2], [2, 0], [0, 2], [1, 0]])
    layer.token_mixer = Twice()
    ids, zeros = torch.tensor([4, 1, 3]), torch.zeros(3, dtype=torch.int64)
    streams = torch.randn(3, 3, HIDDEN)
    stream = ResidualStream(streams.clone())
    layer(stream, ForwardBatch(ids, zeros, zeros, torch.tensor([1]), 0, ()), {})
    entering, weights, carried = layer.hyper.token.enter(streams)
    between = carried + weights * (2 * layer.token_norm(entering)).unsqueeze(1)
    entering, weights, carried = layer.hyper.channel.enter(between)
    mixed = layer.channel_mixer(layer.channel_norm(entering), ids)
    torch.testing.assert_close(stream.enter(None), carried + weights * mixed.unsqueeze(1))


def test_a_form_needs_both_mixers() -> None:
    with pytest.raises(AssertionError):
        make_layer(LayerSpec(channel_mixer=MLPSpec(16), is_parallel=True), HIDDEN, 0, {})
