"""The larger families, whose layers share caches, have inputs of their own or several streams, against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from tests.inference.modelling.harness import assert_matches_oracle, load_directory, read_view
from tests.inference.modelling.huggingface import make_checkpoint, make_wrapped_checkpoint, read_config
from tests.inference.modelling.test_network_attention import LLAMA3, MLA, YARN
from tests.inference.modelling.test_network_dense import tiny_config

SLIDING, FULL, INDEXED_TYPE = "sliding_attention", "full_attention", "indexed_attention"
GEMMA4: dict[str, Any] = {
    "head_dim": 8, "global_head_dim": 16, "sliding_window": 6, "tie_word_embeddings": True, "num_hidden_layers": 6,
    "layer_types": [SLIDING, SLIDING, FULL] * 2, "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 99,
    "num_kv_shared_layers": 2,
}  # fmt: skip
EXPERTS4 = {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 20}
STRETCHED = {
    SLIDING: {"rope_type": "default", "rope_theta": 300.0},
    FULL: {"rope_type": "proportional", "rope_theta": 5000.0, "partial_rotary_factor": 0.5, "factor": 4.0},
}
INDEXED = {"q_lora_rank": 20, "index_topk": 12, "index_head_dim": 12, "index_n_heads": 24}
"""So many heads that hardly any two keys have a score of 0, the order of which is nobody's promise."""
SHARING = ["full", "shared", "full", "shared"]
MISTRAL_LARGE4: dict[str, Any] = {
    **{key: value for key, value in MLA.items() if key != "q_lora_rank"},
    **{key: value for key, value in INDEXED.items() if key != "q_lora_rank"},
    "num_hidden_layers": 8, "no_rope_layers": [1, 0, 1, 1, 0, 1, 1, 0], "kv_source_layers": [0, 1, 0, 3, 1, 3, 6, 1],
    "indexer_types": [*SHARING[:3], "full", "full", "shared", "full", "shared"],
}  # fmt: skip
"""Layers share latents, choices, both or neither, with positions and without."""
DOTS3: dict[str, Any] = {
    **MLA, **INDEXED, "num_hidden_layers": 6, "layer_types": [INDEXED_TYPE] * 2 + [SLIDING] * 3 + [INDEXED_TYPE],
    "head_dim": 20, "shared_experts_intermediate_size": 28, "sliding_window": 6, "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 2, "swa_q_lora_rank": 12, "swa_kv_lora_rank": 14, "swa_head_dim": 16,
    "swa_qk_nope_head_dim": 10, "swa_v_head_dim": 8,
}  # fmt: skip
DOTS3_ROPES = {
    INDEXED_TYPE: YARN | {"mscale": 1.0, "mscale_all_dim": 0.5},
    SLIDING: {"rope_type": "default", "rope_theta": 300.0},
}
HY4 = {**MLA, **INDEXED, "swiglu_limit": 0.7}
MSCALED = YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}
GEMMA3N: dict[str, Any] = {
    "head_dim": 8, "sliding_window": 6, "tie_word_embeddings": True, "num_hidden_layers": 4,
    "layer_types": [SLIDING, FULL] * 2, "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 90,
    "num_kv_shared_layers": 2, "laurel_rank": 4, "pad_token_id": 0,
}  # fmt: skip
MIMO: dict[str, Any] = {
    "head_dim": 12, "v_head_dim": 8, "num_key_value_heads": 1, "num_hidden_layers": 3, "moe_intermediate_size": 20,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "sliding_window": 6, "layer_types": [FULL, SLIDING, SLIDING],
}  # fmt: skip
MIMO_ROPES = {
    FULL: {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.67},
    SLIDING: {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.34},
}
LONGCAT: dict[str, Any] = {
    "num_layers": 2, "q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
    "head_dim": 8, "v_head_dim": 10, "num_key_value_heads": 4, "ffn_hidden_size": 40, "expert_ffn_hidden_size": 24,
    "moe_topk": 3, "n_routed_experts": 5, "zero_expert_num": 3, "routed_scaling_factor": 2.0,
}  # fmt: skip
CSA, HCA = "compressed_sparse_attention", "heavily_compressed_attention"
DEEPSEEK4: dict[str, Any] = {
    "head_dim": 16, "partial_rotary_factor": 0.5, "q_lora_rank": 20, "num_hidden_layers": 4, "num_key_value_heads": 1,
    "moe_intermediate_size": 20, "n_routed_experts": 6, "num_experts_per_tok": 2, "o_groups": 2, "o_lora_rank": 6,
    "index_n_heads": 16, "index_head_dim": 12, "index_topk": 3, "sliding_window": 6, "swiglu_limit": 0.7,
    "compress_rates": {CSA: 4, HCA: 10}, "layer_types": [SLIDING, CSA, HCA, CSA],
    "mlp_layer_types": ["hash_moe", "moe", "hash_moe", "moe"],
}  # fmt: skip
SPARSE = "minimax_m3_sparse"
MINIMAX_M3: dict[str, Any] = {
    "head_dim": 12, "num_hidden_layers": 3, "intermediate_size": 24, "dense_intermediate_size": 40,
    "shared_intermediate_size": 28, "num_local_experts": 6, "num_experts_per_tok": 2, "swiglu_limit": 1.5,
    "mlp_layer_types": ["dense", "sparse", "sparse"], "layer_types": [FULL, SPARSE, SPARSE], "index_n_heads": 2,
    "index_head_dim": 10, "index_block_size": 4, "index_topk_blocks": 3, "rotary_dim": 6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
}  # fmt: skip
LLAMA4: dict[str, Any] = {
    "head_dim": 8, "num_hidden_layers": 4, "num_local_experts": 4, "intermediate_size": 24, "intermediate_size_mlp": 40,
    "attention_chunk_size": 9, "floor_scale": 5, "attn_scale": 0.4,
}  # fmt: skip
STEP: dict[str, Any] = {
    "head_dim": 8, "num_hidden_layers": 5, "num_sliding_attention_heads": 6, "n_routed_experts": 6, "pad_token_id": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 20, "share_expert_dim": 28, "sliding_window": 6,
    "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING], "moe_router_scaling_factor": 1.7,
    "swiglu_limits": [None, None, None, 0.4, 0.0], "swiglu_limits_shared": [0.3, None, 0.0, None, 0.2],
    "rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 1.0},
        FULL: LLAMA3 | {"partial_rotary_factor": 0.5},
    },
}  # fmt: skip
MUSE: dict[str, Any] = {
    "head_dim": 8, "num_hidden_layers": 5, "sliding_window": 6, "final_logit_softcapping": 1.5, "pad_token_id": 0,
    "rms_norm_eps": 1e-3,
}  # fmt: skip
SPARK: dict[str, Any] = {
    **MUSE, "moe_intermediate_size": 20, "num_local_experts": 6, "num_experts_per_tok": 2, "moe_hidden_size": 24,
    "mlp_layer_types": ["sparse", "dense", "sparse", "sparse", "sparse"], "routed_scaling_factor": 1.7,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma4_text": (
        "gemma4_text",
        {
            **GEMMA4, **EXPERTS4, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
            "use_double_wide_mlp": True, "num_hidden_layers": 4, "layer_types": [SLIDING, FULL] * 2,
        },
    ),
    "gemma4_text-values-of-their-own": (
        "gemma4_text",
        {**GEMMA4, "attention_bias": True, "num_hidden_layers": 4, "layer_types": [SLIDING, FULL] * 2},
    ),
    "deepseek_v32": ("deepseek_v32", {**MLA, **INDEXED, "n_group": 4, "topk_group": 2, "rope_parameters": MSCALED}),
    "axk1": ("axk1", {**MLA, "q_lora_rank": 20, "n_group": 4, "topk_group": 2, "rope_parameters": MSCALED}),
    "axk1-biases-halves": (
        "axk1",
        {
            **MLA, "q_lora_rank": 20, "n_group": 1, "topk_group": 1, "attention_bias": True, "rope_interleave": False,
            "norm_topk_prob": False, "rms_norm_eps": 1e-3,
        },
    ),
    "axk2": ("axk2", {**MLA, **INDEXED, "gated_norm_rank": 6, "rope_parameters": MSCALED}),
    "axk2-groups-biases": (
        "axk2",
        {**MLA, **INDEXED, "gated_norm_rank": 5, "n_group": 4, "topk_group": 2, "attention_bias": True},
    ),
    "glm_moe_dsa": ("glm_moe_dsa", {**MLA, **INDEXED, "num_hidden_layers": 4, "indexer_types": SHARING}),
    "mistral_large4_text": (
        "mistral_large4_text",
        {**MISTRAL_LARGE4, "n_group": 2, "topk_group": 1, "routed_scaling_factor": 1.7, "rope_parameters": MSCALED},
    ),
    "mistral_large4_text-each-its-own-biases-stronger-cap": (
        "mistral_large4_text",
        {
            **MISTRAL_LARGE4, "num_hidden_layers": 4, "no_rope_layers": None, "kv_source_layers": None,
            "indexer_types": None, "attention_bias": True, "final_logit_softcapping": 2.0, "rms_norm_eps": 1e-3,
        },
    ),
    "dots3_note_text": (
        "dots3_note_text",
        {**DOTS3, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.7, "rope_parameters": DOTS3_ROPES},
    ),
    "dots3_note_text-all-seen-or-windows-biases": (
        "dots3_note_text",
        {
            **DOTS3, "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL, FULL], "use_dsa": False,
            "attention_bias": True, "norm_topk_prob": False, "rms_norm_eps": 1e-3, "rope_theta": 700.0,
            "swa_rope_theta": 90.0,
        },
    ),
    "hy_v4": ("hy_v4", {**HY4, "indexer_types": SHARING, "num_hidden_layers": 4}),
    "hy_v4-two-streams-biases": (
        "hy_v4",
        {
            **HY4, "hc_mult": 2, "hc_magnitude": 1.3, "hc_eps": 0.01, "attention_bias": True, "rms_norm_eps": 1e-3,
            "rope_parameters": MSCALED,
        },
    ),
    "glm_moe_dsa-each-its-own": (
        "glm_moe_dsa",
        {**MLA, **INDEXED, "n_group": 4, "topk_group": 2, "attention_bias": True, "rope_parameters": MSCALED},
    ),
    "deepseek_v32-dense-biases-all-seen": (
        "deepseek_v32",
        {**MLA, **INDEXED, "index_topk": 128, "n_group": 1, "topk_group": 1, "attention_bias": True},
    ),
    "gemma3n_text": (
        "gemma3n_text",
        {**GEMMA3N, "activation_sparsity_pattern": [0.9, 0.0, 0.5, 0.0], "intermediate_size": [48, 40, 48, 32]},
    ),
    "gemma3n_text-other-stream-without-scale": (
        "gemma3n_text",
        {
            **GEMMA3N, "altup_active_idx": 1, "altup_num_inputs": 3, "altup_correct_scale": False,
            "num_kv_shared_layers": 0, "attention_bias": True, "final_logit_softcapping": 2.0,
        },
    ),
    "deepseek_v4": ("deepseek_v4", DEEPSEEK4),
    "deepseek_v4-stretched-two-streams-sigmoid": (
        "deepseek_v4",
        {
            **DEEPSEEK4, "layer_types": [CSA, HCA, HCA], "mlp_layer_types": ["moe"] * 3, "num_hidden_layers": 3,
            "compress_rates": {CSA: 7, HCA: 5}, "index_topk": 100, "sliding_window": 100, "hc_mult": 2, "hc_eps": 0.01,
            "hc_sinkhorn_iters": 3, "scoring_func": "sigmoid", "o_groups": 4, "rms_norm_eps": 1e-3,
            "hidden_act": "gelu", "partial_rotary_factor": None, "qk_rope_head_dim": 6, "compress_rope_theta": 3000.0,
            "rope_parameters": {key: value for key, value in YARN.items() if key != "rope_theta"}, "rope_theta": 500.0,
        },
    ),
    "longcat_flash": ("longcat_flash", LONGCAT),
    "longcat_flash-biases-yarn": ("longcat_flash", {**LONGCAT, "attention_bias": True, "rope_parameters": MSCALED}),
    "minimax_m3_vl_text": ("minimax_m3_vl_text", MINIMAX_M3),
    "minimax_m3_vl_text-all-experts-two-local": (
        "minimax_m3_vl_text",
        {**MINIMAX_M3, "mlp_layer_types": None, "index_local_blocks": 2, "layer_types": [SPARSE] * 3},
    ),
    "mimo_v2_flash": ("mimo_v2_flash", {**MIMO, "rope_parameters": MIMO_ROPES}),
    "mimo_v2_flash-equal-widths-groups-biases": (
        "mimo_v2_flash",
        {
            **MIMO, "v_head_dim": 12, "n_group": 2, "topk_group": 1, "attention_bias": True,
            "attention_value_scale": None, "layer_types": None,
        },
    ),
    "step3p5": ("step3p5", STEP),
    "step3p5-all-full-experts-scale-biases": (
        "step3p5",
        {
            **STEP, "layer_types": None, "num_hidden_layers": 2, "mlp_layer_types": ["sparse", "dense"],
            "swiglu_limits": None, "swiglu_limits_shared": [0.2, 0.3], "query_pre_attn_scalar": 3,
            "attention_bias": True, "rope_parameters": None,
        },
    ),
    "molmo2_text": (
        "molmo2_text",
        {
            "head_dim": 8, "additional_vocab_size": 7, "num_hidden_layers": 3, "attention_bias": True,
            "rope_scaling_layers": [0, 2], "rope_parameters": YARN,
        },
    ),
    "molmo2_text-norms-behind-and-over-rows": (
        "molmo2_text",
        {"head_dim": 12, "additional_vocab_size": 1, "qk_norm_type": "olmo", "norm_after": True, "rms_norm_eps": 1e-3},
    ),
    "muse_glimmer_text": ("muse_glimmer_text", MUSE),
    "muse_glimmer_text-rotations-biases-tied": (
        "muse_glimmer_text",
        {
            **MUSE, "num_hidden_layers": 3, "layer_types": [SLIDING, FULL, SLIDING], "post_norm_eps": 0.1,
            "layer_rope_theta": [0, LLAMA3["rope_theta"], 0], "rope_parameters": LLAMA3, "attention_bias": True,
            "qk_scale_factor": 1.7, "output_multiplier": 0.6, "tie_word_embeddings": True, "hidden_activation": "gelu",
        },
    ),
    "muse_spark_text": ("muse_spark_text", SPARK),
    "muse_spark_text-all-experts-cold-gates-biases": (
        "muse_spark_text",
        {
            **SPARK, "num_hidden_layers": 2, "mlp_layer_types": None, "residual_gate_temperature": 0.1,
            "attention_bias": True, "qk_scale_factor": 1.7, "output_multiplier": 0.6, "post_norm_eps": 0.1,
            "layer_types": [FULL, SLIDING], "rope_parameters": LLAMA3, "hidden_act": "gelu",
        },
    ),
    "llama4_text": ("llama4_text", {**LLAMA4, "moe_layers": [1, 3]}),
    "llama4_text-all-experts-two-chosen": (
        "llama4_text",
        {
            **LLAMA4, "num_experts_per_tok": 2, "use_qk_norm": False, "attention_bias": True,
            "no_rope_layers": [1, 0, 0, 1], "rope_parameters": LLAMA3,
        },
    ),
    "llama4_text-yarn-every-other": (
        "llama4_text",
        {**LLAMA4, "interleave_moe_layer_step": 2, "attn_temperature_tuning": False, "rope_parameters": YARN},
    ),
    "gemma4_unified_text": (
        "gemma4_unified_text",
        {
            "head_dim": 8, "global_head_dim": 16, "sliding_window": 6, "tie_word_embeddings": True,
            "num_hidden_layers": 4, "layer_types": [SLIDING, FULL] * 2, "num_kv_shared_layers": 2,
            "attention_k_eq_v": True, "num_global_key_value_heads": 1, "use_double_wide_mlp": True,
        },
    ),
    "gemma4_text-without-inputs": (
        "gemma4_text",
        {
            **GEMMA4, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "final_logit_softcapping": 3.0,
            "rope_parameters": STRETCHED,
        },
    ),
}  # fmt: skip
SEEDS = {"gemma4_text-values-of-their-own": 6}
"""With the usual weights transformers' own float32 is up to 5e-4 from its float64 at single tokens, here below 6e-5."""
VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8,
    "num_key_value_heads": 2, "patch_size": 8, "position_embedding_size": 16,
}  # fmt: skip
MUSE_TOWER = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "patch_size": 4,
    "pos_emb_height": 4, "pos_emb_width": 4, "max_position_embeddings": 16,
}  # fmt: skip
AUDIO = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 16}
TOKENS = {
    key: 200 + number
    for number, key in enumerate(
        ("boi_token_id", "eoi_token_id", "image_token_id", "video_token_id", "boa_token_id", "eoa_token_index")
    )
}
AROUND: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma4": ("gemma4_text", {"vision_config": VISION, "audio_config": AUDIO, "audio_token_id": 210, **TOKENS}),
    "llama4": (
        "llama4_text",
        {
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 64,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 16,
                "patch_size": 8,
                "vision_output_dim": 16,
                "projector_input_dim": 16,
                "projector_output_dim": 16,
                "pixel_shuffle_ratio": 0.5,
            },
            "boi_token_index": 200,
            "eoi_token_index": 201,
            "image_token_index": 202,
        },
    ),
    "minimax_m3_vl": (
        "minimax_m3_vl_text",
        {
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "patch_size": 8,
                "image_size": 16,
            },
            "projector_hidden_size": 16,
            "image_token_index": 200,
            "video_token_index": 201,
        },
    ),
    "molmo2": (
        "molmo2_text",
        {
            "vision_config": {
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 8,
                "intermediate_size": 16,
                "image_size": [56, 56],
                "patch_size": 14,
            },
            "adapter_config": {
                "vision_feature_layer": [0, -1],
                "hidden_size": 16,
                "num_attention_heads": 2,
                "head_dim": 8,
                "num_key_value_heads": 2,
                "intermediate_size": 16,
                "text_hidden_size": 32,
            },
            "image_patch_id": 100,
        },
    ),
    "muse_glimmer": (
        "muse_glimmer_text",
        {"vision_config": MUSE_TOWER, "out_hidden_size": 64, "projector_hidden_size": 16, "image_token_id": 90},
    ),
    "muse_spark": (
        "muse_spark_text",
        {
            "vision_config": MUSE_TOWER,
            "out_hidden_size": 64,
            "projector_hidden_size": 16,
            "image_token_id": 90,
            "audio_config": {
                "patch_sizes": [2, 2],
                "hidden_sizes": [8, 8],
                "depths": [1, 1],
                "num_hidden_layers": 2,
                "out_hidden_size": 32,
            },
        },
    ),
    "step3p7": (
        "step3p5",
        {
            "vision_config": {
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 56,
                "patch_size": 14,
            },
            "image_token_id": 200,
        },
    ),
    "gemma4_unified": (
        "gemma4_unified_text",
        {
            "vision_config": {"patch_size": 8, "mm_embed_dim": 16, "mm_posemb_size": 16, "output_proj_dims": 16},
            "audio_config": {"audio_embed_dim": 16},
            "audio_token_id": 210,
            **TOKENS,
        },
    ),
}
"""Types of models that see pictures or hear, to the case of their text model and the configs beside it."""


@pytest.mark.parametrize("name", CASES)
def test_family_matches_transformers(name, tmp_path):
    model_type, values = CASES[name]
    directory, oracle = make_checkpoint(tiny_config(model_type, values), tmp_path / name, seed=SEEDS.get(name, 0))
    assert_matches_oracle(load_directory(directory), oracle)


def test_gemma3n_within_a_model_that_sees_and_hears(tmp_path):
    """Its encoder of pictures is no part of transformers, so that the outer names are given here."""
    directory, oracle = make_checkpoint(tiny_config(*CASES["gemma3n_text"]), tmp_path)
    tensors = load_file(directory / "model.safetensors")
    inner = {name.replace("model.", "model.language_model.", 1): value for name, value in tensors.items()}
    others = ("model.vision_tower.timm_model.conv_stem.conv.weight", "model.audio_tower.conformer.0.norm.weight",
              "model.embed_vision.embedding.weight", "model.embed_audio.embedding.weight")  # fmt: skip
    save_file(inner | {name: torch.ones(2, 2) for name in others}, directory / "model.safetensors")
    config = {
        "model_type": "gemma3n", "text_config": read_config(directory), "vision_config": {}, "audio_config": {},
        "audio_soft_tokens_per_image": 188, "vision_soft_tokens_per_image": 256, "image_token_id": 262145,
        "boa_token_id": 256000, "eoa_token_id": 262272,
    }  # fmt: skip
    assert_matches_oracle(load_directory(directory, config), oracle)


@pytest.mark.parametrize("naming", ["of transformers 5", "of the hub"])
@pytest.mark.parametrize("family", AROUND)
def test_the_text_model_of_one_that_sees_pictures(family, naming, tmp_path):
    case, beside = AROUND[family]
    text = {key: value for key, value in tiny_config(*CASES[case]).to_dict().items() if key != "model_type"}
    config = AutoConfig.for_model(family, text_config=text | {"pad_token_id": 0}, **beside)
    oracle = make_wrapped_checkpoint(config, tmp_path, is_of_hub=naming == "of the hub")
    assert any("vision" in name for name in read_view(tmp_path).tensors)
    assert_matches_oracle(load_directory(tmp_path), oracle)


def test_step_with_the_names_and_keys_of_its_authors(tmp_path):
    """Lists have entries for layers that draft, whose tensors stand behind the model's own."""
    text = tiny_config(*CASES["step3p5"]).to_dict()
    config = AutoConfig.for_model("step3p7", text_config=text, **AROUND["step3p7"][1])
    oracle = make_wrapped_checkpoint(config, tmp_path, is_of_hub=True, enlarged=True)
    saved = load_file(tmp_path / "model.safetensors")
    drafts = {"model.layers.5.eh_proj.weight": torch.ones(2, 2), "model.layers.5.mlp.up_proj.weight": torch.ones(2, 2)}
    save_file(saved | drafts, tmp_path / "model.safetensors")
    stated = read_config(tmp_path)
    lists = {key: [*stated["text_config"][key], None] for key in ("swiglu_limits", "swiglu_limits_shared")}
    early = {
        "architectures": ["Step3p7ForConditionalGeneration"], "model_type": "step3p7", "vision_config": {},
        "text_config": {
            **{key: stated["text_config"][key] for key in (
                "hidden_size", "vocab_size", "head_dim", "num_hidden_layers", "num_attention_heads", "sliding_window",
                "moe_intermediate_size", "moe_router_scaling_factor", "max_position_embeddings",
            )},
            **lists, "num_attention_groups": 2, "moe_num_experts": 6, "moe_top_k": 2, "share_expert_dims": 28,
            "layer_types": [*CASES["step3p5"][1]["layer_types"], SLIDING], "num_nextn_predict_layers": 1,
            "moe_layers_enum": "3,4", "rope_theta": [300.0, LLAMA3["rope_theta"]] * 3,
            "partial_rotary_factors": [1.0, 0.5] * 3, "yarn_only_types": [FULL], "use_moe_router_bias": True,
            "rope_scaling": {key: value for key, value in LLAMA3.items() if key != "rope_theta"},
            "attention_other_setting": {"attention_type": SLIDING, "num_attention_heads": 6, "head_dim": 8},
        },
    }  # fmt: skip
    assert_matches_oracle(load_directory(tmp_path, early), oracle)
    assert load_directory(tmp_path, early).spec.layers == load_directory(tmp_path, {
        **early, "text_config": {**stated["text_config"], "num_nextn_predict_layers": 1}}).spec.layers  # fmt: skip


@pytest.mark.parametrize("name", ["deepseek_v32", "longcat_flash", "mimo_v2_flash"])
def test_stacked_experts_are_the_same_as_one_by_one(name, tmp_path):
    apart, _ = make_checkpoint(tiny_config(*CASES[name]), tmp_path / "apart")
    together, _ = make_checkpoint(tiny_config(*CASES[name]), tmp_path / "together", stacked=True)
    first, second = load_directory(apart), load_directory(together)
    assert "experts.{e}" in str(first.spec.parameters) and "experts.{e}" not in str(second.spec.parameters)
    for (name_a, value), (name_b, other) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        assert name_a == name_b and torch.equal(value, other), name_a


@pytest.mark.parametrize("is_published", [False, True], ids=["in memory", "published"])
def test_deepseek_v4_in_other_namings(is_published, tmp_path):
    directory, oracle = make_checkpoint(tiny_config(*CASES["deepseek_v4"]), tmp_path, stacked=not is_published)
    tensors, config = load_file(directory / "model.safetensors"), read_config(directory)
    assert any(".self_attn." in name for name in tensors) != is_published
    if is_published:
        # What transformers names otherwise than the published files.
        changes = (("hc_head.hc_", "hc_head_"), ("embed_tokens.", "embed."), (".attn.norm.", ".attn.kv_norm."))
        for old, new in changes:
            tensors = {name.replace(old, new).removeprefix("model."): value for name, value in tensors.items()}
        tensors["mtp.0.attn.wq_a.weight"] = torch.zeros(20, 32)
        tensors["layers.0.ffn.gate.tid2eid"] = tensors["layers.0.ffn.gate.tid2eid"].int()
        save_file(tensors, directory / "model.safetensors")
        unknown = ("layer_types", "mlp_layer_types", "rope_parameters", "partial_rotary_factor")
        config = {key: value for key, value in config.items() if key not in unknown}
        config |= {"compress_ratios": [0, 4, 128, 4, 0], "qk_rope_head_dim": 8, "rope_scaling": None}
    assert_matches_oracle(load_directory(directory, config), oracle)
