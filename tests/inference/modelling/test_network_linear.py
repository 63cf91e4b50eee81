"""Families with layers of the gated delta rule or short convolutions, against transformers."""

from __future__ import annotations

import pytest
import torch
import transformers

from inference.errors import CorruptCheckpoint
from tests.inference.modelling.harness import assert_matches_oracle, load_directory, read_view
from tests.inference.modelling.test_network_recurrent import (
    ATTENTION,
    SIZES,
    make_model,
    oracle_of,
    rewrite_config,
)

LFM2 = {
    **SIZES, **ATTENTION, "intermediate_size": 48, "block_multiple_of": 8,
    "layer_types": ["conv", "full_attention", "conv"],
}  # fmt: skip
LFM3 = {
    **SIZES, **ATTENTION, "num_hidden_layers": 4, "head_dim": 16, "intermediate_size": 48, "sliding_window": 7,
    "pad_token_id": None,
    "layer_types": ["conv", "sliding_attention", "full_attention", "conv"],
}  # fmt: skip
LFM3_ROPES = {
    "sliding_attention": {"rope_type": "proportional", "rope_theta": 300.0, "partial_rotary_factor": 0.25},
    "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
}
DELTA = {
    **SIZES, **ATTENTION, "num_hidden_layers": 4, "head_dim": 16, "intermediate_size": 48,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 12,
    "rms_norm_eps": 1e-2,
}  # fmt: skip
"""The first outputs of random states are nearly 0; a norm with the usual eps would magnify float32's rounding of them a
thousand times, in transformers as here."""
EXPERTS = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28,
}  # fmt: skip

QWEN4 = {
    **{key: value for key, value in DELTA.items() if key != "intermediate_size"}, **EXPERTS, "pad_token_id": None,
    "eos_token_id": 5, "hc_count": 3, "hc_lowrank": 10, "indexer_n_heads": 14, "indexer_kv_heads": 1,
    "indexer_head_dim": 12, "indexer_budget": 12, "indexer_compress_ratio": 4, "ple_layer_ids": [1, 3],
    "ple_embed_dim": 24, "ngram_size": 4, "heads_per_ngram": 2, "ngram_vocab_size_base": 50, "split_ngram_parts": 4,
    "make_ngram_vocab_size_divisible_by": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e3, "partial_rotary_factor": 0.5},
}  # fmt: skip
"""So many heads of the indexer that no two blocks have a score of 0, the order of which is nobody's promise."""
FALCON_H1 = {
    **SIZES, **ATTENTION, "intermediate_size": 48, "mamba_d_ssm": 48, "mamba_n_heads": 6, "mamba_d_head": 8,
    "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_chunk_size": 16, "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.4, "key_multiplier": 0.6, "attention_in_multiplier": 1.3, "attention_out_multiplier": 0.7,
    "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.6, "ssm_multipliers": [0.7, 0.9, 1.2, 1.4, 0.8],
    "mlp_multipliers": [0.8, 1.3],
}  # fmt: skip
OLMO_HYBRID = {
    **{key: value for key, value in DELTA.items() if key != "head_dim"}, "pad_token_id": None,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}  # fmt: skip
MINIMAX = {
    **SIZES, **ATTENTION, "num_hidden_layers": 4, "intermediate_size": 24, "num_local_experts": 4, "block_size": 16,
    "linear_attn_alpha_factor": 1.7, "linear_attn_beta_factor": 0.8, "full_attn_alpha_factor": 2.1,
    "full_attn_beta_factor": 0.9, "mlp_alpha_factor": 1.4, "mlp_beta_factor": 1.2, "rms_norm_eps": 1e-3,
}  # fmt: skip
ZAMBA2 = {
    **SIZES, "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 48,
    "layers_block_type": ["linear_attention", *["hybrid", "linear_attention"] * 2, "hybrid", "hybrid"],
    "n_mamba_heads": 8, "mamba_d_state": 16, "mamba_ngroups": 2, "num_mem_blocks": 2, "adapter_rank": 4,
    "use_shared_attention_adapter": True, "use_mem_rope": True, "chunk_size": 16,
    "time_step_min": 1e-9,
}  # fmt: skip
ZAMBA = {
    **SIZES, "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
    "n_mamba_heads": 2, "mamba_d_state": 8, "mamba_dt_rank": 5, "attn_layer_period": 3, "attn_layer_offset": 1,
}  # fmt: skip
INKLING = {
    **SIZES, **ATTENTION, "head_dim": 8, "swa_num_attention_heads": 6, "swa_num_key_value_heads": 3,
    "swa_head_dim": 12, "sliding_window_size": 7, "d_rel": 5, "rel_extent": 9, "log_scaling_n_floor": 6,
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"], "mlp_layer_types": ["dense", "sparse", "sparse"],
    "intermediate_size": 48, "moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "unpadded_vocab_size": 90, "pad_token_id": None, "logits_mup_width_multiplier": 0.5,
}  # fmt: skip
INKLING2 = {
    **{key: value for key, value in INKLING.items() if key not in ("mlp_layer_types", "logits_mup_width_multiplier")},
    "num_hidden_layers": 5, "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid", "hybrid_sliding"],
    "qk_l2_clip_threshold": 1.5, "rel_l2_clip_threshold": 1.0, "n_layers_per_attn_res_block": 2,
    "mlp_gate_softcap": 0.8, "mlp_up_softcap": 0.7, "final_logit_softcapping": 2.0,
}  # fmt: skip
GLM = {
    **SIZES, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 48,
    "moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
    "q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "v_head_dim": 10, "index_topk": 8, "index_kpool": 4,
    "index_head_dim": 8, "index_n_heads": 12, "linear_num_heads": 3, "linear_head_dim": 8, "hc_mult": 3,
    "hc_sinkhorn_iters": 4, "hc_eps": 0.01, "swiglu_limit": 0.5, "pad_token_id": 0, "eos_token_id": 5,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-3, "mlp_layer_types": ["dense", *["sparse"] * 5],
    "indexer_types": ["full", "full", "shared", "full", "full", "full"], "routed_scaling_factor": 1.3,
    "layer_types": [
        "linear_attention", *["indexed_attention"] * 2, *["linear_attention"] * 2, "indexed_attention",
    ],
}  # fmt: skip
ZAYA = {
    **SIZES, **ATTENTION, "head_dim": 8, "num_experts": 5, "moe_intermediate_size": 24, "router_hidden_size": 12,
    "layer_types": ["hybrid", "hybrid_sliding", "hybrid"], "sliding_window": 7, "eos_token_id": 5,
}  # fmt: skip
ZAYA_ROPES = {
    "hybrid": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
    "hybrid_sliding": {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.25},
}
RWKV = {**SIZES, "layer_norm_epsilon": 1e-4}
GRIFFIN = {**SIZES, **ATTENTION, "intermediate_size": 96, "attention_window_size": 9, "rms_norm_eps": 1e-3}
XLSTM = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 3, "num_heads": 4, "ffn_round_up_to_multiple_of": 8,
    "qk_dim_factor": 1.0, "chunk_size": 16, "norm_eps": 1e-3, "autocast_kernel_dtype": "float32",
}  # fmt: skip

CASES = {
    "xlstm": ("xLSTM", XLSTM),
    "xlstm-narrow-keys-caps": (
        "xLSTM",
        {
            **XLSTM, "qk_dim_factor": 0.5, "gate_soft_cap": 1.5, "output_logit_soft_cap": 2.0,
            "eps": 1e-2,
        },
    ),
    "recurrent_gemma": ("RecurrentGemma", GRIFFIN),
    "recurrent_gemma-width-types-biases": (
        "RecurrentGemma",
        {
            **GRIFFIN, "lru_width": 24, "block_types": ["attention", "recurrent"], "attention_bias": True,
            "conv1d_width": 3, "logits_soft_cap": 2.0, "num_hidden_layers": 5,
        },
    ),
    "rwkv": ("Rwkv", RWKV),
    "rwkv-widths-rescaled-tied": (
        "Rwkv",
        {
            **SIZES, "layer_norm_epsilon": 1e-6, "attention_hidden_size": 48, "intermediate_size": 40,
            "rescale_every": 2, "tie_word_embeddings": True,
        },
    ),
    "zamba": ("Zamba", ZAMBA),
    "zamba-four-heads-biases-untied": (
        "Zamba",
        {
            **ZAMBA, "n_mamba_heads": 4, "mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_d_conv": 3,
            "tie_word_embeddings": False, "attention_head_dim": 12, "hidden_mamba_act": "gelu", "hidden_act": "silu",
            "layers_block_type": ["hybrid", *["linear_attention"] * 4, "hybrid", "hybrid"],
        },
    ),
    "zamba-one-head": ("Zamba", {**ZAMBA, "n_mamba_heads": 1, "mamba_dt_rank": "auto"}),
    "zamba2": ("Zamba2", ZAMBA2),
    "zamba2-one-block-no-positions-biases": (
        "Zamba2",
        {
            **ZAMBA2, "num_mem_blocks": 1, "use_shared_attention_adapter": False, "use_mem_rope": False,
            "add_bias_linear": True, "mamba_ngroups": 1, "hidden_act": "silu",
        },
    ),
    "minimax": ("MiniMax", MINIMAX),
    "minimax-window-head-dim": (
        "MiniMax",
        {
            **MINIMAX, "head_dim": 12, "sliding_window": 9, "hidden_act": "gelu", "tie_word_embeddings": True,
            "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        },
    ),
    "olmo_hybrid": ("OlmoHybrid", OLMO_HYBRID),
    "olmo_hybrid-no-positions": (
        "OlmoHybrid",
        {
            **OLMO_HYBRID, "rope_parameters": {"rope_theta": None, "rope_type": "default"},
            "linear_allow_neg_eigval": False, "tie_word_embeddings": True, "linear_conv_kernel_dim": 3,
            "layer_types": ["full_attention", "linear_attention"] * 2, "attention_bias": True,
        },
    ),
    "falcon_h1": ("FalconH1", FALCON_H1),
    "falcon_h1-norm-biases-tied": (
        "FalconH1",
        {
            **FALCON_H1, "mamba_rms_norm": True, "attention_bias": True, "projectors_bias": True,
            "mamba_proj_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 16,
            "time_step_limit": [0.0, 0.4],
        },
    ),
    "falcon_h1-norm-after-gate": (
        "FalconH1",
        {
            **FALCON_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_conv_bias": False,
            "ssm_multipliers": None, "mlp_multipliers": None, "mamba_d_ssm": None, "mamba_n_heads": 8,
        },
    ),
    "lfm2": ("Lfm2", LFM2),
    "lfm2-biases-kernel-untied": (
        "Lfm2",
        {**LFM2, "conv_bias": True, "conv_L_cache": 4, "tie_word_embeddings": False, "block_auto_adjust_ff_dim": False},
    ),
    "lfm2_moe": (
        "Lfm2Moe",
        {
            **LFM2, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "num_dense_layers": 1,
            "routed_scaling_factor": 1.7,
        },
    ),
    "lfm2_moe-scores-as-they-are": (
        "Lfm2Moe",
        {
            **LFM2, "num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 20, "num_dense_layers": 0,
            "norm_topk_prob": False, "use_expert_bias": False,
        },
    ),
    "inkling": ("InklingText", INKLING),
    "inkling-whole-vocabulary-unscaled-scores": (
        "InklingText",
        {
            **INKLING, "unpadded_vocab_size": None, "log_scaling_n_floor": None, "conv_kernel_size": 3,
            "n_shared_experts": 1, "rel_extent": 100, "sliding_window_size": 80, "route_scale": 1.5,
        },
    ),
    "inkling-usual-layers-one-kv-head": (
        "InklingText",
        {
            **INKLING, "num_hidden_layers": 7, "layer_types": None, "mlp_layer_types": None, "num_key_value_heads": 1,
            "log_scaling_n_floor": 20, "log_scaling_alpha": 0.7, "conv_kernel_size": 1, "d_rel": 1,
            "hidden_act": "gelu",
        },
    ),
    "inkling2": ("Inkling2Text", INKLING2),
    "inkling2-whole-vocabulary-full-first-one-block": (
        "Inkling2Text",
        {
            **INKLING2, "unpadded_vocab_size": 200, "layer_types": ["hybrid", "hybrid_sliding"], "conv_kernel_size": 2,
            "num_hidden_layers": 2, "n_layers_per_attn_res_block": 6, "rel_extent": 100, "num_key_value_heads": 1,
            "num_experts_per_tok": 1, "log_scaling_n_floor": 20, "log_scaling_alpha": 0.7,
        },
    ),
    "inkling2-usual-layers-each-a-block-one-tap": (
        "Inkling2Text",
        {
            **INKLING2, "num_hidden_layers": 7, "layer_types": None, "n_layers_per_attn_res_block": 1,
            "conv_kernel_size": 1, "d_rel": 1, "swa_num_key_value_heads": 6, "qk_l2_clip_threshold": 50.0,
        },
    ),
    "glm5_next": ("Glm5Next", GLM),
    "glm5_next-decays-without-bound-groups-windows-of-eight": (
        "Glm5Next",
        {
            **GLM, "linear_lower_bound": None, "n_group": 2, "topk_group": 1, "norm_topk_prob": False,
            "index_kpool": 8, "linear_conv_kernel_dim": 3, "hc_mult": 2, "swiglu_limit": 0.2,
        },
    ),
    "glm5_next-usual-layers-windows-of-one": (
        "Glm5Next",
        {**GLM, "layer_types": None, "mlp_layer_types": None, "indexer_types": None, "index_kpool": 1, "index_topk": 5},
    ),
    "zaya": ("Zaya", ZAYA),
    "zaya-biases-kernels-untied": (
        "Zaya",
        {
            **ZAYA, "attention_bias": True, "lm_head_bias": True, "cca_time0": 3, "cca_time1": 4, "hidden_act": "gelu",
            "tie_word_embeddings": False, "rope_parameters": ZAYA_ROPES, "num_key_value_heads": 1,
        },
    ),
    "zaya-one-tap-tied-head-with-bias": ("Zaya", {**ZAYA, "cca_time0": 1, "cca_time1": 1, "lm_head_bias": True}),
    "lfm3": ("Lfm3", LFM3),
    "lfm3-biases-kernel-untied-without-gates-and-norms": (
        "Lfm3",
        {
            **LFM3, "conv_bias": True, "attention_bias": True, "conv_L_cache": 4, "tie_word_embeddings": False,
            "use_sandwich_norm": False, "use_attention_gate": False, "layer_types": None, "num_hidden_layers": 5,
            "rope_parameters": LFM3_ROPES,
        },
    ),
    "qwen3_next": ("Qwen3Next", {**DELTA, **EXPERTS, "mlp_only_layers": [1]}),
    "qwen3_next-every-second": (
        "Qwen3Next",
        {
            **DELTA, **EXPERTS, "norm_topk_prob": False, "decoder_sparse_step": 2, "linear_num_value_heads": 2,
            "layer_types": ["full_attention", "linear_attention"] * 2, "linear_conv_kernel_dim": 2,
        },
    ),
    "qwen3_5": ("Qwen3_5Text", {**DELTA, "tie_word_embeddings": True}),
    "qwen3_5_moe": ("Qwen3_5MoeText", {**DELTA, **EXPERTS}),
    "qwen4_exp": ("Qwen4ExpText", QWEN4),
    "qwen4_exp-two-tokens-sigmoid-tied": (
        "Qwen4ExpText",
        {
            **QWEN4, "output_gate_type": "sigmoid", "norm_topk_prob": False, "ngram_size": 2, "ple_layer_ids": [2],
            "ple_conv_kernel_size": 3, "hc_count": 2, "indexer_compress_ratio": 3, "tie_word_embeddings": True,
            "rope_parameters": None, "indexer_head_dim": 16,
            "eos_token_id": [7, 5], "layer_types": ["full_attention", "linear_attention"] * 2,
        },
    ),
}  # fmt: skip


def make(name: str):
    family, values = CASES[name]
    return make_model(family, values)


@pytest.mark.parametrize("name", CASES)
def test_matches_transformers(name, tmp_path):
    model = make(name)
    model.save_pretrained(tmp_path)
    assert_matches_oracle(load_directory(tmp_path), oracle_of(model))


def test_lfm2_in_the_hubs_naming(tmp_path):
    model = make("lfm2")
    model.save_pretrained(tmp_path)
    config = rewrite_config(
        tmp_path, layer_types=None, full_attn_idxs=[1], intermediate_size=None, block_ff_dim=48, rope_parameters=None,
        rope_theta=1_000_000.0, tie_word_embeddings=None,
    )  # fmt: skip
    assert_matches_oracle(load_directory(tmp_path, config), oracle_of(model))


def test_qwen4_in_the_hubs_naming(tmp_path):
    """Published configs call layers with an indexer full."""
    model = make("qwen4_exp")
    model.save_pretrained(tmp_path)
    assert sum(".shard_" in name for name in read_view(tmp_path).tensors) == 8
    types = ["linear_attention"] * 3 + ["full_attention"]
    config = rewrite_config(tmp_path, layer_types=types, number_of_conv_states=None)
    assert_matches_oracle(load_directory(tmp_path, config), oracle_of(model))
    for changes in ({"layer_types": None}, {"layer_types": None, "full_attention_interval": 4}):
        assert load_directory(tmp_path, config | changes).spec == load_directory(tmp_path, config).spec


def test_qwen3_next_by_its_interval(tmp_path):
    model = make("qwen3_next")
    model.save_pretrained(tmp_path)
    config = rewrite_config(
        tmp_path, layer_types=None, full_attention_interval=4, rope_parameters=None, rope_theta=10000.0,
        partial_rotary_factor=0.25,
    )  # fmt: skip
    assert_matches_oracle(load_directory(tmp_path, config), oracle_of(model))


@pytest.mark.parametrize("case", ["qwen3_5", "qwen3_5_moe", "qwen4_exp"])
def test_the_text_model_of_one_that_sees_pictures(case, tmp_path):
    family, text = CASES[case]
    family = family.removesuffix("Text")
    vision = {
        "depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 32, "patch_size": 4,
        "num_position_embeddings": 16,
    }  # fmt: skip
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        text_config=text, vision_config=vision, tie_word_embeddings=text.get("tie_word_embeddings", False)
    )
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    model.save_pretrained(tmp_path)
    view = read_view(tmp_path)
    assert any("visual" in name for name in view.tensors)
    assert_matches_oracle(load_directory(tmp_path), oracle_of(model))


@pytest.mark.parametrize("is_of_hub", [False, True], ids=["of transformers 5", "of the hub"])
def test_inkling_beside_pictures_and_sound(is_of_hub, tmp_path):
    text = make("inkling")
    config = transformers.InklingConfig(
        text_config=INKLING,
        vision_config={"patch_size": 4, "num_hidden_layers": 4, "num_channels": 1},
        audio_config={"n_mel_bins": 4, "mel_vocab_size": 8},
    )
    model = transformers.InklingForConditionalGeneration(config)
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    model.save_pretrained(tmp_path, save_original_format=is_of_hub)
    assert any(name.startswith("model.llm.") for name in read_view(tmp_path).tensors) == is_of_hub
    config = rewrite_config(tmp_path)
    if is_of_hub:
        config["text_config"] |= {
            "layer_types": None, "local_layer_ids": [0, 2], "mlp_layer_types": None, "dense_mlp_idx": 1,
            "intermediate_size": 24, "dense_intermediate_size": 48, "moe_intermediate_size": None,
            "conv_kernel_size": None, "sconv_kernel_size": 4,
        }  # fmt: skip
        config["mtp_config"] = {"num_nextn_predict_layers": 1, "chain_hidden_post_norm": True}
    assert_matches_oracle(load_directory(tmp_path, config), oracle_of(text))


def test_glm5_next_in_the_hubs_naming(tmp_path):
    model = make("glm5_next")
    model.save_pretrained(tmp_path, save_original_format=False)
    assert any(".forget_gate.A_log" in name for name in read_view(tmp_path).tensors)
    assert_matches_oracle(load_directory(tmp_path, rewrite_config(tmp_path)), oracle_of(model))
    model.save_pretrained(tmp_path, save_original_format=True)
    assert any(".self_attn.A_log" in name for name in read_view(tmp_path).tensors)
    config = rewrite_config(tmp_path)
    text = config["text_config"]
    linear = {"head_dim": 8, "num_heads": 3, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0, "safe_gate": True}
    text |= {"linear_attn_config": linear, "linear_head_dim": None, "linear_num_heads": None}
    text |= {"linear_conv_kernel_dim": None, "linear_lower_bound": None}
    text["layer_types"] = [kind.replace("indexed", "full") for kind in text["layer_types"]]
    assert_matches_oracle(load_directory(tmp_path, config), oracle_of(model))


@pytest.mark.parametrize("is_of_hub", [False, True], ids=["of transformers 5", "of the hub"])
def test_inkling2_beside_pictures(is_of_hub, tmp_path):
    text = make("inkling2")
    vision = {
        "text_hidden_size": SIZES["hidden_size"], "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "patch_size": 4, "posemb_grid_size": 2, "projection_hidden_dim": 16,
    }  # fmt: skip
    model = transformers.Inkling2ForConditionalGeneration(
        transformers.Inkling2Config(text_config=INKLING2, vision_config=vision)
    )
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    model.save_pretrained(tmp_path, save_original_format=is_of_hub)
    assert any(name.startswith("model.llm.") for name in read_view(tmp_path).tensors) == is_of_hub
    config = rewrite_config(tmp_path)
    assert_matches_oracle(load_directory(tmp_path, config), oracle_of(text))


def test_a_text_config_that_is_no_object_is_refused(tmp_path):
    make("qwen3_5").save_pretrained(tmp_path)
    config = rewrite_config(tmp_path, model_type="qwen3_5", text_config=[1])
    with pytest.raises(CorruptCheckpoint, match="text_config"):
        load_directory(tmp_path, {"model_type": "qwen3_5", "text_config": config["text_config"]})
