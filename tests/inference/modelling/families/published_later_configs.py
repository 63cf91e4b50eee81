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
}  # fmt: skip
"""Repository whose keys these are, to ``model_type`` and config."""
