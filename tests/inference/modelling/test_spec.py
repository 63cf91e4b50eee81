"""ModelSpec: shapes, sizes of states, and the stored form."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import AttentionSpec, Mamba2Spec, MLPSpec, MoESpec
from inference.modelling.specs.parts import NormSpec, RopeSpec
from inference.modelling.specs.sources import concatenated, tensor
from tests.device.networks import STACKS, make_spec


def small(**changes: object) -> ModelSpec:
    """One attention layer of width 8 behind a vocabulary of 10."""
    norm = NormSpec()
    layer = LayerSpec(
        token_mixer=AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=4, scale=0.5, rope=RopeSpec(1e4, 4)),
        token_norm=norm,
        channel_mixer=MLPSpec(intermediate_size=6),
        channel_norm=norm,
    )
    spec = ModelSpec(
        format="huggingface",
        model_type="llama",
        hidden_size=8,
        vocab_size=10,
        max_position_embeddings=64,
        layers=(layer, layer),
        final_norm=norm,
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


def test_parameters_are_named_by_layer_and_a_tied_head_is_not_there():
    shapes = small().parameter_shapes()
    assert shapes["embed_tokens.weight"] == (10, 8) == shapes["lm_head.weight"]
    assert shapes["layers.1.token_mixer.qkv_proj.weight"] == (16, 8)
    assert small(tie_word_embeddings=True).num_parameters() == small().num_parameters() - 80


def test_a_token_is_multiplied_by_the_experts_that_it_is_routed_to():
    assert small().num_active_parameters() == small().num_parameters() - 2 * 80 - 8, "without the tables and final norm"
    layer = small().layers[0]
    experts = small(layers=(replace(layer, channel_mixer=MoESpec(num_experts=4, top_k=1, intermediate_size=6)),))
    expected = small(layers=(layer,)).num_active_parameters() + 4 * 8
    assert experts.num_active_parameters() == expected, "one expert like the MLP, and the router"


def test_states_are_counted_in_the_dtype_of_the_model():
    # Two layers, keys and values, one head of four values each.
    assert small().state_bytes_per_token("bfloat16") == 2 * 2 * 4 * 2
    assert small().state_bytes_per_token() == 2 * 2 * 4 * 4
    assert small().state_bytes_per_sequence() == 0


@pytest.mark.parametrize("name", sorted(STACKS))
def test_the_stored_form_reads_back_equal(name):
    spec = make_spec(name)
    assert ModelSpec.from_dict(json.loads(spec.to_json())) == spec


def test_infinities_and_sources_survive_the_stored_form():
    sources = {"layers.0.token_mixer.qkv_proj.weight": concatenated("q", "k", "v"), "final_norm.weight": tensor("norm")}
    mamba = Mamba2Spec(8, 2, 4, 4, 1, 4, 8, None, dt_min=0.1, dt_max=math.inf)
    spec = small(parameters=sources, layers=(LayerSpec(token_mixer=mamba, token_norm=NormSpec()),))
    read = ModelSpec.from_dict(json.loads(spec.to_json()))
    assert read == spec
    assert read.layers[0].token_mixer.dt_max == math.inf


def test_another_stored_value_is_refused():
    with pytest.raises(TypeError, match="not a stored ModelSpec: dict"):
        ModelSpec.from_dict({"hidden_size": 8})
