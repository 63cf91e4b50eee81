"""Families of attention decoders that differ from Llama in names and options, against transformers 5."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig, PretrainedConfig

from tests.inference.modelling.harness import assert_matches_oracle, load_directory, read_view
from tests.inference.modelling.huggingface import make_checkpoint, make_wrapped_checkpoint
from tests.inference.modelling.test_network_attention import BASE, GEMMA3

WINDOWS = {"sliding_window": 6, "num_hidden_layers": 4}
TYPES = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
MULTIPLIERS = {
    "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 2.5,
}  # fmt: skip
BIASED = {"attention_bias": True, "mlp_bias": True}
STRETCHED = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
ALPHA = {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0}
COMPASS_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0, "mrope_section": [2, 1, 1]},
    "full_attention": None,
}

TIED = {"tie_word_embeddings": True}
GPT = {"n_positions": 128, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_inner": 48}
JET = {"num_local_experts": 6, "num_experts_per_tok": 2, "tie_word_embeddings": True}
XGLM = {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4, "tie_word_embeddings": True}
MPT = {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128, "tie_word_embeddings": True}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "apertus": ("apertus", {}),
    "apertus-unscaled": ("apertus", {"rope_parameters": PLAIN}),
    "arcee": ("arcee", {"head_dim": 8}),
    "arcee-biases": ("arcee", {"head_dim": 8, **BIASED}),
    "cohere": ("cohere", {"tie_word_embeddings": True}),
    "cohere-qk-norm-biases-untied": ("cohere", {"use_qk_norm": True, "attention_bias": True}),
    "cohere2": ("cohere2", {**WINDOWS, "head_dim": 8, "layer_types": TYPES, "logit_scale": 0.3}),
    "cohere_compass_text": (
        "cohere_compass_text", {**WINDOWS, **TIED, "layer_types": TYPES, "rope_parameters": COMPASS_ROPES}
    ),
    "cohere_compass_text-two-rotations-scale-biases": (
        "cohere_compass_text",
        {
            **WINDOWS, "layer_types": TYPES, "logit_scale": 0.3, "attention_bias": True,
            "rope_parameters": {**COMPASS_ROPES, "full_attention": STRETCHED},
        },
    ),
    "diffllama": ("diffllama", {}),
    "diffllama-four-kv-heads-biases": ("diffllama", {"num_key_value_heads": 4, "head_dim": 16, "attention_bias": True}),
    "jetmoe": ("jetmoe", {"kv_channels": 8, **JET}),
    "jetmoe-three-of-six-untied": (
        "jetmoe",
        {"kv_channels": 12, **JET, "num_experts_per_tok": 3, "tie_word_embeddings": False, "rms_norm_eps": 1e-3},
    ),
    "xglm": ("xglm", XGLM),
    "xglm-unscaled-untied": ("xglm", {**XGLM, "scale_embedding": False, "tie_word_embeddings": False}),
    "bitnet": ("bitnet", {}),
    "bitnet-biases-tied-silu": ("bitnet", {"attention_bias": True, "hidden_act": "silu", **TIED}),
    "biogpt": ("biogpt", TIED),
    "biogpt-unscaled-untied-relu": ("biogpt", {"scale_embedding": False, "hidden_act": "relu"}),
    "openai-gpt": ("openai-gpt", {**GPT, **TIED, "n_inner": None}),
    "openai-gpt-relu-untied": ("openai-gpt", {**GPT, "n_inner": None, "afn": "relu", "layer_norm_epsilon": 1e-3}),
    "cwm": ("cwm", {**WINDOWS, "head_dim": 8, "layer_types": TYPES[::-1]}),
    "ernie4_5": ("ernie4_5", {"head_dim": 8}),
    "ernie4_5-biases-tied": ("ernie4_5", {"head_dim": 16, "use_bias": True, "tie_word_embeddings": True}),
    "exaone4": ("exaone4", {**WINDOWS, "layer_types": TYPES}),
    "exaone4-all-full": ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "gemma": ("gemma", {"head_dim": 16, "tie_word_embeddings": True}),
    "glm": ("glm", {"head_dim": 8, "attention_bias": True}),
    "glm4": ("glm4", {"head_dim": 8, "attention_bias": False, "rms_norm_eps": 1e-5}),
    "gpt2": (
        "gpt2",
        {**GPT, "num_hidden_layers": 2},
    ),
    "gptj": ("gptj", {**GPT, "rotary_dim": 4}),
    "codegen": ("codegen", {**GPT, "rotary_dim": 6}),
    "gpt_neo": ("gpt_neo", {**TIED, "attention_types": [[["local", "global"], 1]], "window_size": 6}),
    "gpt_bigcode": ("gpt_bigcode", {**GPT, **TIED}),
    "gpt_bigcode-head-by-head": ("gpt_bigcode", {**GPT, **TIED, "multi_query": False}),
    "gpt_neox": ("gpt_neox", {}),
    "gpt_neox-one-after-the-other": ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False}),
    "bloom": ("bloom", {**TIED, "n_layer": 2, "n_head": 4}),
    "falcon": ("falcon", TIED),
    "falcon-groups-two-norms": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon-groups-one-norm": (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 48},
    ),
    "falcon-alibi-one-after-the-other": (
        "falcon",
        {**TIED, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "mpt": ("mpt", MPT),
    "mpt-six-heads-clip-scale": (
        "mpt",
        {
            **MPT, "d_model": 48, "hidden_size": 48, "n_heads": 6, "num_attention_heads": 6,
            "attn_config": {"clip_qkv": 0.7, "softmax_scale": 0.3},
        },
    ),
    "opt": ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32, "tie_word_embeddings": True}),
    "persimmon": ("persimmon", {}),
    "persimmon-without-norms": ("persimmon", {"qk_layernorm": False}),
    "granite": ("granite", {**MULTIPLIERS, "rope_parameters": STRETCHED}),
    "granite-biases-tied": ("granite", {**BIASED, "tie_word_embeddings": True}),
    "helium": ("helium", {"head_dim": 8}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {"head_dim": 8}),
    "hunyuan_v1_dense-alpha": ("hunyuan_v1_dense", {"head_dim": 8, "rope_parameters": ALPHA}),
    "hyperclovax": ("hyperclovax", {**MULTIPLIERS, "head_dim": 8}),
    "hyperclovax-pre-norms": ("hyperclovax", {"head_dim": 8, "use_post_norm": False}),
    "jais2": ("jais2", {"head_dim": 8}),
    "ministral": ("ministral", {**WINDOWS, "head_dim": 8, "layer_types": TYPES}),
    "ministral3": (
        "ministral3",
        {"head_dim": 8, "rope_parameters": {**STRETCHED, "llama_4_scaling_beta": 0.3}},
    ),
    "nanochat": ("nanochat", {"final_logit_softcapping": 5.0}),
    "nanochat-uncapped": ("nanochat", {"final_logit_softcapping": None}),
    "nemotron": ("nemotron", {"head_dim": 8}),
    "nemotron-biases": ("nemotron", {"head_dim": 8, **BIASED}),
    "olmo": ("olmo", {"clip_qkv": 0.7}),
    "olmo2": ("olmo2", {}),
    "olmo3": (
        "olmo3",
        {**WINDOWS, "layer_types": TYPES, "rope_parameters": dict(zip(TYPES[:2], (PLAIN, STRETCHED), strict=True))},
    ),
    "phi": ("phi", {}),
    "phi-qk-norm": ("phi", {"qk_layernorm": True}),
    "seed_oss": ("seed_oss", {"head_dim": 8}),
    "seed_oss-other-biases": ("seed_oss", {"head_dim": 8, "attention_bias": False, "attention_out_bias": True}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0]}),
    "smollm3-windows": ("smollm3", {**WINDOWS, "use_sliding_window": True, "layer_types": TYPES}),
    "stablelm": ("stablelm", {"use_qkv_bias": True}),
    "stablelm-parallel-qk-norm": ("stablelm", {"qk_layernorm": True, "use_parallel_residual": True}),
    "starcoder2": ("starcoder2", {"sliding_window": 6}),
    "starcoder2-without-biases": ("starcoder2", {"use_bias": False}),
    "vaultgemma": (
        "vaultgemma",
        {
            **WINDOWS, "head_dim": 16, "query_pre_attn_scalar": 16, "layer_types": TYPES, "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
        },
    ),
}  # fmt: skip

LOCAL = {"num_local_experts": 6, "num_experts_per_tok": 2}
MSCALED = {
    "rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128,
    "short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [2.0, 3.0, 4.0, 6.0], "short_mscale": 1.2, "long_mscale": 1.2,
}  # fmt: skip
EXPERTS = {"num_experts": 6, **LOCAL}
GROUPED = {
    "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
    "first_k_dense_replace": 1, "num_hidden_layers": 3, "routed_scaling_factor": 1.7,
}  # fmt: skip
QWEN_EXPERTS = {**EXPERTS, "moe_intermediate_size": 20, "head_dim": 8}
DBRX = {
    "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}  # fmt: skip
MOE_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "afmoe": (
        "afmoe",
        {
            **QWEN_EXPERTS, **WINDOWS, "global_attn_every_n_layers": 2, "num_shared_experts": 2, "route_scale": 1.7,
            "mup_enabled": True, "num_dense_layers": 2,
        },
    ),
    "cohere2_moe": (
        "cohere2_moe",
        {
            **EXPERTS, **WINDOWS, "head_dim": 8, "num_shared_experts": 2, "first_k_dense_replace": 1,
            "prefix_dense_intermediate_size": 28, "sliding_window_pattern": 2, "logit_scale": 0.3,
        },
    ),
    "cohere2_moe-sigmoid-sum-rms": (
        "cohere2_moe",
        {
            **EXPERTS, **WINDOWS, "head_dim": 8, "num_shared_experts": 1, "layer_types": TYPES, "rms_norm_eps": 1e-5,
            "expert_selection_fn": "sigmoid", "shared_expert_combination_strategy": "sum", "norm_topk_prob": False,
        },
    ),
    "dbrx": (
        "dbrx",
        {
            **DBRX, "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.1, "rope_theta": 500.0},
            "ffn_config": {"ffn_hidden_size": 20, "moe_num_experts": 6, "moe_top_k": 2},
        },
    ),
    "dbrx-scores-as-they-are": (
        "dbrx",
        {
            **DBRX, "attn_config": {"kv_n_heads": 4, "clip_qkv": 0.4, "rope_theta": 500.0}, "ffn_config": {
                "ffn_hidden_size": 20, "moe_num_experts": 6, "moe_top_k": 2, "moe_normalize_expert_weights": None,
            },
        },
    ),
    "dots1": ("dots1", {**GROUPED, "n_shared_experts": 2, "sliding_window": 6, "layer_types": TYPES[:3]}),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {
            "moe_intermediate_size": 20, "moe_k": 2, "moe_num_experts": 6, "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1, "moe_layer_end_index": 2, "num_hidden_layers": 3,
        },
    ),
    "exaone_moe": (
        "exaone_moe",
        {
            **GROUPED, "num_experts": 8, "num_shared_experts": 1, "sliding_window": 6, "layer_types": TYPES[:3],
            "mlp_layer_types": ["dense", "sparse", "dense"], "head_dim": 8,
        },
    ),
    "flex_olmo": ("flex_olmo", EXPERTS),
    "glm4_moe": (
        "glm4_moe",
        {**GROUPED, "n_shared_experts": 1, "attention_bias": True, "use_qk_norm": True, "head_dim": 8},
    ),
    "glm4_moe-plain": ("glm4_moe", {**GROUPED, "n_shared_experts": 2, "norm_topk_prob": False}),
    "gpt_oss": (
        "gpt_oss",
        {
            **LOCAL, "head_dim": 8, "sliding_window": 6, "layer_types": TYPES[:2],
            "rope_parameters": {**STRETCHED, "truncate": False}, "swiglu_limit": 1.5, "swiglu_alpha": 1.3,
        },
    ),
    "flint": (
        "flint",
        {
            **QWEN_EXPERTS, **WINDOWS, "shared_expert_intermediate_size": 28, "mlp_only_layers": [0],
            "layer_types": TYPES,
        },
    ),
    "granite_swa": (
        "granite_swa",
        {**MULTIPLIERS, **WINDOWS, "layer_types": TYPES, "layer_rope_theta": [1e4, 0, 500.0, 1e4]},
    ),
    "granitemoe_swa": ("granitemoe_swa", {**MULTIPLIERS, **LOCAL, "sliding_window": 6, "shared_intermediate_size": 28}),
    "granitemoe": ("granitemoe", {**MULTIPLIERS, **LOCAL}),
    "granitemoeshared": ("granitemoeshared", {**MULTIPLIERS, **LOCAL, "shared_intermediate_size": 28}),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", {"num_experts": 6, "moe_topk": [2, 3], "head_dim": 8}),
    "hy_v3": (
        "hy_v3",
        {
            "num_experts": 6, "num_experts_per_tok": 2, "num_shared_experts": 2, "moe_intermediate_size": 20,
            "mlp_layer_types": ["dense", "sparse"], "head_dim": 8,
        },
    ),
    "iquestcoder": ("iquestcoder", {"head_dim": 8}),
    "kolibri1": (
        "kolibri1",
        {
            **QWEN_EXPERTS, **WINDOWS, "shared_expert_intermediate_size": 28, "layer_types": TYPES,
            "norm_topk_prob": True,
        },
    ),
    "laguna": (
        "laguna",
        {
            **QWEN_EXPERTS, **WINDOWS, "layer_types": TYPES, "num_attention_heads_per_layer": [4, 2, 6, 4],
            "shared_expert_intermediate_size": 28, "moe_routed_scaling_factor": 1.7,
            "rope_parameters": dict(zip(TYPES[:2], (PLAIN, {**STRETCHED, "partial_rotary_factor": 0.5}), strict=True)),
        },
    ),
    "laguna-gates-of-values": (
        "laguna",
        {
            **QWEN_EXPERTS, "gating": "per-element", "shared_expert_intermediate_size": 28,
            "mlp_layer_types": ["sparse"] * 2,
        },
    ),
    "mellum": (
        "mellum",
        {
            **QWEN_EXPERTS, **WINDOWS, "layer_types": TYPES, "mlp_layer_types": ["dense", "sparse"] * 2,
            "rope_parameters": dict(zip(TYPES[:2], (PLAIN, STRETCHED), strict=True)),
        },
    ),
    "minimax_m2": ("minimax_m2", {**EXPERTS, "head_dim": 8, "rotary_dim": 4}),
    "olmoe": ("olmoe", EXPERTS),
    "olmoe-normalised": ("olmoe", {**EXPERTS, "norm_topk_prob": True}),
    "phimoe": ("phimoe", {**LOCAL, "attention_bias": True, "lm_head_bias": True}),
    "phimoe-near-choices-longrope": ("phimoe", {**LOCAL, "router_jitter_noise": 0.4, "rope_parameters": MSCALED}),
    "solar_open": ("solar_open", {**GROUPED, "n_shared_experts": 1, "head_dim": 8}),
}  # fmt: skip
LATENT = {
    "q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
    "num_key_value_heads": 4,
}  # fmt: skip
GROWING = {**STRETCHED, "llama_4_scaling_beta": 0.3, "mscale": 1.0, "mscale_all_dim": 1.0}
MISTRAL4_CHANGED = {
    **GROUPED, **LATENT, "q_lora_rank": None, "rope_interleave": False, "attention_bias": True, "n_group": 4,
    "topk_group": 2, "norm_topk_prob": False, "n_shared_experts": 2,
    "rope_parameters": {**GROWING, "mscale": 0.7, "mscale_all_dim": 0.4},
}  # fmt: skip
ARIA = {"moe_num_experts": 6, "moe_topk": 2, "moe_num_shared_experts": 2, "intermediate_size": 20}
LATENT_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "glm4_moe_lite": (
        "glm4_moe_lite",
        {**GROUPED, **LATENT, "n_shared_experts": 2, "mlp_layer_types": ["dense", "sparse", "dense"]},
    ),
    "minicpm3": ("minicpm3", {**LATENT, "dim_model_base": 8, "scale_emb": 5, "scale_depth": 1.1}),
    "youtu": ("youtu", {**LATENT, "tie_word_embeddings": True}),
    "youtu-halves-biases": ("youtu", {**LATENT, "rope_interleave": False, "attention_bias": True}),
    "aria_text": ("aria_text", {**ARIA, "head_dim": 8}),
    "aria_text-three-of-six-biases-tied": (
        "aria_text",
        {**ARIA, **TIED, "moe_topk": 3, "moe_num_shared_experts": 1, "attention_bias": True, "head_dim": 16},
    ),
    "mistral4": ("mistral4", {**GROUPED, **LATENT, "n_shared_experts": 1, "rope_parameters": GROWING}),
    "mistral4-groups-halves-biases": ("mistral4", MISTRAL4_CHANGED),
    "internlm3": ("internlm3", {"head_dim": 8}),
    "internlm3-biases": ("internlm3", {"head_dim": 8, "attention_bias": True, "mlp_bias": True}),
}
CASES |= MOE_CASES | LATENT_CASES
VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16,
    "patch_size": 8,
}  # fmt: skip


def tiny_config(model_type: str, values: dict[str, Any]) -> PretrainedConfig:
    """The usual sizes, where the type has such keys, and its own."""
    blank = AutoConfig.for_model(model_type)
    blank.allow_global_per_layer_attribute_access = True
    usual = {key: value for key, value in BASE.items() if hasattr(blank, key)}
    return AutoConfig.for_model(model_type, **(usual | values))


@pytest.mark.parametrize("name", CASES)
def test_family_matches_transformers(name, tmp_path):
    model_type, values = CASES[name]
    directory, oracle = make_checkpoint(tiny_config(model_type, values), tmp_path / name)
    assert_matches_oracle(load_directory(directory), oracle)


@pytest.mark.parametrize("naming", ["of transformers 5", "of the hub"])
@pytest.mark.parametrize("family", ["gemma3"])
def test_the_text_model_of_one_that_sees_pictures(family, naming, tmp_path):
    text = BASE | ({**GEMMA3, "vocab_size": 99} if family == "gemma3" else {"head_dim": 8})
    config = AutoConfig.for_model(family, text_config=text, vision_config=VISION)
    oracle = make_wrapped_checkpoint(config, tmp_path, is_of_hub=naming == "of the hub")
    assert any("vision_tower" in name for name in read_view(tmp_path).tensors)
    assert_matches_oracle(load_directory(tmp_path), oracle)
