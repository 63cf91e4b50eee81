"""Shapes of several streams."""

from __future__ import annotations

from inference.modelling.specs.altup import AltUpSpec, StreamsSpec
from inference.modelling.specs.parts import NormSpec


def test_shapes_follow_the_number_of_streams() -> None:
    shapes = AltUpSpec(3, 0, 5, NormSpec()).parameter_shapes(8)
    assert shapes["prediction.weight"] == (9, 3) and shapes["correction.weight"] == (3, 3)
    assert shapes["laurel_down_proj.weight"] == (5, 8) and shapes["output_scale"] == (8,)
    assert "output_scale" not in AltUpSpec(3, 0, 5, NormSpec(), has_output_scale=False).parameter_shapes(8)
    assert StreamsSpec(3).parameter_shapes(8) == {"enter": (2, 8, 8), "leave": (2, 8, 8)}
