"""Specs of token mixers side by side: names of parameters, states, kinds."""

from __future__ import annotations

import pytest

from inference.modelling.spec import LayerSpec
from inference.modelling.specs.layers import AttentionSpec, MLPSpec
from inference.modelling.specs.linear import ShortConvSpec
from inference.modelling.specs.parallel import BranchSpec, ParallelSpec

ATTENTION, CONV = AttentionSpec(4, 2, 8, 1.0), ShortConvSpec(16, 3)


def test_parameters_are_under_kinds_and_states_side_by_side():
    spec = ParallelSpec((BranchSpec(ATTENTION), BranchSpec(CONV)))
    assert {name.partition(".")[0] for name in spec.parameter_shapes(16)} == {"attention", "short_conv"}
    assert spec.parameter_shapes(16)["attention.o_proj.weight"] == (16, 32)
    assert spec.state() == (*ATTENTION.state(), *CONV.state())
    layer = LayerSpec(token_mixer=spec, channel_mixer=MLPSpec(8))
    assert layer.token_mixers == (ATTENTION, CONV)
    assert layer.kind == "attention+short_conv+mlp"


def test_states_of_one_name_have_no_place():
    with pytest.raises(AssertionError, match="conv_state"):
        ParallelSpec((BranchSpec(CONV), BranchSpec(CONV)))
