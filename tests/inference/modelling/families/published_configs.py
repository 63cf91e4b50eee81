"""Keys that config.json of published checkpoints have, and the values that matter for them.

These are not copies of the files: sizes are shared examples, and only the keys are tested.
"""

from __future__ import annotations

from typing import Any

from tests.inference.modelling.families.published_early_configs import EARLY
from tests.inference.modelling.families.published_later_configs import LATER

USUAL: dict[str, Any] = {
    "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
_MAMBA: dict[str, Any] = {
    "bos_token_id": 0, "conv_kernel": 4, "eos_token_id": 0, "expand": 2, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.1, "intermediate_size": 8192, "layer_norm_epsilon": 1e-05, "num_hidden_layers": 64,
    "pad_token_id": 0, "rescale_prenorm_residual": False, "residual_in_fp32": True, "tie_word_embeddings": False,
    "time_step_floor": 0.0001, "time_step_init_scheme": "random", "time_step_max": 0.1, "time_step_min": 0.001,
    "time_step_rank": 256, "time_step_scale": 1.0, "torch_dtype": "bfloat16", "transformers_version": "4.44.0.dev0",
    "use_bias": False, "use_cache": True, "use_conv_bias": True, "vocab_size": 32768,
}  # fmt: skip
_MAMBA_SSM: dict[str, Any] = {
    "d_model": 768, "fused_add_norm": True, "n_layer": 24, "residual_in_fp32": True, "rms_norm": True,
    "vocab_size": 50277,
}  # fmt: skip
_QWEN = USUAL | {"attention_dropout": 0.0, "max_window_layers": 28, "rope_theta": 1e6, "sliding_window": 32768,
                  "use_sliding_window": False}  # fmt: skip
DEEPSEEK = USUAL | {
    "attention_bias": False, "attention_dropout": 0.0, "auto_map": {"AutoConfig": "configuration_deepseek.x"},
    "aux_loss_alpha": 0.001, "ep_size": 1, "first_k_dense_replace": 1, "kv_lora_rank": 512, "q_lora_rank": None,
    "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
    "norm_topk_prob": False, "num_experts_per_tok": 6, "pretraining_tp": 1, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": True, "topk_group": 1,
    "topk_method": "greedy", "v_head_dim": 128, "rope_theta": 10000,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
}  # fmt: skip
_HYBRID = {
    "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_state": 128, "mamba_expand": 2,
    "mamba_proj_bias": False,
}  # fmt: skip
_LFM2 = {key: value for key, value in USUAL.items() if key not in ("rms_norm_eps", "hidden_act")} | {
    "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256, "conv_L_cache": 3, "conv_bias": False,
    "norm_eps": 1e-05, "block_norm_eps": 1e-05, "rope_theta": 1000000.0, "use_pos_enc": True, "pad_token_id": 0,
}  # fmt: skip
_DELTA = USUAL | {
    "attention_bias": False, "attention_dropout": 0.0, "full_attention_interval": 4, "head_dim": 256,
    "layer_types": ["linear_attention", "full_attention"], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
}  # fmt: skip
_KIMI = {key: value for key, value in USUAL.items() if key != "max_position_embeddings"} | {
    "kv_lora_rank": 512, "model_max_length": 1048576, "moe_intermediate_size": 1024, "moe_renormalize": True,
    "num_expert_group": 1, "num_experts": 256, "num_shared_experts": 1, "pad_token_id": 163839,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "routed_scaling_factor": 2.446, "topk_group": 1, "v_head_dim": 128,
}  # fmt: skip

_LAYER_NORM = {key: value for key, value in USUAL.items() if key != "rms_norm_eps"}
TYPES = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4096}
_GRANITE = USUAL | {
    "attention_bias": False, "attention_dropout": 0.1, "attention_multiplier": 0.0078125, "embedding_multiplier": 12.0,
    "logits_scaling": 16.0, "mlp_bias": False, "residual_multiplier": 0.22, "rope_scaling": None, "rope_theta": 1e7,
}  # fmt: skip
_GLM = USUAL | {
    "attention_bias": True, "attention_dropout": 0.0, "head_dim": 128, "pad_token_id": 151329,
    "partial_rotary_factor": 0.5, "rope_theta": 10000.0,
}  # fmt: skip
_OLMO = USUAL | {
    "attention_bias": False, "attention_dropout": 0.0, "pad_token_id": 1, "rope_scaling": None, "rope_theta": 500000,
}  # fmt: skip

_GROUPED = USUAL | {
    "attention_bias": False, "attention_dropout": 0.0, "first_k_dense_replace": 1, "head_dim": 128,
    "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_experts_per_tok": 8, "routed_scaling_factor": 1.0, "rope_scaling": None,
    "rope_theta": 1000000, "topk_group": 1, "pad_token_id": 151329,
}  # fmt: skip
_MOE_GRANITE = {key: value for key, value in _GRANITE.items() if key != "mlp_bias"} | {
    "num_experts_per_tok": 8, "num_local_experts": 32, "output_router_logits": False, "router_aux_loss_coef": 0.0,
}  # fmt: skip
_HUNYUAN = USUAL | {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "eod_token_id": 127967,
    "head_dim": 128,
    "rope_theta": 10000,
    "pad_token_id": 127961,
    "rope_scaling": {
        "alpha": 1000.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "type": "dynamic",
    },
    "use_qk_norm": True,
    "use_cla": False,
    "mlp_bias": False,
    "norm_type": "rms",
    "attention_head_dim": 128,
    "cla_share_factor": 2,
    "im_end_id": 6,
    "im_start_id": 5,
    "org_vocab_size": 120818,
    "sep_token_id": 127962,
    "text_end_id": 8,
    "text_start_id": 7,
    "add_classification_head": False,
    "class_num": 0,
    "pool_type": "last",
}

_LATENT = USUAL | {
    "attention_bias": False, "attention_dropout": 0.0, "kv_lora_rank": 256, "q_lora_rank": 768,
    "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
}  # fmt: skip

PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "meta-llama/Llama-2-7b-hf": ("llama", USUAL | {
        "_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"], "pretraining_tp": 1,
        "rope_scaling": None}),
    "meta-llama/Llama-3.1-8B": ("llama", USUAL | {
        "attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False, "pretraining_tp": 1,
        "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0}),
    "HuggingFaceTB/SmolLM2-135M": ("llama", USUAL | {
        "attention_bias": False, "attention_dropout": 0.0, "is_llama_config": True, "mlp_bias": False,
        "pretraining_tp": 1, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}}),
    "mistralai/Ministral-8B-Instruct-2410": ("mistral", USUAL | {
        "attention_dropout": 0.0, "head_dim": 128, "rope_theta": 1e8, "sliding_window": 32768}),
    "Qwen/Qwen2.5-7B-Instruct": ("qwen2", _QWEN),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": ("qwen2", _QWEN | {"use_mrope": False}),
    "Qwen/Qwen3-8B": ("qwen3", _QWEN | {
        "attention_bias": False, "head_dim": 128, "rope_scaling": None, "sliding_window": None}),
    "Qwen/Qwen1.5-MoE-A2.7B": ("qwen2_moe", _QWEN | {
        "decoder_sparse_step": 1, "moe_intermediate_size": 1408, "norm_topk_prob": False, "num_experts": 60,
        "num_experts_per_tok": 4, "output_router_logits": False, "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 5632, "qkv_bias": True, "mlp_only_layers": []}),
    "Qwen/Qwen3-30B-A3B": ("qwen3_moe", _QWEN | {
        "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128, "mlp_only_layers": [],
        "moe_intermediate_size": 768, "norm_topk_prob": True, "num_experts": 128, "num_experts_per_tok": 8,
        "output_router_logits": False, "rope_scaling": None, "router_aux_loss_coef": 0.001, "sliding_window": None}),
    "mistralai/Mixtral-8x7B-v0.1": ("mixtral", USUAL | {
        "attention_dropout": 0.0, "num_experts_per_tok": 2, "num_local_experts": 8, "output_router_logits": False,
        "rope_theta": 1e6, "router_aux_loss_coef": 0.02, "sliding_window": None}),
    "microsoft/Phi-4-mini-instruct": ("phi3", USUAL | {
        "attention_bias": False, "attention_dropout": 0.0, "auto_map": {"AutoTokenizer": "Xenova/gpt-4o"},
        "embd_pdrop": 0.0, "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False,
        "original_max_position_embeddings": 4096, "pad_token_id": 199999, "partial_rotary_factor": 0.75,
        "resid_pdrop": 0.0, "rope_theta": 10000.0, "sliding_window": 262144,
        "rope_scaling": {"long_factor": [1], "short_factor": [1], "type": "longrope"}}),
    "google/gemma-2-9b": ("gemma2", USUAL | {
        "attention_bias": False, "attention_dropout": 0.0, "attn_logit_softcapping": 50.0,
        "cache_implementation": "hybrid", "final_logit_softcapping": 30.0, "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "pad_token_id": 0,
        "query_pre_attn_scalar": 256, "rope_theta": 10000.0, "sliding_window": 4096, "sliding_window_size": 4096}),
    "google/gemma-3-1b-it": ("gemma3_text", USUAL | {
        "attention_bias": False, "attention_dropout": 0.0, "attn_logit_softcapping": None,
        "cache_implementation": "hybrid", "final_logit_softcapping": None, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "pad_token_id": 0, "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512,
        "sliding_window_pattern": 6}),
    "deepseek-ai/DeepSeek-V2-Lite": ("deepseek_v2", DEEPSEEK),
    "deepseek-ai/DeepSeek-V3": ("deepseek_v3", DEEPSEEK | {
        "n_group": 8, "norm_topk_prob": True, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
        "scoring_func": "sigmoid", "topk_group": 4, "topk_method": "noaux_tc"}),
    "state-spaces/mamba-130m-hf": ("mamba", _MAMBA | {
        "d_inner": 8192, "d_model": 4096, "fused_add_norm": True, "n_layer": 64, "pad_vocab_size_multiple": 8,
        "rms_norm": True, "ssm_cfg": {}, "state_size": 16}),
    "state-spaces/mamba-130m": ("mamba", _MAMBA_SSM | {"ssm_cfg": {}, "pad_vocab_size_multiple": 8}),
    "state-spaces/mamba2-130m": ("mamba2", _MAMBA_SSM | {
        "attn_cfg": {}, "attn_layer_idx": [], "d_intermediate": 0, "pad_vocab_size_multiple": 16,
        "ssm_cfg": {"layer": "Mamba2"}, "tie_embeddings": True}),
    "tiiuae/falcon-mamba-7b": ("falcon_mamba", _MAMBA | {"_name_or_path": "./", "expand": 16, "state_size": 16}),
    "mistralai/Mamba-Codestral-7B-v0.1": ("mamba2", _MAMBA | {
        "chunk_size": 256, "head_dim": 64, "n_groups": 8, "norm_before_gate": True, "num_heads": 128, "rms_norm": True,
        "state_size": 128, "time_step_limit": [0.0, float("inf")]}),
    "ibm-ai-platform/Bamba-9B": ("bamba", USUAL | _HYBRID | {
        "attention_bias": False, "attention_dropout": 0.0, "attn_layer_indices": [9, 18, 27], "attn_rotary_emb": 64,
        "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_n_heads": 128, "mlp_bias": False, "num_logits_to_keep": 1,
        "pad_token_id": 0, "rope_theta": 10000.0, "use_mamba_kernels": True}),
    "ibm-granite/granite-4.0-h-tiny": ("granitemoehybrid", USUAL | _HYBRID | {
        "attention_bias": False, "attention_dropout": 0.0, "attention_multiplier": 0.0078125,
        "embedding_multiplier": 12, "init_method": "mup", "layer_types": ["mamba", "attention"], "logits_scaling": 6,
        "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_n_heads": 48, "normalization_function": "rmsnorm",
        "num_experts_per_tok": 6, "num_local_experts": 64, "output_router_logits": False, "pad_token_id": 100256,
        "position_embedding_type": "nope", "residual_multiplier": 0.22, "rope_scaling": None, "rope_theta": 10000,
        "router_aux_loss_coef": 0.0, "shared_intermediate_size": 1024}),
    "nvidia/Nemotron-H-8B-Base-8K": ("nemotron_h", {key: value for key, value in USUAL.items() if key != "hidden_act"}
                                     | {
        "attention_bias": False, "attention_dropout": 0.0, "attention_head_dim": 128, "chunk_size": 128,
        "conv_kernel": 4, "expand": 2, "hidden_dropout": 0.0, "hybrid_override_pattern": "M-M*",
        "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 128,
        "mamba_proj_bias": False, "mlp_bias": False, "mlp_hidden_act": "relu2", "n_groups": 8, "num_logits_to_keep": 1,
        "num_query_groups": 8, "pad_token_id": 0, "rescale_prenorm_residual": True, "residual_in_fp32": False,
        "sliding_window": None, "ssm_state_size": 128, "time_step_floor": 0.0001,
        "time_step_limit": [0.0, float("inf")], "time_step_max": 0.1, "time_step_min": 0.001, "time_step_rank": 256,
        "use_bias": False, "use_conv_bias": True, "use_mamba_kernels": True}),
    "ai21labs/Jamba-v0.1": ("jamba", USUAL | {
        "attention_dropout": 0.0, "attn_layer_offset": 4, "attn_layer_period": 8,
        "calc_logits_for_entire_prompt": False, "expert_layer_offset": 1, "expert_layer_period": 2,
        "mamba_conv_bias": True, "mamba_d_conv": 4,
        "mamba_d_state": 16, "mamba_dt_rank": 256, "mamba_expand": 2, "mamba_inner_layernorms": True,
        "mamba_proj_bias": False, "n_ctx": 262144, "num_experts": 16, "num_experts_per_tok": 2,
        "output_router_logits": False, "pad_token_id": 0, "router_aux_loss_coef": 0.001, "sliding_window": None,
        "use_mamba_kernels": True}),
    "tiiuae/Falcon-H1-0.5B-Base": ("falcon_h1", USUAL | _HYBRID | {
        "attention_bias": False, "attention_dropout": 0.0, "attention_in_multiplier": 1.0,
        "attention_out_multiplier": 0.9375, "attn_layer_indices": None, "embedding_multiplier": 5.656854249492381,
        "expansion_factor": None, "head_dim": 64, "key_multiplier": 0.390625, "lm_head_multiplier": 0.0390625,
        "mamba_d_head": 64, "mamba_d_ssm": 1536, "mamba_n_groups": 1, "mamba_n_heads": 24,
        "mamba_norm_before_gate": False, "mamba_rms_norm": False, "mamba_use_mlp": True, "mlp_bias": False,
        "mlp_expansion_factor": 8, "mlp_multipliers": [0.8838834764831844, 0.5859375], "num_logits_to_keep": 1,
        "pad_token_id": 0, "projectors_bias": False, "rope_scaling": None, "rope_theta": 100000000000.0,
        "ssm_in_multiplier": 1.25, "ssm_multipliers": [0.35355, 0.25, 0.35355, 0.5, 0.35355],
        "ssm_out_multiplier": 0.23570226039551587}),
    "allenai/Olmo-Hybrid-7B": ("olmo_hybrid", {**_DELTA, "rope_theta": None, "rope_parameters": None}  | {
        "full_attention_interval": None, "head_dim": None, "linear_allow_neg_eigval": True, "linear_a_log_max": 16.0,
        "linear_a_log_min": 0.0, "linear_dt_init_floor": 0.0001, "linear_dt_max": 0.1, "linear_dt_min": 0.001,
        "pad_token_id": 100277}),
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": ("kimi_linear", _KIMI | {
        "auto_map": {"AutoConfig": "configuration_kimi.KimiLinearConfig"}, "first_k_dense_replace": 1, "head_dim": 72,
        "linear_attn_config": {"full_attn_layers": [4, 8], "head_dim": 128, "kda_layers": [1, 2, 3],
                               "num_heads": 32, "short_conv_kernel_size": 4},
        "mla_use_nope": True, "moe_layer_freq": 1, "moe_router_activation_func": "sigmoid", "q_lora_rank": None,
        "num_experts_per_token": 8, "num_nextn_predict_layers": 0, "rope_scaling": None, "rope_theta": 10000.0,
        "use_grouped_topk": True}),
    "inclusionAI/Ling-3.0-Flash": ("bailing_hybrid", _KIMI | {
        "first_k_dense_replace": 2, "head_dim": 128, "kda_lower_bound": -5.0, "kda_safe_gate": True,
        "layer_group_size": 6, "num_experts_per_tok": 8, "num_nextn_predict_layers": 1, "rope_theta": 6000000,
        "short_conv_kernel_size": 4}),
    "MiniMaxAI/MiniMax-Text-01-hf": ("minimax", USUAL | {
        "attention_dropout": 0.0, "block_size": 256, "full_attn_alpha_factor": 3.5565588200778455,
        "full_attn_beta_factor": 1.0, "head_dim": 128, "layer_types": ["linear_attention", "full_attention"],
        "linear_attn_alpha_factor": 3.5565588200778455, "linear_attn_beta_factor": 1.0,
        "mlp_alpha_factor": 3.5565588200778455, "mlp_beta_factor": 1.0, "num_experts_per_tok": 2,
        "num_local_experts": 32, "output_router_logits": False, "postnorm": True, "rope_theta": 10000000,
        "rotary_dim": 64, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "shared_intermediate_size": 0,
        "shared_moe_mode": "sigmoid", "sliding_window": None}),
    "RWKV/rwkv-4-169m-pile": ("rwkv", {
        "architectures": ["RwkvForCausalLM"], "attention_hidden_size": 768, "bos_token_id": 0, "context_length": 1024,
        "eos_token_id": 0, "hidden_size": 768, "intermediate_size": 3072, "layer_norm_epsilon": 1e-05,
        "model_type": "rwkv", "num_hidden_layers": 12, "rescale_every": 6, "tie_word_embeddings": False,
        "transformers_version": "4.28.0.dev0", "torch_dtype": "float32", "use_cache": True, "vocab_size": 50277}),
    "Zyphra/Zamba-7B-v1": ("zamba", {key: value for key, value in USUAL.items() if key != "tie_word_embeddings"} | {
        "attention_dropout": 0.0, "attention_head_dim": 464, "attention_hidden_size": 7424, "attn_layer_offset": 4,
        "attn_layer_period": 6, "hidden_mamba_act": "silu", "layers_block_type": ["mamba", "mamba", "hybrid"],
        "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_dt_rank": 232, "mamba_expand": 2,
        "mamba_proj_bias": False, "n_mamba_heads": 2, "num_logits_to_keep": 1, "pad_token_id": 0,
        "time_step_floor": 0.0001, "time_step_max": 0.1, "time_step_min": 0.001, "use_mamba_kernels": True}),
    "Zyphra/Zamba2-1.2B": ("zamba2", {key: value for key, value in USUAL.items() if key != "tie_word_embeddings"} | {
        "add_bias_linear": False, "adapter_rank": 128, "attention_dropout": 0.0, "attention_head_dim": 128,
        "attention_hidden_size": 4096, "chunk_size": 256, "hybrid_layer_ids": [5, 11], "kv_channels": 64,
        "layers_block_type": ["mamba", "hybrid"], "mamba_d_conv": 4, "mamba_d_state": 128, "mamba_expand": 2,
        "mamba_headdim": 64, "mamba_ngroups": 1, "n_mamba_heads": 64, "num_logits_to_keep": 1, "num_mem_blocks": 1,
        "num_query_groups": 32, "pad_token_id": 0, "rope_theta": 10000, "time_step_floor": 0.0001,
        "time_step_max": 0.1, "time_step_min": 0.001, "use_conv_bias": True, "use_long_context": False,
        "use_mamba_kernels": True, "use_mem_eff_path": False, "use_mem_rope": True,
        "use_shared_attention_adapter": True, "use_shared_mlp_adapter": True}),
    "google/recurrentgemma-2b": ("recurrent_gemma", {
        key: value for key, value in USUAL.items() if key not in ("hidden_act", "max_position_embeddings")} | {
        "attention_bias": False, "attention_dropout": 0.0, "attention_window_size": 2048,
        "block_types": ["recurrent", "recurrent", "attention"], "conv1d_width": 4, "head_dim": 256,
        "embeddings_scale_by_sqrt_dim": True, "final_w_init_variance_scale": 0.07692307692307693,
        "hidden_activation": "gelu_pytorch_tanh", "logits_soft_cap": 30.0, "lru_width": 2560, "pad_token_id": 0,
        "partial_rotary_factor": 0.5, "rope_theta": 10000.0, "w_init_variance_scale": 0.01}),
    "NX-AI/xLSTM-7b": ("xlstm", {
        "add_out_norm": True, "architectures": ["xLSTMForCausalLM"], "autocast_kernel_dtype": "bfloat16",
        "bos_token_id": 0, "chunk_size": 64, "chunkwise_kernel": "chunkwise--triton_xl_chunk", "embedding_dim": 4096,
        "eos_token_id": 2, "eps": 1e-06, "ffn_proj_factor": 2.667, "ffn_round_up_to_multiple_of": 64,
        "force_bos_token_insert": True, "gate_soft_cap": 15.0, "head_dim": 512, "hidden_size": 4096,
        "inference_state_dtype": "float32", "max_inference_chunksize": 16384, "mode": "inference", "norm_eps": 1e-06,
        "norm_reduction_force_float32": True, "num_blocks": 32, "num_heads": 8, "num_hidden_layers": 32,
        "output_logit_soft_cap": 30.0, "pad_token_id": 1, "qk_dim_factor": 0.5, "return_last_states": True,
        "sequence_kernel": "native_sequence__triton", "step_kernel": "triton", "tie_word_embeddings": False,
        "torch_dtype": "float32", "use_bias": False, "use_cache": True, "v_dim_factor": 1.0, "vocab_size": 50304,
        "weight_mode": "single"}),
    "LiquidAI/LFM2-1.2B": ("lfm2", _LFM2 | {
        "block_auto_adjust_ff_dim": True, "block_ff_dim": 12288, "full_attn_idxs": [2, 5], "num_heads": 32,
        "block_dim": 2048, "block_mlp_init_scale": 1.0, "block_out_init_scale": 1.0, "block_use_swiglu": True,
        "block_use_xavier_init": True, "conv_dim": 2048, "conv_dim_out": 2048, "conv_use_xavier_init": True}),
    "LiquidAI/LFM2-8B-A1B": ("lfm2_moe", _LFM2 | {
        "moe_intermediate_size": 1792, "norm_topk_prob": True, "num_dense_layers": 2, "num_experts": 32,
        "num_experts_per_tok": 4, "routed_scaling_factor": 1.0, "use_expert_bias": True,
        "layer_types": ["conv", "full_attention"]}),
    "Zyphra/ZAYA1-8B": ("zaya", {key: value for key, value in USUAL.items() if key != "intermediate_size"} | {
        "attention_bias": False, "attention_dropout": 0.0, "cca_time0": 2, "cca_time1": 2, "head_dim": 128,
        "layer_types": ["hybrid", "hybrid"], "lm_head_bias": False, "moe_intermediate_size": 2048, "num_experts": 16,
        "num_experts_per_tok": 1, "output_router_logits": False, "pad_token_id": 0, "rope_parameters": {
            "hybrid": {"partial_rotary_factor": 0.5, "rope_theta": 5000000.0, "rope_type": "default"},
            "hybrid_sliding": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default"},
            "rope_type": "default"},
        "router_hidden_size": 256, "sliding_window": None}),
    "thinkingmachines/Inkling, its text_config": ("inkling_text", {
        **{key: value for key, value in USUAL.items() if key not in ("max_position_embeddings", "tie_word_embeddings")},
        "d_rel": 16, "dense_intermediate_size": 24576, "dense_mlp_idx": 3, "head_dim": 128, "local_layer_ids": [0, 1],
        "log_scaling_alpha": 0.1, "log_scaling_n_floor": 131072, "logits_mup_width_multiplier": 24.0,
        "model_max_length": 1048576, "n_routed_experts": 256, "n_shared_experts": 2, "num_experts_per_tok": 6,
        "rel_extent": 1024, "rms_norm_eps_moe_gate": 1e-06, "route_scale": 8.0, "sconv_kernel_size": 4,
        "shared_expert_sink": True, "sliding_window_size": 512, "swa_head_dim": 128, "swa_num_attention_heads": 64,
        "swa_num_key_value_heads": 16, "unpadded_vocab_size": 200058}),
    "thinkingmachines/Inkling-2-Small-MXFP8, its text_config": ("inkling2_text", {
        "d_rel": 16, "final_logit_softcapping": 30.0, "head_dim": 128, "log_scaling_n_floor": 128000,
        "mlp_gate_softcap": 4.0, "mlp_up_softcap": 25.0, "model_max_length": 1048576, "n_routed_experts": 384,
        "n_layers_per_attn_res_block": 6, "qk_l2_clip_threshold": 22.627416997969522, "rel_l2_clip_threshold": 8.0,
        "route_scale": 8.0, "scoring_func": "sigmoid", "sconv_kernel_size": 4, "sliding_window_size": 1024,
        "swa_head_dim": 128, "swa_num_attention_heads": 48, "unpadded_vocab_size": 200058}),
    "LiquidAI/LFM3-1.7B": ("lfm3", {
        **{key: value for key, value in USUAL.items() if key not in ("rms_norm_eps", "hidden_act")},
        "attention_bias": False, "attention_dropout": 0.0, "conv_L_cache": 7, "conv_bias": False, "head_dim": 128,
        "layer_types": ["conv", "full_attention", "sliding_attention"], "norm_eps": 1e-05, "pad_token_id": 124893,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.5, "rope_theta": 1000000.0, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
        "sliding_window": 256, "use_attention_gate": True, "use_sandwich_norm": True}),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": ("qwen3_next", _DELTA | {
        "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 512, "norm_topk_prob": True,
        "num_experts": 512, "num_experts_per_tok": 10, "output_router_logits": False, "partial_rotary_factor": 0.25,
        "rope_scaling": None, "rope_theta": 10000000, "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 512, "use_sliding_window": False}),
    "Qwen/Qwen4-Exp, its text_config": ("qwen4_exp_text", {
        **{key: value for key, value in _DELTA.items() if key != "intermediate_size"},
        "attn_output_gate": True, "hc_count": 4, "hc_lowrank": 320, "heads_per_ngram": 8, "indexer_budget": 2048,
        "indexer_compress_ratio": 16, "indexer_head_dim": 128, "indexer_kv_heads": 1, "indexer_n_heads": 16,
        "make_ngram_vocab_size_divisible_by": 128, "mamba_ssm_dtype": "float32", "moe_intermediate_size": 512,
        "ngram_size": 3, "ngram_vocab_size_base": 20000000, "norm_topk_prob": True, "num_experts": 512,
        "num_experts_per_tok": 10, "output_gate_type": "sigmoid", "ple_conv_kernel_size": 4, "ple_embed_dim": 2048,
        "ple_layer_ids": [2], "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"},
        "router_aux_loss_coef": 0.001, "seed": 1234, "shared_expert_intermediate_size": 512,
        "split_ngram_parts": 512}),
    "Qwen/Qwen3.5-0.8B, its text_config": ("qwen3_5_text", _DELTA | {
        "attn_output_gate": True, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "rope_type": "default",
                            "rope_theta": 10000000, "partial_rotary_factor": 0.25}}),
    "Qwen/Qwen3.5-35B-A3B, its text_config": ("qwen3_5_moe_text", _DELTA | {
        "moe_intermediate_size": 512, "num_experts": 256, "num_experts_per_tok": 8, "output_router_logits": False,
        "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512}),
    "arcee-ai/AFM-4.5B": ("arcee", USUAL | {
        "attention_bias": False, "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "relu2", "mlp_bias": False,
        "rope_scaling": {"factor": 20.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "rope_type": "yarn",
                         "original_max_position_embeddings": 4096}, "rope_theta": 10000.0}),
    "CohereLabs/c4ai-command-r-v01": ("cohere", _LAYER_NORM | {
        "attention_bias": False, "attention_dropout": 0.0, "layer_norm_eps": 1e-05, "logit_scale": 0.0625,
        "pad_token_id": 0, "rope_theta": 8000000.0, "use_qk_norm": False}),
    "CohereLabs/c4ai-command-r7b-12-2024": ("cohere2", _LAYER_NORM | {
        "attention_bias": False, "attention_dropout": 0.0, "head_dim": 128, "layer_norm_eps": 1e-05,
        "logit_scale": 0.25, "pad_token_id": 0, "rope_theta": 50000, "sliding_window": 4096,
        "sliding_window_pattern": 4, "_sliding_window_pattern": 4, "cache_implementation": "hybrid"}),
    "facebook/cwm": ("cwm", USUAL | TYPES | {
        "attention_dropout": 0.0, "head_dim": 128, "mlp_bias": False, "pretraining_tp": 1, "rope_theta": 1000000.0,
        "rope_scaling": {"factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"}}),
    "baidu/ERNIE-4.5-0.3B-PT": ("ernie4_5", USUAL | {
        "head_dim": 128, "pad_token_id": 0, "rope_theta": 500000.0, "use_bias": False}),
    "LGAI-EXAONE/EXAONE-4.0-32B": ("exaone4", USUAL | TYPES | {
        "attention_dropout": 0.0, "head_dim": 128, "pad_token_id": 0, "rope_theta": 1000000,
        "rope_scaling": {"factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "sliding_window_pattern": "LLLG"}),
    "google/gemma-2b": ("gemma", USUAL | {
        "attention_bias": False, "attention_dropout": 0.0, "head_dim": 256, "hidden_act": "gelu",
        "hidden_activation": None, "pad_token_id": 0, "rope_scaling": None, "rope_theta": 10000.0}),
    "THUDM/glm-4-9b-chat-hf": ("glm", _GLM),
    "THUDM/GLM-4-9B-0414": ("glm4", _GLM),
    "ibm-granite/granite-3.3-2b-instruct": ("granite", _GRANITE),
    "kyutai/helium-1-2b": ("helium", USUAL | {
        "attention_bias": False, "attention_dropout": 0.0, "head_dim": 128, "mlp_bias": False, "rope_theta": 100000.0,
        "pad_token_id": 3}),
    "tencent/Hunyuan-1.8B-Instruct": ("hunyuan_v1_dense", _HUNYUAN),
    "naver-hyperclovax/HyperCLOVAX-SEED-Think-14B": ("hyperclovax", _GRANITE | {
        "head_dim": 128, "use_post_norm": True, "auto_map": {"AutoConfig": "x"}}),
    "inceptionai/Jais-2-8B-Chat": ("jais2", _LAYER_NORM | {
        "attention_bias": True, "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "relu2", "mlp_bias": True,
        "layer_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 500000.0}),
    "mistralai/Ministral-3b-instruct": ("ministral", USUAL | TYPES | {
        "attention_dropout": 0.0, "head_dim": 128, "rope_theta": 100000000.0}),
    "nvidia/Minitron-4B-Base": ("nemotron", _LAYER_NORM | {
        "attention_bias": False, "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "relu2", "mlp_bias": False,
        "norm_eps": 1e-05, "partial_rotary_factor": 0.5, "rope_scaling": None, "rope_theta": 10000}),
    "allenai/OLMo-1B-hf": ("olmo", _LAYER_NORM | {
        "attention_bias": False, "attention_dropout": 0.0, "clip_qkv": None, "pad_token_id": 1, "rope_scaling": None,
        "rope_theta": 10000.0}),
    "allenai/OLMo-2-1124-7B": ("olmo2", _OLMO),
    "allenai/Olmo-3-1025-7B": ("olmo3", _OLMO | TYPES | {
        "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1, "factor": 8.0,
                         "original_max_position_embeddings": 8192, "rope_type": "yarn"}}),
    "microsoft/phi-2": ("phi", _LAYER_NORM | {
        "attention_dropout": 0.0, "embd_pdrop": 0.0, "hidden_act": "gelu_new", "layer_norm_eps": 1e-05,
        "partial_rotary_factor": 0.4, "qk_layernorm": False, "resid_pdrop": 0.1, "rope_scaling": None,
        "rope_theta": 10000.0}),
    "ByteDance-Seed/Seed-OSS-36B-Instruct": ("seed_oss", USUAL | {
        "attention_bias": True, "attention_dropout": 0.1, "attention_out_bias": False, "head_dim": 128,
        "mlp_bias": False, "pad_token_id": 1, "residual_dropout": 0.1, "rope_scaling": {"rope_type": "default"},
        "rope_theta": 10000000.0}),
    "HuggingFaceTB/SmolLM3-3B": ("smollm3", _QWEN | {
        "attention_bias": False, "layer_types": ["full_attention"], "mlp_bias": False, "no_rope_layer_interval": 4,
        "no_rope_layers": [1, 1, 1, 0], "pretraining_tp": 2, "rope_scaling": None, "sliding_window": None,
        "use_sliding_window": False, "_flash_attn_2_enabled": True}),
    "stabilityai/stablelm-2-1_6b": ("stablelm", _LAYER_NORM | {
        "layer_norm_eps": 1e-05, "partial_rotary_factor": 0.25, "qk_layernorm": False, "rope_scaling": None,
        "rope_theta": 10000, "use_parallel_residual": False, "use_qkv_bias": True, "hidden_dropout": 0.0}),
    "bigcode/starcoder2-3b": ("starcoder2", _LAYER_NORM | {
        "activation_function": "gelu_pytorch_tanh", "attention_dropout": 0.1, "attention_softmax_in_fp32": True,
        "embedding_dropout": 0.1, "hidden_act": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-05, "mlp_type": "default",
        "norm_epsilon": 1e-05, "norm_type": "layer_norm", "residual_dropout": 0.1, "rope_theta": 999999.4420358813,
        "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True, "sliding_window": 4096, "use_bias": True,
        "initializer_range": 0.018042, "vocab_size": 49152}),
    "google/vaultgemma-1b": ("vaultgemma", USUAL | TYPES | {
        "attention_bias": False, "attention_dropout": 0.0, "attn_logit_softcapping": None,
        "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "pad_token_id": 0, "query_pre_attn_scalar": 256, "rope_theta": 10000.0}),
    "rednote-hilab/dots.llm1.inst": ("dots1", _GROUPED | {
        "sliding_window": None, "use_sliding_window": False, "max_window_layers": 62, "rope_theta": 10000000,
        "scoring_func": "noaux_tc", "topk_method": "noaux_tc", "moe_layer_freq": 1, "use_qk_norm": True,
        "pretraining_tp": 1, "ep_size": 1}),
    "baidu/ERNIE-4.5-21B-A3B-PT": ("ernie4_5_moe", USUAL | {
        "moe_intermediate_size": 1536, "moe_k": 6, "moe_layer_end_index": 27, "moe_layer_interval": 1,
        "moe_layer_start_index": 1, "moe_num_experts": 64, "moe_num_shared_experts": 2, "moe_norm_min": 1e-12,
        "moe_capacity": [64, 64, 64], "moe_gate": "topk", "moe_use_aux_free": True, "num_nextn_predict_layers": 1,
        "pad_token_id": 0, "rope_theta": 500000, "rope_scaling": None, "use_bias": False, "use_rmsnorm": True}),
    "LGAI-EXAONE/K-EXAONE-236B-A23B": ("exaone_moe", _GROUPED | TYPES | {
        "mlp_layer_types": ["dense", "sparse"], "num_experts": 128, "num_shared_experts": 1, "rope_theta": 1000000,
        "sliding_window_pattern": "LLLG", "num_nextn_predict_layers": 1, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "n_routed_experts": None, "n_shared_experts": None, "attention_bias": None}),
    "allenai/FlexOlmo-7x7B-1T": ("flex_olmo", _OLMO | {
        "norm_topk_prob": False, "num_experts": 7, "num_experts_per_tok": 5}),
    "zai-org/GLM-4.5-Air": ("glm4_moe", _GROUPED | {
        "attention_bias": True, "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5, "use_qk_norm": False}),
    "ibm-granite/granite-3.1-1b-a400m-instruct": ("granitemoe", _MOE_GRANITE),
    "ibm-research/moe-7b-1b-active-shared-experts": ("granitemoeshared", _MOE_GRANITE | {
        "shared_intermediate_size": 1024}),
    "tencent/Hunyuan-A13B-Instruct": ("hunyuan_v1_moe", _HUNYUAN | {
        "moe_topk": [8], "num_experts": 64, "moe_drop_tokens": False, "moe_intermediate_size": [3072],
        "moe_layer_num_skipped": 0, "moe_random_routing_dropped_token": False, "num_shared_expert": [1],
        "use_mixed_mlp_moe": True, "norm_topk_prob": True, "routed_scaling_factor": 1.0, "group_limited_greedy": False,
        "n_group": None, "topk_group": None, "use_mla": False, "kv_lora_rank": None, "q_lora_rank": None,
        "qk_nope_head_dim": None, "qk_rope_head_dim": None, "v_head_dim": None}),
    "MiniMaxAI/MiniMax-M2": ("minimax_m2", USUAL | {
        "attn_type_list": [1, 1], "attention_dropout": 0.0, "head_dim": 128, "mtp_transformer_layers": 1,
        "num_experts_per_tok": 8, "num_local_experts": 256, "num_mtp_modules": 3, "qk_norm_type": "per_layer",
        "rope_theta": 5000000, "rotary_dim": 64, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0,
        "scoring_func": "sigmoid", "shared_intermediate_size": 0, "use_mtp": True, "use_qk_norm": True,
        "use_routing_bias": True, "layernorm_full_attention_beta": 1.0, "layernorm_linear_attention_beta": 1.0,
        "layernorm_mlp_beta": 1.0, "output_router_logits": False}),
    "allenai/OLMoE-1B-7B-0924": ("olmoe", _OLMO | {
        "clip_qkv": None, "norm_topk_prob": False, "num_experts": 64, "num_experts_per_tok": 8,
        "router_aux_loss_coef": 0.01, "output_router_logits": False}),
    "upstage/Solar-Open-100B": ("solar_open", _GROUPED | {
        "partial_rotary_factor": 1.0, "rope_scaling": {
            "factor": 2.0, "original_max_position_embeddings": 65536, "rope_type": "yarn"}, "use_qk_norm": False}),
    "openbmb/MiniCPM3-4B": ("minicpm3", _LATENT | {
        "auto_map": {"AutoConfig": "x"}, "dim_model_base": 256, "scale_depth": 1.4, "scale_emb": 12,
        "rope_scaling": {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0],
                         "original_max_position_embeddings": 32768}}),
    "tencent/Youtu-LLM-2B": ("youtu", _LATENT | {
        "rope_interleave": True, "rope_theta": 1600000, "mlp_bias": False, "qk_head_dim": 192, "head_dim": 64,
        "rope_scaling": None, "embedding_initializer_range": 0.02}),
    "internlm/internlm3-8b-instruct": ("internlm3", USUAL | {
        "attention_dropout": 0.0, "bias": False, "head_dim": 128, "qkv_bias": False, "pad_token_id": 2,
        "auto_map": {"AutoConfig": "x"}, "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"},
        "rope_theta": 50000000}),
    "openai/gpt-oss-20b": ("gpt_oss", USUAL | {
        "attention_bias": True, "attention_dropout": 0.0, "experts_per_token": 4, "head_dim": 64,
        "initial_context_length": 4096, "layer_types": ["sliding_attention", "full_attention"],
        "num_experts_per_tok": 4, "num_local_experts": 32, "output_router_logits": False, "pad_token_id": 199999,
        "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn",
                         "original_max_position_embeddings": 4096, "truncate": False}, "rope_theta": 150000,
        "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0}),
    "zai-org/GLM-4.7-Flash": ("glm4_moe_lite", DEEPSEEK | {
        "topk_method": "noaux_tc", "scoring_func": None, "num_nextn_predict_layers": 1, "partial_rotary_factor": 1.0,
        "rope_scaling": None, "seq_aux": None, "pad_token_id": 154820, "norm_topk_prob": True}),
    "ibm-granite/granite-swa": ("granite_swa", _GRANITE | TYPES | {"layer_rope_theta": [10000.0, 0.0]}),
    "ibm-granite/granitemoe-swa": ("granitemoe_swa", _MOE_GRANITE | TYPES | {
        "layer_rope_theta": [10000.0, 0.0], "shared_intermediate_size": 0}),
    "mistralai/Ministral-3-3B-Instruct-2512": ("ministral3", USUAL | {
        "attention_dropout": 0.0, "head_dim": 128, "sliding_window": None, "rope_parameters": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": 1000000.0,
            "rope_type": "yarn", "type": "yarn"}}),
    "tencent/Hy3-preview": ("hy_v3", USUAL | {
        "attention_bias": False, "enable_moe_fp32_combine": True, "head_dim": 128, "mlp_bias": False,
        "mlp_layer_types": ["dense", "sparse"], "moe_intermediate_size": 1536, "num_experts": 192,
        "num_experts_per_tok": 8, "num_nextn_predict_layers": 1, "num_shared_experts": 1,
        "rope_parameters": {"rope_theta": 11158840.0, "rope_type": "default"}, "router_scaling_factor": 2.826}),
    "IQuestLab/IQuest-Coder-V1-40B-Instruct": ("iquestcoder", USUAL | {
        "attention_bias": False, "attention_dropout": 0.0, "head_dim": 128, "mlp_bias": False, "rope_scaling": None,
        "rope_theta": 500000.0, "auto_map": {"AutoConfig": "x"}}),
    **EARLY,
    **LATER,
}  # fmt: skip
"""Repository whose keys these are, to ``model_type`` and config."""
