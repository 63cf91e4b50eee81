"""Mistral Small 4: growing queries, the share of a head that rotates, routing, and defaults."""

from __future__ import annotations

import math
from typing import Any

import pytest

from inference.errors import CheckpointError, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.registry import family_builder
from inference.modelling.spec import ModelSpec
from tests.inference.modelling.families.headers import Shapes, view_of
from tests.inference.modelling.families.latent import layers

ROPE = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.2}
CONFIG: dict[str, Any] = {
    "model_type": "mistral4", "num_attention_heads": 2, "num_experts_per_tok": 2, "max_position_embeddings": 64,
    "rope_parameters": ROPE,
}  # fmt: skip


def shapes() -> Shapes:
    return {name: shape for name, shape in layers(2).items() if not name.endswith("e_score_correction_bias")}


def build(**changes: Any) -> ModelSpec:
    config = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    return family_builder("mistral4")(view_of(shapes(), config))


def test_queries_of_all_layers_grow_behind_the_trained_context() -> None:
    assert [layer.token_mixer.query_growth for layer in build().layers] == [(0.2, 16)] * 2
    plain = build(rope_parameters=ROPE | {"llama_4_scaling_beta": None})
    assert [layer.token_mixer.query_growth for layer in plain.layers] == [None] * 2


def test_the_rotation_of_a_config_without_one_is_transformers_default() -> None:
    mixer = build(rope_parameters=None).layers[0].token_mixer
    assert mixer.query_growth == (0.1, 8192)
    assert (mixer.rope.theta, mixer.rope.scaling.factor, mixer.rope.scaling.mscale_all_dim) == (1e4, 128.0, 1.0)


def test_rope_scaling_counts_where_rope_parameters_stands_beside_it() -> None:
    mixer = build(rope_scaling=ROPE | {"factor": 4.0, "llama_4_scaling_beta": 0.3}).layers[0].token_mixer
    assert (mixer.query_growth, mixer.rope.scaling.factor) == ((0.3, 16), 4.0)


def test_experts_are_scored_by_a_softmax_within_groups() -> None:
    moe = build(n_group=2, topk_group=1).layers[1].channel_mixer
    assert (moe.scoring, moe.group_score, moe.num_expert_groups, moe.top_k_groups) == ("softmax", "top2", 2, 1)
    assert (moe.normalise_top_k, moe.correction_bias, moe.routed_scaling_factor) == (True, False, 1.0)


def test_the_share_of_a_head_that_rotates_is_that_of_the_shapes() -> None:
    """Four values of a head don't rotate here, two do."""
    assert build(rope_parameters=ROPE | {"partial_rotary_factor": 2 / 6}).layers == build().layers
    with pytest.raises(TensorShapeMismatch, match="partial_rotary_factor") as caught:
        build(rope_parameters=ROPE | {"partial_rotary_factor": 0.5})
    assert caught.value.param == "rope_parameters.partial_rotary_factor"
    for bad in ("half", math.nan, 10**400, 1.5):
        with pytest.raises(CheckpointError, match="partial_rotary_factor"):
            build(rope_parameters=ROPE | {"partial_rotary_factor": bad})


@pytest.mark.parametrize("key", ["scoring_func", "topk_method", "sliding_window", "num_nextn_predict_layers"])
def test_keys_of_other_types_are_refused(key: str) -> None:
    with pytest.raises(UnsupportedArchitecture, match=key):
        build(**{key: 1})
