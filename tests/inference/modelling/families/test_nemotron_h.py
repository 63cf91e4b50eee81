"""Nemotron-H: one mixer per layer, compared with the pattern of the config."""

from __future__ import annotations

import math

import pytest

from inference.errors import TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.nemotron_h import build_spec
from inference.modelling.specs.layers import AttentionSpec, Mamba2Spec, MLPSpec, MoESpec
from tests.inference.modelling.families.headers import HIDDEN, attention, mamba2, norms, outer, view_of

CONFIG = {"num_attention_heads": 4, "hybrid_override_pattern": "M*-", "n_groups": 1}


def shapes() -> dict:
    found = outer("norm_f", "backbone.", "embeddings")
    for number in range(3):
        found |= norms(f"backbone.layers.{number}.", "norm")
    found |= mamba2("backbone.layers.0.mixer.") | attention("backbone.layers.1.mixer.")
    base = "backbone.layers.2.mixer."
    return found | {f"{base}up_proj.weight": (24, HIDDEN), f"{base}down_proj.weight": (HIDDEN, 24)}


def test_each_layer_has_one_mixer() -> None:
    view = view_of(shapes(), CONFIG)
    layers = build_spec(view).layers
    assert isinstance(layers[0].token_mixer, Mamba2Spec) and layers[0].channel_mixer is None
    assert isinstance(layers[1].token_mixer, AttentionSpec) and layers[1].token_mixer.rope is None
    mlp = layers[2].channel_mixer
    assert isinstance(mlp, MLPSpec) and layers[2].token_mixer is None
    assert (mlp.gated, mlp.activation, mlp.intermediate_size) == (False, "relu2", 24)
    assert not view.facts.warnings


def test_time_steps_are_bounded_by_their_limit_and_not_by_those_of_a_training() -> None:
    """The published files have both; the code published with them bounds Δ by the limit alone."""
    training = {"time_step_min": 0.001, "time_step_max": 0.1, "time_step_floor": 0.0001}
    for limit, expected in (([0.0, math.inf], (0.0, math.inf)), ([0.01, 0.5], (0.01, 0.5)), (None, (0.0, math.inf))):
        mixer = build_spec(view_of(shapes(), CONFIG | training | {"time_step_limit": limit})).layers[0].token_mixer
        assert isinstance(mixer, Mamba2Spec) and (mixer.dt_min, mixer.dt_max) == expected


def test_a_pattern_that_contradicts_the_tensors_is_refused() -> None:
    with pytest.raises(TensorShapeMismatch, match=r"calls layer 1 mamba .*tensors are attention's"):
        build_spec(view_of(shapes(), CONFIG | {"hybrid_override_pattern": "MM-"}))
    with pytest.raises(TensorShapeMismatch, match=r"describes 2 layers .*tensors have 3"):
        build_spec(view_of(shapes(), CONFIG | {"hybrid_override_pattern": "M*"}))


@pytest.mark.parametrize("leaf", ["experts.0.up_proj.bias", "experts.3.down_proj.bias", "gate.bias"])
def test_biases_of_experts_are_refused(leaf: str) -> None:
    """They were left aside, and the text was wrong."""
    base = "backbone.layers.2.mixer."
    found = {name: shape for name, shape in shapes().items() if not name.startswith(base)}
    found[f"{base}gate.weight"] = (4, HIDDEN)
    for number in range(4):
        found[f"{base}experts.{number}.up_proj.weight"] = (8, HIDDEN)
        found[f"{base}experts.{number}.down_proj.weight"] = (HIDDEN, 8)
    config = CONFIG | {"hybrid_override_pattern": "M*E"}
    assert len(build_spec(view_of(found, config)).layers) == 3
    with pytest.raises(UnsupportedArchitecture, match=f"no place in nemotron_h: {base}{leaf}"):
        build_spec(view_of(found | {base + leaf: (8,)}, config))


def test_unknown_letters_are_refused() -> None:
    with pytest.raises(UnsupportedArchitecture, match="hybrid_override_pattern has 'X'"):
        build_spec(view_of(shapes(), CONFIG | {"hybrid_override_pattern": "MX-"}))


def with_latent_experts(outer_width: int = 6) -> dict:
    """Layer 2 has experts that read 6 numbers and give ``outer_width``."""
    base = "backbone.layers.2.mixer."
    found = {name: shape for name, shape in shapes().items() if not name.startswith(base)}
    found |= {f"{base}gate.weight": (4, HIDDEN), f"{base}fc1_latent_proj.weight": (6, HIDDEN)}
    found[f"{base}fc2_latent_proj.weight"] = (HIDDEN, outer_width)
    for number in range(4):
        found[f"{base}experts.{number}.up_proj.weight"] = (8, 6)
        found[f"{base}experts.{number}.down_proj.weight"] = (6, 8)
    return found


def test_experts_in_a_latent_space_are_between_two_projections() -> None:
    """Nemotron 3 Super has them."""
    config = CONFIG | {"hybrid_override_pattern": "M*E", "moe_latent_size": 6}
    spec = build_spec(view_of(with_latent_experts(), config))
    experts = spec.layers[2].channel_mixer
    assert isinstance(experts, MoESpec) and (experts.latent_size, experts.intermediate_size) == (6, 8)
    found = experts.parameter_shapes(HIDDEN)
    assert (found["experts.up_proj"], found["latent_up_proj.weight"]) == ((4, 8, 6), (HIDDEN, 6))
    with pytest.raises(TensorShapeMismatch, match="moe_latent_size 5, but the tensors have 6"):
        build_spec(view_of(with_latent_experts(), config | {"moe_latent_size": 5}))
    with pytest.raises(TensorShapeMismatch, match="fc2_latent_proj"):
        build_spec(view_of(with_latent_experts(7), config))
