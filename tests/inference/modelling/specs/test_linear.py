"""Specs of linear attention and short convolutions: parameters and states."""

from __future__ import annotations

from inference.modelling.specs.linear import GatedDeltaSpec, Mamba3Spec, MLSTMSpec, ShortConvSpec
from inference.modelling.specs.parts import NormSpec


def test_the_delta_rule_stacks_its_projections_and_keeps_a_matrix_per_value_head():
    spec = GatedDeltaSpec(2, 4, 6, 5, 4, NormSpec())
    assert spec.conv_width == 2 * 2 * 6 + 4 * 5
    shapes = spec.parameter_shapes(16)
    assert shapes["in_proj.weight"] == (spec.conv_width + 4 * 5, 16)
    assert shapes["ba_proj.weight"] == (8, 16)
    assert shapes["norm.weight"] == (5,)
    assert [(part.per, part.shape, part.dtype) for part in spec.state()] == [
        ("sequence", (44, 3), "state"),
        ("sequence", (4, 6, 5), "state"),
    ]


def test_exponents_sums_and_angles_are_never_rounded():
    mlstm = MLSTMSpec(2, 4, 6, 15.0, 1e-6, 1e-6)
    assert [part.name for part in mlstm.state() if part.dtype == "float32"] == ["norm_state", "max_state"]
    mamba3 = Mamba3Spec(16, 2, 8, 4, 1, 4, True, 0, NormSpec(), NormSpec())
    assert [part.name for part in mamba3.state() if part.dtype == "float32"] == ["angle_state"]


def test_a_short_convolution_keeps_its_last_rows():
    assert set(ShortConvSpec(16, 3).parameter_shapes(16)) == {"in_proj.weight", "conv1d.weight", "out_proj.weight"}
    assert ShortConvSpec(16, 3, bias=True).parameter_shapes(16)["in_proj.bias"] == (48,)
    assert [part.shape for part in ShortConvSpec(16, 3).state()] == [(16, 2)]
