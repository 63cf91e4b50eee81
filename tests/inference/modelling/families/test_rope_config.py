"""Rotary embeddings of config.json, in both namings and each kind of scaling."""

from __future__ import annotations

import math

import pytest

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
