"""Keys that config.json of the larger published checkpoints have; as in ``published_configs``."""

from __future__ import annotations

from typing import Any

from tests.inference.modelling.families.published_configs import DEEPSEEK, TYPES, USUAL

_GEMMA4 = {key: value for key, value in USUAL.items() if key != "hidden_act"} | {
    "attention_bias": False, "attention_dropout": 0.0, "attention_k_eq_v": False, "dtype": "bfloat16",
    "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", **TYPES, "num_global_key_value_heads": None,
    "num_kv_shared_layers": 20, "pad_token_id": 0, "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
    "use_bidirectional_attention": None, "use_double_wide_mlp": True,
}  # fmt: skip

PUBLISHED_LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "google/gemma-4-E2B-it": ("gemma4_text", _GEMMA4 | {
        "enable_moe_block": False, "hidden_size_per_layer_input": 256, "moe_intermediate_size": None,
        "num_experts": None, "top_k_experts": None, "vocab_size_per_layer_input": 262144}),
    "meta-llama/Llama-4-Scout-17B-16E": ("llama4_text", USUAL | {
        "_attn_implementation_autoset": True, "attention_bias": False, "attention_chunk_size": 8192,
        "attention_dropout": 0.0, "attn_scale": 0.1, "attn_temperature_tuning": True, "floor_scale": 8192,
        "head_dim": 128, "interleave_moe_layer_step": 1, "intermediate_size_mlp": 16384, "no_rope_layers": [],
        "num_experts_per_tok": 1, "num_local_experts": 16, "output_router_logits": False, "pad_token_id": 200018,
        "rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "use_qk_norm": True}),
    "deepseek-ai/DeepSeek-V3.2": ("deepseek_v32", DEEPSEEK | {
        "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048, "n_group": 8, "norm_topk_prob": True,
        "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "scoring_func": "sigmoid", "topk_group": 4,
        "topk_method": "noaux_tc"}),
    "stepfun-ai/Step-3.5-Flash": ("step3p5", {
        "architectures": ["Step3p5ForCausalLM"], "att_impl_type": "GQA", "attention_other_setting": {
            "attention_type": "sliding_attention", "head_dim": 128, "num_attention_groups": 8,
            "num_attention_heads": 96, "true_head_dim": 128},
        "auto_map": {"AutoConfig": "configuration_step3p5.Step3p5Config"}, "bos_token_id": 0, "eos_token_id": [1, 2],
        "head_dim": 128, "hidden_size": 4096, "intermediate_size": 11264,
        "layer_types": ["full_attention", "sliding_attention"], "max_position_embeddings": 262144,
        "max_seq_len": 262144, "model_type": "step3p5", "moe_every_n_layer": 1, "moe_intermediate_size": 1280,
        "moe_layer_offset": 0, "moe_layers_enum": "3,4", "moe_num_experts": 288, "moe_router_activation": "sigmoid",
        "moe_router_scaling_factor": 3.0, "moe_top_k": 8, "need_fp32_gate": True, "norm_expert_weight": True,
        "num_attention_groups": 8, "num_attention_heads": 64, "num_hidden_layers": 45, "num_nextn_predict_layers": 3,
        "partial_rotary_factors": [0.5, 1.0], "rms_norm_eps": 1e-05, "rope_scaling": {
            "factor": 2.0, "high_freq_factor": 32.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 131072, "rope_type": "llama3"},
        "rope_theta": [5000000.0, 10000.0], "share_expert_dim": 1280, "sink": False, "sliding_window": 512,
        "swiglu_limits": [0.0, 7.0], "swiglu_limits_shared": [0.0, 16.0], "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "use_head_wise_attn_gate": True, "use_mfa": False, "use_moe": True,
        "use_moe_router_bias": True, "use_qk_norm": True, "use_rope_layers": [], "vocab_size": 128896,
        "yarn_only_types": ["full_attention"], "zero_centered": True}),
    "allenai/Molmo2-8B, its text_config": ("molmo2_text", {
        "additional_vocab_size": 128, "attention_dropout": 0.0, "dtype": "bfloat16", "embedding_dropout": 0.0,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 12288, "layer_norm_eps": 1e-06, "max_position_embeddings": 36864,
        "model_type": "molmo2_text", "norm_after": False, "num_attention_heads": 32, "num_hidden_layers": 36,
        "num_key_value_heads": 8, "qk_norm_type": "qwen3", "qkv_bias": False, "residual_dropout": 0.0,
        "rope_scaling": None, "rope_scaling_layers": None, "rope_theta": 1000000.0, "use_cache": True,
        "use_qk_norm": True, "vocab_size": 151936}),
    "meta-models/Muse-Glimmer-30B, its text_config": ("muse_glimmer_text", {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 200000, "dtype": "bfloat16",
        "eos_token_id": 200001, "final_logit_softcapping": 20.0, "head_dim": 128, "hidden_activation": "silu",
        "hidden_size": 6656, "initializer_range": 0.02, "intermediate_size": 19968,
        "layer_rope_theta": [500000.0, 0], "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 131072, "model_type": "muse_glimmer_text", "num_attention_heads": 32,
        "num_hidden_layers": 52, "num_key_value_heads": 2, "output_multiplier": 0.19611613513818404,
        "pad_token_id": None, "post_norm_eps": 1e-08, "qk_scale_factor": 3.87, "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}, "sliding_window": 2048,
        "tie_word_embeddings": False, "use_cache": True, "vocab_size": 202048}),
    "meta-models/Muse-Spark-Open-816B-A42B, its text_config": ("muse_spark_text", {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 200000, "dtype": "bfloat16",
        "eos_token_id": 200001, "final_logit_softcapping": 20.0, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 8192, "initializer_range": 0.02, "intermediate_size": 16384,
        "layer_rope_theta": [500000.0, 0], "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 1048576, "mlp_layer_types": ["sparse", "sparse"],
        "model_type": "muse_spark_text", "moe_hidden_size": 4096, "moe_intermediate_size": 4096,
        "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 62, "num_key_value_heads": 16,
        "num_local_experts": 256, "output_multiplier": 0.1767766952966369, "output_router_logits": False,
        "pad_token_id": None, "post_norm_eps": 1e-08, "qk_scale_factor": 5.4730064863875,
        "residual_gate_temperature": 0.3, "rms_norm_eps": 1e-05, "routed_scaling_factor": 1.0,
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}, "sliding_window": 2048,
        "tie_word_embeddings": False, "use_cache": True, "vocab_size": 202048}),
    "kajuma/DiffLlama-0.3B-handcut": ("diffllama", USUAL | {
        "attention_bias": False, "attention_dropout": 0.0, "lambda_std_dev": 0.1, "mlp_bias": False,
        "rope_scaling": None, "rope_theta": 10000.0}),
    "jetmoe/jetmoe-8b": ("jetmoe", {key: value for key, value in USUAL.items() if key != "hidden_act"} | {
        "activation_function": "silu", "aux_loss_coef": 0.01, "glu": True, "kv_channels": 128, "num_local_experts": 8,
        "num_experts_per_tok": 2, "num_layers": 24, "output_router_logits": False, "rope_theta": 10000.0}),
    "facebook/xglm-564M": ("xglm", {
        "activation_dropout": 0, "activation_function": "gelu", "attention_dropout": 0.1, "attention_heads": 16,
        "bos_token_id": 0, "d_model": 1024, "decoder_start_token_id": 2, "dropout": 0.1, "eos_token_id": 2,
        "ffn_dim": 4096, "init_std": 0.02, "layerdrop": 0.0, "max_position_embeddings": 2048, "num_layers": 24,
        "pad_token_id": 1, "scale_embedding": True, "transformers_version": "4.16.0.dev0", "use_cache": True,
        "vocab_size": 256008}),
    "microsoft/bitnet-b1.58-2B-4T": ("bitnet", USUAL | {
        "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "relu2", "rope_scaling": None,
        "rope_theta": 500000.0, "auto_map": {"AutoConfig": "configuration_bitnet.BitNetConfig"},
        "quantization_config": {
            "quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}}),
    "microsoft/biogpt": ("biogpt", {
        "activation_dropout": 0.0, "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "eos_token_id": 2,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 1024, "initializer_range": 0.02,
        "intermediate_size": 4096, "layer_norm_eps": 1e-12, "layerdrop": 0.0, "max_position_embeddings": 1024,
        "num_attention_heads": 16, "num_hidden_layers": 24, "pad_token_id": 1, "scale_embedding": True,
        "torch_dtype": "float32", "use_cache": True, "vocab_size": 42384}),
    "openai-community/openai-gpt": ("openai-gpt", {
        "afn": "gelu", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
        "n_ctx": 512, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 512, "n_special": 0,
        "predict_special_tokens": True, "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True, "vocab_size": 40478,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}}),
    "skt/A.X-K1": ("axk1", DEEPSEEK | {
        "head_dim": 64, "n_group": 8, "n_routed_experts": 192, "norm_topk_prob": True, "num_local_experts": 192,
        "q_lora_rank": 1536, "qk_head_dim": 192, "rope_interleave": True, "scoring_func": "sigmoid", "topk_group": 4,
        "topk_method": "noaux_tc"}),
    "skt/A.X-K2": ("axk2", DEEPSEEK | {
        "gated_norm_rank": 16, "index_head_dim": 128, "index_n_heads": 16, "index_topk": 2048,
        "layer_types": ["indexed_attention"], "mlp_layer_types": ["dense", "sparse"], "n_group": None,
        "norm_topk_prob": True, "q_lora_rank": 384, "scoring_func": "sigmoid", "topk_group": None,
        "topk_method": "noaux_tc"}),
    "deepseek-ai/DeepSeek-V4-Flash-Base": ("deepseek_v4", {
        key: value for key, value in USUAL.items() if key != "intermediate_size"} | {
        "attention_bias": False, "attention_dropout": 0.0, "compress_ratios": [128, 128, 4, 128, 4, 0],
        "compress_rope_theta": 160000, "expert_dtype": "fp8", "hc_eps": 1e-06, "hc_mult": 4, "hc_sinkhorn_iters": 20,
        "head_dim": 512, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 512, "moe_intermediate_size": 2048,
        "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True, "num_experts_per_tok": 6,
        "num_hash_layers": 3, "num_key_value_heads": 1, "num_nextn_predict_layers": 1, "o_groups": 8,
        "o_lora_rank": 1024, "q_lora_rank": 1024, "qk_rope_head_dim": 64, "quantization_config": {
            "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128]},
        "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 65536,
            "type": "yarn"},
        "rope_theta": 10000, "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "sliding_window": 128,
        "swiglu_limit": 10.0, "topk_method": "noaux_tc"}),
    "tencent/Hy4-preview": ("hy_v4", {
        key: value for key, value in DEEPSEEK.items()
        if key not in ("moe_layer_freq", "first_k_dense_replace", "scoring_func", "topk_method")} | {
        "hc_eps": 1e-06, "hc_magnitude": 2.0, "hc_mult": 4, "head_dim": 64, "index_head_dim": 128, "index_n_heads": 16,
        "index_topk": 2048, "indexer_types": ["full", "shared"], "learnable_sink_init": 0.0,
        "mlp_layer_types": ["dense", "sparse"], "norm_topk_prob": True, "q_lora_rank": 1536, "qk_head_dim": 256,
        "swiglu_limit": 10.0}),
    "dots-studio/dots3-note-prev, its text": ("dots3_note_text", {
        key: value for key, value in DEEPSEEK.items() if key not in ("scoring_func", "topk_method")} | {
        "head_dim": 256, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048, **TYPES, "mlp_bias": False,
        "moe_layer_freq": [0, 1], "moe_shared_expert_intermediate_size": 1536, "norm_topk_prob": True,
        "num_nextn_predict_layers": 1, "output_router_logits": False, "q_lora_rank": 1024, "rope_scaling": None,
        "rope_theta": 80000000.0, "sliding_window_size": 512, "swa_head_dim": 256, "swa_kv_lora_rank": 1024,
        "swa_num_attention_heads": 64, "swa_num_key_value_heads": 64, "swa_q_lora_rank": 1024,
        "swa_qk_nope_head_dim": 192, "swa_rope_theta": 50000.0, "swa_v_head_dim": 128, "use_dsa": True,
        "use_sliding_window": True}),
    "mistralai/Mistral-Large-4-1T-A52B, its text_config": ("mistral_large4_text", {
        key: value for key, value in DEEPSEEK.items()
        if key not in ("moe_layer_freq", "scoring_func", "topk_method", "q_lora_rank", "norm_topk_prob")} | {
        "final_logit_softcapping": 30.0, "head_dim": 64, "index_head_dim": 128, "index_n_heads": 32,
        "index_topk": 2048, "indexer_types": ["full", "shared"], "kv_source_layers": [0, 1],
        "layer_types": ["indexed_attention"], "mlp_layer_types": ["dense", "sparse"], "n_group": 1,
        "no_rope_layers": [1, 1, 1, 0], "output_router_logits": False, "qk_head_dim": 128, "topk_group": 1}),
    "zai-org/GLM-5": ("glm_moe_dsa", DEEPSEEK | {
        "head_dim": 64, "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048, "indexer_rope_interleave": True,
        "norm_topk_prob": True, "num_nextn_predict_layers": 1, "q_lora_rank": 2048, "qk_head_dim": 256,
        "rope_interleave": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}),
    "XiaomiMiMo/MiMo-V2-Flash": ("mimo_v2_flash", USUAL | {
        "attention_bias": False, "attention_dropout": 0.0, "attention_value_scale": 0.707, "head_dim": 192, **TYPES,
        "mlp_layer_types": ["dense", "sparse"], "moe_intermediate_size": 2048, "n_group": 1, "n_routed_experts": 256,
        "norm_topk_prob": True, "num_experts_per_tok": 8, "routed_scaling_factor": None, "topk_group": 1,
        "v_head_dim": 128, "sliding_window_size": 128}),
    "meituan-longcat/LongCat-Flash-Chat": ("longcat_flash", {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "expert_ffn_hidden_size": 2048, "ffn_hidden_size": 12288, "hidden_size": 6144, "kv_lora_rank": 512,
        "max_position_embeddings": 131072, "moe_topk": 12, "n_routed_experts": 512, "num_attention_heads": 64,
        "num_layers": 28, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
        "rope_theta": 10000000.0, "routed_scaling_factor": 6.0, "router_bias": False, "v_head_dim": 128,
        "vocab_size": 131072, "zero_expert_num": 256}),
    "MiniMaxAI/MiniMax-M3": ("minimax_m3_vl_text", USUAL | {
        "hidden_act": "swigluoai", "dense_intermediate_size": 12288, "head_dim": 128, "num_experts_per_tok": 4,
        "num_local_experts": 128, "partial_rotary_factor": 0.5, "rope_theta": 5000000, "rotary_dim": 64,
        "routed_scaling_factor": 2.0, "shared_intermediate_size": 3072, "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
        "sparse_attention_config": {
            "sparse_num_index_heads": 4, "sparse_index_dim": 128, "sparse_block_size": 128, "sparse_topk_blocks": 16,
            "sparse_local_block": 1, "sparse_attention_freq": [0, 1]}}),
    "google/gemma-3n-E4B": ("gemma3n_text", {key: value for key, value in USUAL.items() if key != "hidden_act"} | {
        "activation_sparsity_pattern": [0.95, 0.0], "altup_active_idx": 0, "altup_coef_clip": 120.0,
        "altup_correct_scale": True, "altup_num_inputs": 4, "attention_bias": False,
        "attention_dropout": 0.0, "final_logit_softcapping": 30.0, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 256, "intermediate_size": [16384] * 2,
        "laurel_rank": 64, **TYPES, "num_kv_shared_layers": 15, "rope_local_base_freq": 10000.0,
        "rope_scaling": None, "rope_theta": 1000000.0, "vocab_size_per_layer_input": 262144}),
    "google/gemma-4-unified": ("gemma4_unified_text", _GEMMA4 | {"use_bidirectional_attention": "vision"}),
    # The keys of these three are those that transformers writes for them; their files weren't seen.
    "rhymes-ai/Aria, its text_config": ("aria_text", USUAL | {
        "attention_bias": False, "attention_dropout": 0.0, "head_dim": 128, "mlp_bias": False, "moe_num_experts": 64,
        "moe_num_shared_experts": 2, "moe_topk": 6, "pretraining_tp": 1, "rope_theta": 5000000}),
    "CohereLabs/North-Micro-Vision-Instruct, its text_config": ("cohere_compass_text", {
        **{key: value for key, value in USUAL.items() if key != "rms_norm_eps"}, "attention_bias": False,
        "attention_dropout": 0.0, "head_dim": 128, "layer_norm_eps": 1e-05, **TYPES, "logit_scale": 0.25,
        "pooling": None, "rope_parameters": {
            "full_attention": None, "rope_theta": 50000.0, "rope_type": "default", "sliding_attention": {
                "mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_theta": 50000.0,
                "rope_type": "default"}}}),
    "mistralai/Mistral-Small-4-119B-2603": ("mistral4", USUAL | {
        "attention_bias": False, "attention_dropout": 0.0, "kv_lora_rank": 256, "q_lora_rank": 1024,
        "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "first_k_dense_replace": 0, "head_dim": 128, "moe_intermediate_size": 2048, "n_group": 1,
        "n_routed_experts": 128, "n_shared_experts": 1, "norm_topk_prob": True, "num_experts_per_tok": 4,
        "qk_head_dim": 128, "rope_interleave": True, "routed_scaling_factor": 1.0, "topk_group": 1,
        "rope_parameters": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 128.0, "llama_4_scaling_beta": 0.1,
            "max_position_embeddings": 1048576, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 8192, "partial_rotary_factor": 0.5, "rope_theta": 10000.0,
            "rope_type": "yarn", "type": "yarn"}}),
}  # fmt: skip
