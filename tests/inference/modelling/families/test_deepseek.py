"""DeepSeek: sizes of MLA from shapes, routing rules of V2 and V3."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference.errors import TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.config_keys import check_config_keys
from inference.modelling.families.deepseek import build_spec
from inference.modelling.families.registry import config_keys
from tests.inference.modelling.families.headers import HIDDEN, experts, mlp, norms, outer, view_of

LAYER = "model.layers.0."
V3 = {"model_type": "deepseek_v3", "num_attention_heads": 2, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}
V2 = {"model_type": "deepseek_v2", "num_attention_heads": 2, "num_experts_per_tok": 2}


def shapes() -> dict:
    """Two heads, rank 6, 4 unrotated and 2 rotated values of q and k, 3 of v."""
    base = f"{LAYER}self_attn."
    found = outer() | norms(LAYER) | mlp(f"{LAYER}mlp.shared_experts.", 6) | experts(f"{LAYER}mlp.experts.")
    return found | {
        f"{base}q_proj.weight": (2 * 6, HIDDEN),
        f"{base}kv_a_proj_with_mqa.weight": (6 + 2, HIDDEN),
        f"{base}kv_a_layernorm.weight": (6,),
        f"{base}kv_b_proj.weight": (2 * (4 + 3), 6),
        f"{base}o_proj.weight": (HIDDEN, 2 * 3),
        f"{LAYER}mlp.gate.weight": (4, HIDDEN),
    }


def test_sizes_come_from_shapes() -> None:
    spec = build_spec(view_of(shapes(), V3))
    mla = spec.layers[0].token_mixer
    assert (mla.kv_lora_rank, mla.q_lora_rank, mla.qk_nope_head_dim, mla.qk_rope_head_dim, mla.v_head_dim) == (
        6, None, 4, 2, 3,
    )  # fmt: skip
    assert mla.scale == pytest.approx(6**-0.5)
    assert spec.parameters["layers.0.token_mixer.v_b_proj.weight"].pieces[0].per_group == (7, 4, 7)


def test_kimi_k2_is_deepseek_v3() -> None:
    third = build_spec(view_of(shapes(), V3))
    assert replace(build_spec(view_of(shapes(), V3 | {"model_type": "kimi_k2"})), model_type="deepseek_v3") == third


@pytest.mark.parametrize("model_type", ["kimi_k25", "kimi_vl"])
def test_the_text_model_of_kimi_that_sees_pictures(model_type: str) -> None:
    """With the keys of the published files, around those of Kimi K2."""
    alone = build_spec(view_of(shapes(), V3))
    tensors = {f"language_model.{name}": shape for name, shape in shapes().items()}
    tensors |= {"vision_tower.patch_embed.proj.bias": (4,), "mm_projector.pre_norm.weight": (4,)}
    config = {
        "model_type": model_type, "text_config": V3, "media_placeholder_token_id": 9, "vision_config": {},
        "use_unified_vision_chunk": True, "video_placeholder": "<|video|>", "ignore_index": -100, "pad_token_id": 3,
    }  # fmt: skip
    view = view_of(tensors, config)
    check_config_keys(view, model_type, config_keys(model_type))
    assert build_spec(view).layers == alone.layers
    assert not view.facts.warnings


def test_routing_of_both_versions() -> None:
    third = build_spec(view_of(shapes(), V3)).layers[0].channel_mixer
    assert (third.scoring, third.normalise_top_k, third.routed_scaling_factor, third.group_score) == (
        "sigmoid", True, 2.5, "top2",
    )  # fmt: skip
    second = build_spec(view_of(shapes(), V2)).layers[0].channel_mixer
    assert (second.scoring, second.normalise_top_k, second.num_expert_groups) == ("softmax", False, 1)
    assert second.shared_intermediate_size == third.shared_intermediate_size == 6


def test_heads_and_rules_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TensorShapeMismatch, match="can't be split into the 5 heads"):
        build_spec(view_of(shapes(), V3 | {"num_attention_heads": 5}))
    with pytest.raises(UnsupportedArchitecture, match="topk_method 'x' is not supported"):
        build_spec(view_of(shapes(), V3 | {"topk_method": "x"}))
