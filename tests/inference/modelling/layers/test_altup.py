"""Streams: magnitudes at their begin and end, and what a prediction is corrected by."""

from __future__ import annotations

import torch

from inference.modelling.layers.altup import AltUp, Streams
from inference.modelling.specs.altup import AltUpSpec, StreamsSpec
from inference.modelling.specs.parts import NormSpec


def filled(module: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape)
    return module


def test_all_streams_begin_in_the_magnitude_of_the_embedding() -> None:
    hidden = torch.randn(5, 8)
    streams = filled(Streams(StreamsSpec(4), 8)).split(hidden)
    assert streams.shape == (4, 5, 8) and torch.equal(streams[0], hidden)
    wanted = hidden.square().mean(-1).expand(4, 5)
    assert torch.allclose(streams.square().mean(-1), wanted, rtol=1e-5)


def test_the_end_is_the_mean() -> None:
    layer = filled(Streams(StreamsSpec(3), 8))
    layer.leave.data = torch.eye(8).expand(2, 8, 8).clone()
    hidden = torch.randn(5, 8)
    assert torch.allclose(layer.merge(hidden.expand(3, 5, 8)), hidden, atol=1e-6)


def test_a_right_prediction_is_not_corrected() -> None:
    layer = filled(AltUp(AltUpSpec(3, 1, 2, NormSpec(eps=1e-6)), 8))
    predicted = layer.predict(torch.randn(3, 5, 8))
    assert torch.equal(layer.correct(predicted, predicted[1]), predicted)


def test_a_prediction_without_coefficients_is_the_stream() -> None:
    layer = filled(AltUp(AltUpSpec(3, 0, 2, NormSpec(eps=1e-6)), 8))
    layer.prediction.weight.data.zero_()
    layer.correction.weight.data.zero_()
    streams, computed = torch.randn(3, 5, 8), torch.randn(5, 8)
    assert torch.equal(layer.predict(streams), streams)
    assert torch.allclose(layer.correct(streams, computed), streams + (computed - streams[0]), atol=1e-6)
