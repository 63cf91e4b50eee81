"""As ``published_configs.py``, of families that were added later: keys of config.json, and the values that matter."""

from __future__ import annotations

from typing import Any

_USUAL: dict[str, Any] = {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 4096,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
    "vocab_size": 32000,
}  # fmt: skip
_EXPERTS = _USUAL | {
    "head_dim": 128, "moe_intermediate_size": 1024, "num_experts": 128, "num_experts_per_tok": 8,
    "output_router_logits": False, "router_aux_loss_coef": 0.001,
}  # fmt: skip
LATER: dict[str, tuple[str, dict[str, Any]]] = {
    "swiss-ai/Apertus-8B-Instruct-2509": ("apertus", _USUAL | {
        "hidden_act": "xielu", "hidden_dropout": 0.0, "mlp_bias": False, "pad_token_id": 3, "post_norm": False,
        "qk_norm": True, "rope_scaling": {
            "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3", "type": "llama3"}}),
    "nanochat-students/nanochat-d20": ("nanochat", _USUAL | {
        "final_logit_softcapping": 15.0, "hidden_act": "relu2", "rms_norm_eps": 1e-06}),
    "microsoft/Phi-3.5-MoE-instruct": ("phimoe", _USUAL | {
        "attention_bias": True, "auto_map": {"AutoConfig": "x"}, "hidden_dropout": 0.0, "input_jitter_noise": 0.01,
        "lm_head_bias": True, "num_experts_per_tok": 2, "num_local_experts": 16,
        "original_max_position_embeddings": 4096, "output_router_logits": False, "rope_scaling": {
            "long_factor": [1.0], "long_mscale": 1.243163121016122, "original_max_position_embeddings": 4096,
            "short_factor": [1.0], "short_mscale": 1.243163121016122, "type": "longrope"},
        "router_aux_loss_coef": 0.0, "router_jitter_noise": 0.01, "sliding_window": 131072}),
    "arcee-ai/Trinity-Mini": ("afmoe", _EXPERTS | {
        "auto_map": {"AutoConfig": "x"}, "global_attn_every_n_layers": 4, "layer_types": ["sliding_attention"],
        "load_balance_coeff": 0.001, "mup_enabled": True, "n_group": 1, "num_dense_layers": 2, "num_expert_groups": 1,
        "num_limited_groups": 1, "num_shared_experts": 1, "rope_scaling": None, "route_norm": True,
        "route_scale": 2.826, "score_func": "sigmoid", "sliding_window": 2048, "topk_group": 1,
        "use_grouped_mm": True}),
    "CohereLabs/command-a-plus-05-2026": ("cohere2_moe", {
        key: value for key, value in _EXPERTS.items() if key not in ("rms_norm_eps", "moe_intermediate_size")} | {
        "expert_selection_fn": "softmax", "first_k_dense_replace": 1, "layer_norm_eps": 1e-05, "logit_scale": 0.0625,
        "norm_topk_prob": True, "num_shared_experts": 1, "prefix_dense_intermediate_size": 22528,
        "prefix_dense_sliding_window_pattern": 1, "shared_expert_combination_strategy": "average",
        "sliding_window": 4096, "sliding_window_pattern": 4}),
    "poolside/laguna-XS.2": ("laguna", _EXPERTS | {
        "gating": "per-head", "layer_types": ["full_attention", "sliding_attention"],
        "mlp_layer_types": ["dense", "sparse"], "moe_apply_router_weight_on_input": False,
        "moe_routed_scaling_factor": 2.5, "moe_router_logit_softcapping": 0.0,
        "num_attention_heads_per_layer": [48, 64], "rope_theta": None, "shared_expert_intermediate_size": 512,
        "sliding_window": 512, "rope_parameters": {
            "full_attention": {"rope_theta": 500000.0, "rope_type": "default", "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 1.0}}}),
    "databricks/dbrx-instruct": ("dbrx", {
        "architectures": ["DbrxForCausalLM"], "auto_map": {"AutoConfig": "x"}, "d_model": 6144, "emb_pdrop": 0.0,
        "initializer_range": 0.02, "max_seq_len": 32768, "model_type": "dbrx", "n_heads": 48, "n_layers": 40,
        "output_router_logits": False, "resid_pdrop": 0.0, "router_aux_loss_coef": 0.05,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 100352,
        "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "model_type": "", "rope_theta": 500000},
        "ffn_config": {
            "ffn_hidden_size": 10752, "model_type": "", "moe_jitter_eps": 0.01, "moe_loss_weight": 0.05,
            "moe_num_experts": 16, "moe_top_k": 4}}),
    "RecursiveSI/flint": ("flint", _EXPERTS | {
        "layer_types": ["full_attention", "sliding_attention"], "mlp_only_layers": [0, 1], "norm_topk_prob": True,
        "shared_expert_intermediate_size": 1024, "sliding_window": 513, "decoder_sparse_step": 1}),
    "Aleph-Alpha/Kolibri-1": ("kolibri1", {key: value for key, value in _EXPERTS.items() if key != "attention_bias"} | {
        "layer_types": ["full_attention", "sliding_attention"], "norm_topk_prob": True,
        "shared_expert_intermediate_size": 512, "sliding_window": 513}),
    "JetBrains/Mellum2-12B-A2.5B-Base": ("mellum", _EXPERTS | {
        "layer_types": ["full_attention", "sliding_attention"], "mlp_layer_types": ["sparse", "sparse"],
        "norm_topk_prob": True, "num_mtp_layers": 1, "rope_theta": None, "sliding_window": 1024, "rope_parameters": {
            "full_attention": {"rope_theta": 500000.0, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}}),
    "zai-org/GLM-5.3-Flash, its text_config": ("glm5_next_text", {
        "hidden_act": "silu", "hidden_size": 4096, "index_head_dim": 128, "index_kpool": 16, "index_n_heads": 32,
        "index_kpool_always_select_tail": True, "index_topk": 2048, "index_topk_freq": 1, "index_skip_topk_offset": 2,
        "intermediate_size": 12288, "kv_lora_rank": 512, "layer_types": ["linear_attention", "full_attention"],
        "linear_attn_config": {
            "gate_lower_bound": -5.0, "head_dim": 128, "num_heads": 64, "safe_gate": True, "short_conv_kernel_size": 4},
        "mlp_layer_types": ["dense", "sparse"], "moe_intermediate_size": 2048, "n_group": 1, "n_routed_experts": 288,
        "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 64, "num_experts_per_tok": 8,
        "num_hidden_layers": 45, "num_key_value_heads": 64, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
        "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "rms_norm_eps": 1e-05, "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid", "swiglu_limit": 10.0, "hc_eps": 1e-06, "hc_mult": 4, "hc_sinkhorn_iters": 20,
        "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 256, "vocab_size": 154880}),
}  # fmt: skip
"""Repository whose keys these are, to ``model_type`` and config."""
