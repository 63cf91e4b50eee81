"""Hyper-connections: a mix of the streams is read, and each stream gets a share of the result."""

from __future__ import annotations

import torch

from inference.modelling.layers.hyper import HyperStreams, StreamConnection
from inference.modelling.specs.hyper import HyperConnectionSpec, HyperStreamsSpec
from inference.modelling.specs.parts import NormSpec

SPEC = HyperConnectionSpec(3, 4, NormSpec(eps=1e-6, offset=1.0))


def filled(module: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape)
    return module


def test_the_streams_begin_equal() -> None:
    hidden = torch.randn(5, 8)
    streams = filled(HyperStreams(HyperStreamsSpec(SPEC), 8)).split(hidden)
    assert streams.shape == (5, 3, 8) and torch.equal(streams[:, 2], hidden)


def test_without_coefficients_half_the_mean_is_read_and_all_is_added_once() -> None:
    layer = filled(StreamConnection(SPEC, 8))
    layer.up_proj.weight.data.zero_()
    layer.inject.weight.data.zero_()
    streams = torch.randn(5, 3, 8)
    entering, weights = layer.enter(streams)
    assert torch.allclose(entering, layer.norm(streams).mean(1) / 2)
    assert torch.equal(weights, torch.ones(5, 3, 1))


def test_each_stream_is_normed_alone() -> None:
    layer = filled(StreamConnection(SPEC, 8))
    streams = torch.randn(5, 3, 8)
    scaled = streams * torch.tensor([1.0, 10.0, 0.1])[:, None]
    for found, wanted in zip(layer.enter(scaled), layer.enter(streams), strict=True):
        assert torch.allclose(found, wanted, atol=1e-3)
