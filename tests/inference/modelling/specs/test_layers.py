"""Specs of layers: the shapes of their parameters, and the states they keep."""

from __future__ import annotations

from inference.modelling.specs.layers import AttentionSpec, Mamba2Spec, MLPSpec, MoESpec
from inference.modelling.specs.parts import NormSpec, RopeScaling, RopeSpec, prefixed


def test_attention_stacks_its_projections_and_keeps_keys_and_values_per_token():
    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, scale=1.0, qkv_bias=True, qk_norm=NormSpec())
    assert spec.parameter_shapes(16) == {
        "qkv_proj.weight": (64, 16),
        "qkv_proj.bias": (64,),
        "o_proj.weight": (16, 32),
        "q_norm.weight": (8,),
        "k_norm.weight": (8,),
    }
    assert [(part.name, part.per, part.shape) for part in spec.state()] == [
        ("k", "token", (2, 8)),
        ("v", "token", (2, 8)),
    ]


def test_a_recurrent_layer_keeps_its_states_per_sequence():
    spec = Mamba2Spec(32, 4, 8, 16, 2, 4, 32, NormSpec())
    assert spec.conv_width == 32 + 2 * 2 * 16
    assert {part.per for part in spec.state()} == {"sequence"}
    assert (4, 8, 16) in [part.shape for part in spec.state()]


def test_a_gated_mlp_has_two_matrices_before_the_activation():
    gated, plain = MLPSpec(12).parameter_shapes(8), MLPSpec(12, gated=False).parameter_shapes(8)
    assert sum(shape[0] * shape[1] for shape in gated.values()) == 3 * 8 * 12
    assert sum(shape[0] * shape[1] for shape in plain.values()) == 2 * 8 * 12


def test_experts_have_a_router():
    shapes = MoESpec(num_experts=4, top_k=2, intermediate_size=12).parameter_shapes(8)
    assert (4, 8) in shapes.values()


def test_frequencies_depend_on_the_length_for_two_kinds_of_scaling():
    assert not RopeSpec(1e4, 8).depends_on_length
    assert RopeSpec(1e4, 8, scaling=RopeScaling("dynamic", 2.0)).depends_on_length


def test_names_get_their_prefix():
    assert prefixed("norm", {"weight": (1,)}) == {"norm.weight": (1,)}
