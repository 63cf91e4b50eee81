"""Specs of linear attention and short convolutions: parameters and states."""

from __future__ import annotations

from inference.modelling.specs.linear import GatedDeltaSpec, ShortConvSpec
from inference.modelling.specs.parts import NormSpec


def test_the_delta_rule_stacks_its_projections_and_keeps_a_matrix_per_value_head():
    spec = GatedDeltaSpec(2, 4, 6, 5, 4, NormSpec())
    assert spec.conv_width == 2 * 2 * 6 + 4 * 5
    shapes = spec.parameter_shapes(16)
    assert shapes["in_proj.weight"] == (spec.conv_width + 4 * 5, 16)
    assert shapes["ba_proj.weight"] == (8, 16)
    assert shapes["norm.weight"] == (5,)
    assert [(part.per, part.shape, part.dtype) for part in spec.state()] == [
        ("sequence", (44, 3), "float32"),
        ("sequence", (4, 6, 5), "float32"),
    ]


def test_a_short_convolution_keeps_its_last_rows():
    assert set(ShortConvSpec(16, 3).parameter_shapes(16)) == {"in_proj.weight", "conv1d.weight", "out_proj.weight"}
    assert ShortConvSpec(16, 3, bias=True).parameter_shapes(16)["in_proj.bias"] == (48,)
    assert [part.shape for part in ShortConvSpec(16, 3).state()] == [(16, 2)]
