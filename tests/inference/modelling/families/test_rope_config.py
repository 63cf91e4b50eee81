"""Rotary embeddings of config.json, in both namings and each kind of scaling."""

from __future__ import annotations

import copy
import math

import pytest
from transformers import AutoConfig

from inference.errors import CorruptCheckpoint, UnsupportedArchitecture
from inference.modelling.families.rope_config import read_rope, yarn_softmax_multiplier
from tests.inference.modelling.families.headers import view_of


def rope_of(config: dict, head_dim: int = 8, **options):
    return read_rope(view_of({}, config), head_dim, max_position_embeddings=64, **options)


def test_both_namings_give_the_same_rope() -> None:
    scaling = {"rope_type": "linear", "factor": 2.0}
    old = rope_of({"rope_theta": 5000.0, "rope_scaling": scaling})
    new = rope_of({"rope_parameters": scaling | {"rope_theta": 5000.0}})
    assert old == new
    assert (old.theta, old.rotary_dim, old.scaling.kind, old.scaling.factor) == (5000.0, 8, "linear", 2.0)


def test_defaults_and_the_rotated_share() -> None:
    rope = rope_of({"partial_rotary_factor": 0.5}, default_theta=123.0, default_partial=1.0, interleaved=True)
    assert (rope.theta, rope.rotary_dim, rope.interleaved, rope.scaling) == (123.0, 4, True, None)
    with pytest.raises(UnsupportedArchitecture, match="3 of 8 values of a head are rotated"):
        rope_of({"partial_rotary_factor": 0.4}, default_partial=1.0)


@pytest.mark.parametrize("key", ["partial_rotary_factor", "rotary_percent"])
def test_a_share_of_the_head_is_refused_where_the_family_rotates_whole_heads(key: str) -> None:
    assert rope_of({key: 1.0}) == rope_of({"rope_parameters": {key: 1}}) == rope_of({})
    for config in ({key: 0.5}, {"rope_scaling": {"rope_type": "default", key: 0.5}}):
        with pytest.raises(UnsupportedArchitecture, match="this family rotates whole heads"):
            rope_of(config)


def test_yarn_stretches_from_the_trained_context() -> None:
    scaling = {"type": "yarn", "original_max_position_embeddings": 16, "mscale_all_dim": 1.0, "beta_fast": 0}
    rope = rope_of({"rope_scaling": scaling})
    assert (rope.scaling.factor, rope.scaling.beta_fast, rope.scaling.beta_slow) == (4.0, 32.0, 1.0)
    assert yarn_softmax_multiplier(rope) == pytest.approx((0.1 * math.log(4.0) + 1.0) ** 2)
    assert yarn_softmax_multiplier(rope_of({})) == 1.0


def test_vllms_factor_multiplies_yarns_own_magnitude() -> None:
    """DeepSeek-R1-0528-Qwen3-8B takes the magnitude back with it; it was refused."""
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    stated = rope_of({"rope_scaling": scaling | {"attn_factor": 0.8782488562869419}}).scaling
    assert stated.attention_factor == pytest.approx(1.0, abs=1e-12)
    assert rope_of({"rope_scaling": scaling | {"attn_factor": 1.0}}).scaling.attention_factor == pytest.approx(
        0.1 * math.log(4.0) + 1.0
    )
    both = rope_of({"rope_scaling": scaling | {"attn_factor": 0.5, "attention_factor": 1.5}}).scaling
    assert both.attention_factor == 1.5


def test_longrope_has_a_factor_for_each_pair() -> None:
    scaling = {"type": "su", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    rope = rope_of({"rope_scaling": scaling, "original_max_position_embeddings": 32}, renamed_types={"su": "longrope"})
    assert rope.scaling.long_factor == (2.0,) * 4
    assert rope.scaling.original_max_position_embeddings == 32
    with pytest.raises(CorruptCheckpoint, match="long_factor has 3 values; 4 positive ones"):
        rope_of({"rope_scaling": scaling | {"rope_type": "longrope", "long_factor": [2.0] * 3}})


@pytest.mark.parametrize("model_type", ["llama", "ministral3", "phimoe", "phi3"])
def test_which_trained_context_counts_is_as_in_transformers(model_type: str) -> None:
    """Phi-3's files have it at the top level, which wins there alone."""
    scaling = {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    mscales = {"short_mscale": 1.0, "long_mscale": 1.0} if model_type == "phimoe" else {}
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "head_dim": 8, "max_position_embeddings": 64}
    config = {"original_max_position_embeddings": 32}
    config["rope_parameters"] = scaling | mscales | {"original_max_position_embeddings": 16}
    theirs = AutoConfig.for_model(model_type, **copy.deepcopy(sizes | config)).rope_parameters
    expected = theirs["original_max_position_embeddings"]
    found = rope_of(config, default_original=4096 if model_type == "phi3" else None).scaling
    assert found.original_max_position_embeddings == expected == (32 if model_type == "phi3" else 16)


def test_a_trained_context_at_the_top_level_alone_counts() -> None:
    scaling = {"rope_type": "yarn", "factor": 2.0}
    rope = rope_of({"rope_parameters": scaling, "original_max_position_embeddings": 32})
    assert rope.scaling.original_max_position_embeddings == 32


def test_rope_scaling_wins_over_rope_parameters_whose_base_stays() -> None:
    """A user adds YaRN in the older naming to a file in the newer one."""
    parameters = {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0}
    scaling = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
    theirs = AutoConfig.for_model("llama", rope_parameters=dict(parameters), rope_scaling=dict(scaling))
    rope = rope_of({"rope_parameters": parameters, "rope_scaling": scaling})
    assert (rope.scaling.kind, rope.scaling.factor) == ("yarn", theirs.rope_parameters["factor"]) == ("yarn", 2.0)
    assert rope.theta == 5000.0
    assert rope_of({"rope_parameters": parameters, "rope_scaling": scaling | {"rope_theta": 7000.0}}).theta == 7000.0
    assert rope_of({"rope_parameters": parameters, "rope_scaling": {}}).scaling.kind == "linear"


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ({"rope_scaling": {"type": "x"}}, UnsupportedArchitecture, "rope type 'x' is not supported"),
        ({"rope_scaling": [1]}, CorruptCheckpoint, "must be an object"),
        ({"rope_scaling": {"type": "linear"}}, CorruptCheckpoint, "factor is missing"),
        (
            {"rope_scaling": {"type": "llama3", "factor": 2.0, "low_freq_factor": 5.0}},
            CorruptCheckpoint,
            "high_freq_factor 4 must not be below low_freq_factor 5",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 2.0}, "sliding_attention": {"rope_theta": 3.0}}},
            CorruptCheckpoint,
            "differ between the layer types",
        ),
    ],
)
def test_ropes_that_cannot_be_computed_are_refused(config: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        rope_of(config)
