"""Shapes of hyper-connections: reading for each mixer and at the end, adding for the mixers only."""

from __future__ import annotations

from inference.modelling.specs.hyper import HyperConnectionSpec, HyperStreamsSpec
from inference.modelling.specs.parts import NormSpec


def test_shapes_follow_the_streams() -> None:
    spec = HyperConnectionSpec(3, 5, NormSpec(offset=1.0))
    shapes = spec.layer_shapes(8)
    assert shapes["token.norm.weight"] == (3, 8) and shapes["channel.down_proj.weight"] == (5, 24)
    assert shapes["token.up_proj.weight"] == (24, 5) and shapes["channel.inject.weight"] == (3, 24)
    assert "inject.weight" not in HyperStreamsSpec(spec).parameter_shapes(8)
    assert len(shapes) == 2 * (len(HyperStreamsSpec(spec).parameter_shapes(8)) + 1)
