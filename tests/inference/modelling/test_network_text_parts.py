"""Text models of models that see pictures, whose layers are another family's, against transformers 5."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.checks import OTHER_PARTS
from inference.modelling.families.config_keys import check_config_keys
from inference.modelling.families.registry import config_keys, family_builder
from tests.inference.modelling.harness import assert_matches_oracle, load_directory, read_view
from tests.inference.modelling.huggingface import make_wrapped_checkpoint, read_config
from tests.inference.modelling.test_network_attention import BASE
from tests.inference.modelling.test_network_large import DOTS3, MISTRAL_LARGE4
from tests.inference.modelling.test_network_linear import LFM2, LFM3

QWEN_TOWER = {"depth": 1, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
SIGLIP = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 8,
}  # fmt: skip
SIGLIP2 = {"model_type": "siglip2_vision_model", **SIGLIP, "num_patches": 16}
QWEN = {**BASE, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5, "mrope_section": [1, 1, 2]}}
ERNIE = {
    **BASE, "num_hidden_layers": 3, "moe_num_experts": 6, "moe_intermediate_size": [20, 12],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e5, "mrope_section": [1, 1, 2]},
}  # fmt: skip
OCR2 = {
    **BASE, "num_hidden_layers": 3, "n_routed_experts": 6, "n_shared_experts": 2, "num_experts_per_tok": 3,
    "moe_intermediate_size": 20, "mlp_layer_types": ["dense", "sparse", "sparse"],
}  # fmt: skip
OCR2_TOWER = {
    "sam_config": {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 8,
        "output_channels": 8, "downsample_channels": [8, 16], "global_attn_indexes": [0],
    },
    "encoder_config": {**SIGLIP, "num_key_value_heads": 2, "vocab_size": 64},
}  # fmt: skip
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": (QWEN, {**QWEN_TOWER, "embed_dim": 16, "hidden_size": 32}, {}),
    "qwen2_5_vl": (
        QWEN,
        {**QWEN_TOWER, "hidden_size": 16, "intermediate_size": 16, "out_hidden_size": 32, "fullatt_block_indexes": [0]},
        {},
    ),
    "qwen3_vl": (
        {**QWEN, "head_dim": 8, "tie_word_embeddings": True},
        {
            **QWEN_TOWER, "hidden_size": 16, "intermediate_size": 16, "out_hidden_size": 32,
            "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
        },
        {"tie_word_embeddings": True},
    ),
    "qwen3_vl_moe": (
        {
            **QWEN, "head_dim": 8, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
            "norm_topk_prob": True, "mlp_only_layers": [0],
        },
        {
            **QWEN_TOWER, "hidden_size": 16, "intermediate_size": 16, "out_hidden_size": 32,
            "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
        },
        {},
    ),
    "smolvlm": ({"model_type": "llama", **BASE}, {**SIGLIP, "image_size": 16}, {"scale_factor": 2}),
    "idefics3": ({"model_type": "llama", **BASE}, {**SIGLIP, "image_size": 16}, {"scale_factor": 2}),
    "ernie4_5_vl_moe": (
        {**ERNIE, "moe_num_shared_experts": 1, "moe_k": 3},
        {**QWEN_TOWER, "hidden_size": 16, "intermediate_size": 16},
        {},
    ),
    "deepseek_ocr2": (
        {**OCR2, "n_group": 3, "topk_group": 2, "topk_method": "group_limited_greedy", "routed_scaling_factor": 1.7},
        OCR2_TOWER,
        {},
    ),
    "mistral_large4": ({**BASE, **MISTRAL_LARGE4}, {"model_type": "pixtral", "head_dim": 8, **SIGLIP}, {}),
    "dots3_note": (
        {**BASE, **DOTS3},
        {
            **SIGLIP, "num_hidden_layers": 2, "adapter_in_dim": 16, "adapter_out_dim": 32, "moe_intermediate_size": 8,
            "mlp_layer_types": ["dense", "sparse"], "num_local_experts": 4, "num_experts_per_tok": 2,
        },
        {"audio_config": {
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "adapter_input_size": 16, "adapter_out_dim": 32, "downsample_hidden_size": 8, "feature_size": 16,
        }},
    ),
    "lfm2_vl": ({"model_type": "lfm2", **LFM2}, SIGLIP2, {}),
    "lfm3_vl": ({"model_type": "lfm3", **LFM3}, SIGLIP2, {}),
}  # fmt: skip
"""A type's text model, its tower, and what else its config has."""
ENLARGED = ("deepseek_ocr2", "ernie4_5_vl_moe", "mistral_large4", "dots3_note")
"""Types that choose experts or keys by scores, which are nearly equal in a new model."""


@pytest.mark.parametrize("is_of_hub", [False, True], ids=["of transformers 5", "of the hub"])
@pytest.mark.parametrize("model_type", CASES)
def test_the_text_model_of_one_that_sees_pictures(model_type, is_of_hub, tmp_path):
    text, tower, further = CASES[model_type]
    config = AutoConfig.for_model(model_type, text_config=text, vision_config=tower, **further)
    oracle = make_wrapped_checkpoint(config, tmp_path, is_of_hub=is_of_hub, enlarged=model_type in ENLARGED)
    view = read_view(tmp_path)
    check_config_keys(view, model_type, config_keys(model_type))
    assert any(map(OTHER_PARTS.names.search, view.tensors))
    assert_matches_oracle(load_directory(tmp_path), oracle)


@pytest.mark.parametrize(
    ("model_type", "text_type"), [("qwen3_vl_moe", "qwen3_moe"), ("lfm2_vl", "lfm2"), ("lfm3_vl", "lfm3")]
)
def test_a_tower_beside_a_model_that_is_text_alone_is_refused(model_type, text_type, tmp_path):
    """It is of another model then, and would be left aside in silence."""
    text, tower, further = CASES[model_type]
    config = AutoConfig.for_model(model_type, text_config=text, vision_config=tower, **further)
    make_wrapped_checkpoint(config, tmp_path, is_of_hub=False)
    alone = read_config(tmp_path)["text_config"] | {"model_type": text_type}
    with pytest.raises(UnsupportedArchitecture, match="tensors have no place"):
        load_directory(tmp_path, alone)


@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen2_5_vl"])
def test_keys_of_the_text_model_beside_the_others(model_type, tmp_path):
    """As the published files have them, with three positions by their first name."""
    text, tower, _ = CASES[model_type]
    config = AutoConfig.for_model(model_type, text_config=text, vision_config=tower)
    oracle = make_wrapped_checkpoint(config, tmp_path, is_of_hub=True)
    stated = read_config(tmp_path)
    inner = stated.pop("text_config")
    flat = inner | stated | {"rope_parameters": None, "rope_theta": 1e5, "model_type": model_type}
    flat["rope_scaling"] = {"type": "mrope", "mrope_section": [1, 1, 2]}
    view = read_view(tmp_path, flat)
    check_config_keys(view, model_type, config_keys(model_type))
    family_builder(model_type)(view)
    assert [fact.value for fact in view.facts.facts if fact.name == "vision"] == ["left out"]
    assert_matches_oracle(load_directory(tmp_path, flat), oracle)
