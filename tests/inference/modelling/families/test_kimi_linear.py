"""Kimi Linear and Ling 3: kinds of layers by their tensors, sizes, contradictions of config.json."""

from __future__ import annotations

import pytest

from inference.errors import CheckpointError, CorruptCheckpoint, UnsupportedArchitecture
from inference.modelling.families.kimi_linear import build_spec
from inference.modelling.families.registry import family_builder
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import MLPSpec, MoESpec
from inference.modelling.specs.linear import KimiDeltaSpec
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.families.headers import HIDDEN, experts, mlp, norms, outer, view_of

KIMI = {"model_type": "kimi_linear", "num_attention_heads": 4, "num_experts_per_token": 2, "rms_norm_eps": 1e-5}
LING = {
    **KIMI, "model_type": "bailing_hybrid", "num_expert_group": 2, "topk_group": 1, "rope_theta": 6e6,
    "layer_group_size": 2,
}  # fmt: skip


def projections(base: str, **rows: int) -> dict:
    return {f"{base}{name}.weight": (count, HIDDEN) for name, count in rows.items()}


def delta(base: str, output: str) -> dict:
    """Three heads of width 4, a kernel of 4."""
    found = projections(base, q_proj=12, k_proj=12, v_proj=12, b_proj=3)
    found |= {f"{base}{name}_conv1d.weight": (12, 1, 4) for name in "qkv"}
    return found | {f"{base}dt_bias": (12,), f"{base}o_norm.weight": (4,), f"{base}{output}.weight": (HIDDEN, 12)}


def latent(base: str, output: str) -> dict:
    """Rank 10, widths 6 and 2, values of 5, for 4 heads."""
    found = projections(base, q_proj=4 * 8, kv_a_proj_with_mqa=12)
    return found | {
        f"{base}kv_a_layernorm.weight": (10,), f"{base}kv_b_proj.weight": (4 * 11, 10),
        f"{base}{output}.weight": (HIDDEN, 20),
    }  # fmt: skip


def shapes(model_type: str) -> dict:
    first, second = "model.layers.0.", "model.layers.1."
    if model_type == "kimi_linear":
        one, two = f"{first}self_attn.", f"{second}self_attn."
        found = outer() | delta(one, "o_proj") | latent(two, "o_proj")
        found |= projections(one, f_a_proj=5, g_a_proj=6) | {f"{one}A_log": (1, 1, 3, 1)}
        found |= {f"{one}f_b_proj.weight": (12, 5), f"{one}g_b_proj.weight": (12, 6)}
        sparse, bias = f"{second}block_sparse_moe.", "gate.e_score_correction_bias"
        found |= experts(f"{sparse}experts.", names=("w1", "w3", "w2"))
    else:
        one, two = f"{first}attention.", f"{second}attention."
        found = outer(embedding="word_embeddings") | delta(one, "dense") | latent(two, "dense")
        found |= projections(one, f_proj=12, g_proj=12) | {f"{one}A_log": (3,)} | projections(two, g_proj=4)
        sparse, bias = f"{second}mlp.", "gate.expert_bias"
        found |= experts(f"{sparse}experts.")
    found |= mlp(f"{first}mlp.") | mlp(f"{sparse}shared_experts.", 8)
    return found | norms(first) | norms(second) | {f"{sparse}gate.weight": (4, HIDDEN), f"{sparse}{bias}": (4,)}


def test_kimi_projects_gates_in_two_steps_and_rotates_nothing() -> None:
    first, second = build_spec(view_of(shapes("kimi_linear"), KIMI)).layers
    assert first.token_mixer == KimiDeltaSpec(3, 4, 4, NormSpec("rms", 1e-5), 5, 6)
    assert first.channel_mixer == MLPSpec(24)
    assert second.token_mixer == MLASpec(4, 10, None, 6, 2, 5, 8**-0.5, None, kv_a_norm=NormSpec("rms", 1e-6))
    assert isinstance(second.channel_mixer, MoESpec) and second.channel_mixer.num_expert_groups == 1
    assert second.channel_mixer.correction_bias


def test_ling_bounds_its_decays_and_gates_its_heads() -> None:
    first, second = build_spec(view_of(shapes("bailing_hybrid"), LING)).layers
    assert first.token_mixer == KimiDeltaSpec(3, 4, 4, NormSpec("rms", 1e-5), None, None, -5.0)
    mixer = second.token_mixer
    assert isinstance(mixer, MLASpec) and mixer.head_gate and mixer.rope is not None
    assert (mixer.rope.interleaved, mixer.rope.theta) == (True, 6e6)
    assert isinstance(second.channel_mixer, MoESpec) and second.channel_mixer.num_expert_groups == 2


def test_layers_for_drafting_are_left_out() -> None:
    found = shapes("bailing_hybrid")
    found |= {name.replace("layers.1.", "layers.2."): shape for name, shape in found.items() if "layers.1." in name}
    spec = build_spec(view_of(found, LING | {"num_hidden_layers": 2}))
    assert len(spec.layers) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"linear_num_heads": 4}, {"linear_head_dim": 5}, {"linear_conv_kernel_dim": 3}, {"kv_lora_rank": 12},
        {"linear_attn_config": {"kda_layers": [2]}}, {"linear_attn_config": {"full_attn_layers": [1]}},
        {"linear_attn_config": {"head_dim": 5}}, {"layer_types": ["full_attention"] * 2}, {"layer_group_size": 1},
        {"mlp_layer_types": ["sparse", "sparse"]}, {"mlp_layer_types": ["dense"]}, {"first_k_dense_replace": 2},
        {"num_shared_experts": 2},
    ],
    ids=str,
)  # fmt: skip
def test_contradictions_are_refused_by_key(change: dict) -> None:
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(shapes("kimi_linear"), KIMI | change))
    assert next(iter(change)) in caught.value.message


@pytest.mark.parametrize("change", [{"num_expert_group": 3}, {"num_experts_per_token": 9}])
def test_routing_that_is_impossible_is_refused(change: dict) -> None:
    with pytest.raises(CorruptCheckpoint, match="experts"):
        build_spec(view_of(shapes("kimi_linear"), KIMI | change))


def test_a_layer_of_no_kind_is_refused() -> None:
    found = {name: shape for name, shape in shapes("kimi_linear").items() if ".1.self_attn." not in name}
    with pytest.raises(UnsupportedArchitecture, match=r"model\.layers\.1"):
        build_spec(view_of(found, KIMI))


@pytest.mark.parametrize("value", ["linear", 4, [], [1, 3], {"sizes": {"head_dim": 4}}], ids=str)
def test_sizes_of_linear_attention_are_in_an_object(value: object) -> None:
    with pytest.raises(CheckpointError, match="linear_attn_config"):
        family_builder("kimi_linear")(view_of(shapes("kimi_linear"), KIMI | {"linear_attn_config": value}))


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"num_experts_per_tok": 3}, "num_experts_per_tok"),
        ({"linear_num_heads": 3, "linear_attn_config": {"num_heads": 4}}, "linear_num_heads"),
        ({"linear_head_dim": 5, "linear_attn_config": {"head_dim": 4}}, "linear_head_dim"),
    ],
    ids=str,
)
def test_two_names_of_a_setting_with_two_values_are_refused(change: dict, param: str) -> None:
    with pytest.raises(CorruptCheckpoint, match="two names of one setting") as caught:
        family_builder("kimi_linear")(view_of(shapes("kimi_linear"), KIMI | change))
    assert caught.value.param == param


def test_two_names_of_a_setting_may_say_the_same() -> None:
    same = {"num_experts_per_tok": 2, "linear_num_heads": 3, "linear_attn_config": {"num_heads": 3, "head_dim": None}}
    expected = build_spec(view_of(shapes("kimi_linear"), KIMI))
    assert family_builder("kimi_linear")(view_of(shapes("kimi_linear"), KIMI | same)).layers == expected.layers
