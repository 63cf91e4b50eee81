"""Step 3.5 and 3.7: both spellings of files and keys, cuts of each layer, and contradictions of config.json."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError, CorruptCheckpoint, MissingTensor, TensorShapeMismatch
from inference.modelling.families.registry import family_builder
from inference.modelling.families.step3p7 import build_spec
from inference.modelling.specs.layers import AttentionSpec, MLPSpec, MoESpec
from models_registry.detection.architecture import detect_model_type
from tests.inference.modelling.families.headers import HIDDEN, attention, mlp, norms, outer, view_of

SLIDING, FULL = "sliding_attention", "full_attention"
SIZES: dict[str, Any] = {"num_attention_heads": 4, "head_dim": 4, "sliding_window": 6, "layer_types": [FULL, SLIDING]}
CONFIG: dict[str, Any] = {
    **SIZES, "num_key_value_heads": 2, "n_routed_experts": 4, "num_experts_per_tok": 2, "share_expert_dim": 12,
    "mlp_layer_types": ["dense", "sparse"], "num_sliding_attention_heads": 6,
    "swiglu_limits": [None, 7.0], "swiglu_limits_shared": [16, 0.0],
    "rope_parameters": {
        FULL: {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
        SLIDING: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
    },
}  # fmt: skip
EARLY: dict[str, Any] = {
    **SIZES, "num_attention_groups": 2, "moe_num_experts": 4, "moe_top_k": 2, "share_expert_dims": 12,
    "moe_layers_enum": "1", "attention_other_setting": {"num_attention_heads": 6}, "num_nextn_predict_layers": 1,
    "layer_types": [FULL, SLIDING, SLIDING], "swiglu_limits": [None, 7.0, None], "swiglu_limits_shared": [16, 0.0, 0.0],
    "rope_theta": [5e6, 1e4, 1e4], "partial_rotary_factors": [0.5, 1.0, 1.0], "num_hidden_layers": 2,
}  # fmt: skip


def shapes(*, is_published: bool = False) -> dict[str, tuple[int, ...]]:
    found = outer()
    for number, heads in enumerate((4, 6)):
        layer = f"model.layers.{number}."
        found |= norms(layer) | attention(f"{layer}self_attn.", q_rows=4 * heads)
        found |= {f"{layer}self_attn.{name}_norm.weight": (4,) for name in "qk"}
        found[f"{layer}self_attn.g_proj.weight"] = (heads, HIDDEN)
    found |= mlp("model.layers.0.mlp.")
    layer = "model.layers.1."
    if is_published:
        found |= {f"{layer}moe.{name}_proj.weight": (4, 8, HIDDEN) for name in ("gate", "up")}
        found |= {f"{layer}moe.down_proj.weight": (4, HIDDEN, 8), f"{layer}moe.router_bias": (4,)}
        found |= {f"{layer}moe.gate.weight": (4, HIDDEN), "model.layers.2.eh_proj.weight": (HIDDEN, 2 * HIDDEN)}
        return found | mlp(f"{layer}share_expert.", 12)
    base = f"{layer}mlp."
    found |= {f"{base}experts.gate_up_proj": (4, 16, HIDDEN), f"{base}experts.down_proj": (4, HIDDEN, 8)}
    found |= {f"{base}gate.weight": (4, HIDDEN), f"{base}gate.e_score_correction_bias": (4,)}
    return found | mlp(f"{base}shared_experts.", 12)


def test_both_spellings_are_the_same_model() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    assert spec.layers == build_spec(view_of(shapes(is_published=True), EARLY)).layers
    full, windowed = (layer.token_mixer for layer in spec.layers)
    assert isinstance(full, AttentionSpec) and isinstance(windowed, AttentionSpec)
    assert (full.num_heads, windowed.num_heads) == (4, 6)
    assert (full.sliding_window, windowed.sliding_window) == (None, 6)
    assert full.rope is not None and windowed.rope is not None
    assert [(rope.theta, rope.rotary_dim) for rope in (full.rope, windowed.rope)] == [(5e6, 2), (1e4, 4)]
    assert full.gate_per_head and full.gate_activation == "sigmoid" and full.qk_norm is not None
    assert full.qk_norm.offset == 1.0 and spec.final_norm is not None and spec.final_norm.offset == 1.0


def test_products_are_cut_by_layer() -> None:
    dense, sparse = (layer.channel_mixer for layer in build_spec(view_of(shapes(), CONFIG)).layers)
    assert isinstance(dense, MLPSpec) and isinstance(sparse, MoESpec)
    assert (dense.post_activation_limit, sparse.post_activation_limit, sparse.shared_post_limit) == (
        16.0,
        7.0,
        None,
    )
    assert sparse.correction_bias and sparse.scoring == "sigmoid" and sparse.shared_intermediate_size == 12


def test_stretched_layers_are_the_full_ones() -> None:
    scaling = {"rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 64}
    spec = build_spec(view_of(shapes(is_published=True), EARLY | {"rope_scaling": scaling}))
    full, windowed = (layer.token_mixer for layer in spec.layers)
    assert full.rope.scaling.kind == "llama3" and windowed.rope.scaling is None


def test_published_names_say_the_type() -> None:
    view = view_of(shapes(is_published=True))
    assert detect_model_type(view.tensors, "huggingface", view.config, view.facts) == ("step3p5", True)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"layer_types": [FULL]}, "layer_types"),
        ({"layer_types": [FULL, "chunked_attention"]}, "layer_types"),
        ({"mlp_layer_types": ["sparse", "sparse"]}, "mlp_layer_types"),
        ({"mlp_layer_types": None, "moe_layers_enum": "0"}, "moe_layers_enum"),
        ({"moe_layers_enum": "0,1"}, "moe_layers_enum"),
        ({"mlp_layer_types": None, "moe_layers_enum": "1,x"}, "moe_layers_enum"),
        ({"num_sliding_attention_heads": 4}, "num_attention_heads"),
        ({"per_layer_config": {"1": {"num_attention_heads": 8}}}, "num_attention_heads"),
        ({"n_routed_experts": 5}, "n_routed_experts"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok"),
        ({"share_expert_dim": 8}, "share_expert_dim"),
        ({"moe_intermediate_size": 9}, "moe_intermediate_size"),
        ({"sliding_window": None}, "sliding_window"),
        ({"swiglu_limits": [None]}, "swiglu_limits"),
        ({"swiglu_limits": [None, -1.0]}, "swiglu_limits"),
        ({"swiglu_limits_shared": 7}, "swiglu_limits_shared"),
        ({"rope_parameters": {FULL: {"rope_theta": 1e4}}}, "rope_parameters"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(change: dict[str, Any], param: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(shapes(), CONFIG | change))
    assert caught.value.param == param


def test_rotations_that_differ_among_layers_of_a_type_are_refused() -> None:
    early = EARLY | {"layer_types": [FULL, FULL, FULL], "num_attention_heads": None, "attention_other_setting": None}
    with pytest.raises(
        CheckpointError, match=r"rope_theta has 5000000\.0 and 10000\.0 for layers of type full_attention"
    ):
        build_spec(view_of(shapes(is_published=True), early))


@pytest.mark.parametrize("key", ["swiglu_limits", "swiglu_limits_shared"])
@pytest.mark.parametrize("value", [7.0, [10**400, 1, 1], [float("inf"), 1, 1], [True, 1, 1]])
def test_limits_are_lists_of_finite_numbers(key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=key):
        build_spec(view_of(shapes(), CONFIG | {key: value}))


def test_two_objects_of_the_rotation_are_refused() -> None:
    config = CONFIG | {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}
    with pytest.raises(CheckpointError, match="rope_parameters and rope_scaling"):
        build_spec(view_of(shapes(), config))


@pytest.mark.parametrize("key", ["rope_theta", "partial_rotary_factors"])
def test_empty_lists_say_nothing(key: str) -> None:
    config = {name: value for name, value in EARLY.items() if name != key}
    expected = build_spec(view_of(shapes(is_published=True), config))
    assert build_spec(view_of(shapes(is_published=True), config | {key: []})).layers == expected.layers


@pytest.mark.parametrize("is_published", [False, True])
def test_routing_needs_its_bias_unless_config_json_says_otherwise(is_published: bool) -> None:
    config = EARLY if is_published else CONFIG
    whole = shapes(is_published=is_published)
    name = "model.layers.1." + ("moe.router_bias" if is_published else "mlp.gate.e_score_correction_bias")
    without = {key: shape for key, shape in whole.items() if key != name}
    for stated in ({}, {"use_moe_router_bias": True}):
        assert build_spec(view_of(whole, config | stated)).layers[1].channel_mixer.correction_bias
        with pytest.raises(MissingTensor, match="is missing from the checkpoint") as caught:
            build_spec(view_of(without, config | stated))
        assert caught.value.param == name
    off = config | {"use_moe_router_bias": False}
    assert not build_spec(view_of(without, off)).layers[1].channel_mixer.correction_bias
    with pytest.raises(TensorShapeMismatch, match=rf"says use_moe_router_bias false, but {name} is there"):
        build_spec(view_of(whole, off))


@pytest.mark.parametrize("value", ["6", 6, [], [6], False])
def test_the_heads_of_windowed_layers_are_in_an_object(value: Any) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"attention_other_setting is .* it must be an object") as caught:
        family_builder("step3p5")(view_of(shapes(), CONFIG | {"attention_other_setting": value}))
    assert caught.value.param == "attention_other_setting"


@pytest.mark.parametrize(
    ("beside", "param"),
    [
        ({"moe_top_k": 3}, "moe_top_k"),
        ({"num_attention_groups": 4}, "num_attention_groups"),
        ({"moe_num_experts": 8}, "moe_num_experts"),
        ({"num_local_experts": 128}, "num_local_experts"),
        ({"share_expert_dims": 16}, "share_expert_dims"),
        ({"num_nextn_predict_layers": 0, "num_mtp_layers": 1}, "num_mtp_layers"),
        ({"attention_other_setting": {"num_attention_heads": 8}}, "num_sliding_attention_heads"),
    ],
)
def test_early_names_that_contradict_the_later_ones_are_refused(beside: dict[str, Any], param: str) -> None:
    with pytest.raises(CorruptCheckpoint, match="two names of one setting") as caught:
        family_builder("step3p5")(view_of(shapes(), CONFIG | beside))
    assert caught.value.param == param


def test_early_names_beside_the_later_ones_may_say_the_same() -> None:
    same = {
        "moe_top_k": 2, "num_attention_groups": 2, "moe_num_experts": 4, "share_expert_dims": None,
        "attention_other_setting": {"num_attention_heads": 6}, "moe_layers_enum": "1",
    }  # fmt: skip
    expected = build_spec(view_of(shapes(), CONFIG))
    assert family_builder("step3p5")(view_of(shapes(), CONFIG | same)).layers == expected.layers
