"""Keys that config.json of published checkpoints have and that were refused once; as in ``published_configs``."""

from __future__ import annotations

from typing import Any

from tests.inference.modelling.families.published_configs import PUBLISHED, USUAL
from tests.inference.modelling.families.published_large import PUBLISHED_LARGE


def _like(name: str, **keys: Any) -> tuple[str, dict[str, Any]]:
    """Those of a checkpoint that is listed already, with others."""
    model_type, config = (PUBLISHED | PUBLISHED_LARGE)[name]
    return model_type, config | keys


_QWEN35: dict[str, Any] = {
    "partial_rotary_factor": 0.25, "attn_output_gate": True, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False, "pad_token_id": None, "rope_parameters": {
        "mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
        "rope_theta": 10000000, "rope_type": "default"},
}  # fmt: skip

ONCE_REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": _like("Qwen/Qwen3-8B", rope_scaling={
        "attn_factor": 0.8782488562869419, "factor": 4.0, "original_max_position_embeddings": 32768,
        "rope_type": "yarn"}),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": _like(
        "Qwen/Qwen3-30B-A3B", qkv_bias=False, use_qk_norm=True, shared_expert_intermediate_size=0),
    "Qwen/Qwen3.5-27B, its text_config": _like("Qwen/Qwen3.5-0.8B, its text_config", **_QWEN35, mlp_only_layers=[]),
    "Qwen/Qwen3.6-27B, its text_config": _like(
        "Qwen/Qwen3.5-0.8B, its text_config", **_QWEN35, output_gate_type="swish"),
    "Qwen/Qwen3.8-Flash-Next, its text_config": _like("Qwen/Qwen4-Exp, its text_config", mtp_num_hidden_layers=1, mtp={
        "hybrid": True, "layer_types": ["full_attention"], "mtp_use_hidden_state_from_layer": None,
        "num_hidden_layers": 1, "rope_theta": 10000000}, mtp_use_dedicated_embeddings=False, bos_token_id=248044,
        eos_token_id=248044, output_router_logits=False, partial_rotary_factor=0.25),
    "moonshotai/Kimi-K2-Instruct": ("kimi_k2", PUBLISHED["deepseek-ai/DeepSeek-V3"][1] | {
        "num_nextn_predict_layers": 0, "n_group": 1, "topk_group": 1, "rope_theta": 50000.0, "rope_scaling": {
            "beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn"}}),
    "XiaomiMiMo/MiMo-7B-RL": ("mimo", {
        **USUAL, "architectures": ["MiMoForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
        "hidden_act": "silu", "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1, "rope_theta": 640000, "use_sliding_window": False}),
    "CohereLabs/c4ai-command-r-plus": _like("CohereLabs/c4ai-command-r-v01", model_max_length=131072, use_qk_norm=True),
    "CohereLabs/c4ai-command-r7b-12-2024, whole": _like(
        "CohereLabs/c4ai-command-r7b-12-2024", layer_switch=4, order_of_interleaved_layers="local_attn_first",
        position_embedding_type="rope_gptj", rotary_pct=1.0, rope_scaling=None, use_embedding_sharing=True,
        use_gated_activation=True, use_parallel_block=True, use_parallel_embedding=True, use_qk_norm=False),
    "stabilityai/stablelm-2-12b": _like(
        "stabilityai/stablelm-2-1_6b", use_norm_bias=False, rotary_scaling_factor=1.0, qk_layernorm=True,
        use_parallel_residual=True, use_qkv_bias=False, attention_dropout=0.0),
    "microsoft/Phi-mini-MoE-instruct": _like("microsoft/Phi-3.5-MoE-instruct", expert_dropout=0.0, rope_scaling=None),
    "LGAI-EXAONE/K-EXAONE-236B-A23B, early": _like(
        "LGAI-EXAONE/K-EXAONE-236B-A23B", first_last_k_dense_replace=1, is_moe_layer=[False, True],
        first_k_dense_replace=None, mlp_layer_types=None),
    "zai-org/GLM-5.2": _like(
        "zai-org/GLM-5", index_share_for_mtp_iteration=True, index_skip_topk_offset=3, index_topk_freq=4,
        index_topk_pattern=None, indexer_types=["full", "shared"], layer_types=["deepseek_sparse_attention"],
        mlp_layer_types=["dense", "sparse"], moe_router_dtype="float32"),
    "XiaomiMiMo/MiMo-V2-Flash, whole": ("mimo_v2_flash", {
        key: value for key, value in USUAL.items() if key != "rms_norm_eps"} | {
        "add_full_attention_sink_bias": False, "add_swa_attention_sink_bias": True, "attention_bias": False,
        "attention_chunk_size": 128, "attention_dropout": 0.0, "attention_value_scale": 0.707, "head_dim": 192,
        "hybrid_layer_pattern": [0, 1], "layernorm_epsilon": 1e-05, "moe_intermediate_size": 2048,
        "moe_layer_freq": [0, 1], "n_group": 1, "n_routed_experts": 256, "n_shared_experts": None,
        "norm_topk_prob": True, "num_experts_per_tok": 8, "partial_rotary_factor": 0.334, "rope_theta": 5000000,
        "routed_scaling_factor": None, "scoring_func": "sigmoid", "sliding_window": 128, "sliding_window_size": 128,
        "swa_head_dim": 192, "swa_num_attention_heads": 64, "swa_num_key_value_heads": 8, "swa_rope_theta": 10000,
        "swa_v_head_dim": 128, "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 128}),
    "mosaicml/mpt-7b, saved by its later code": _like(
        "mosaicml/mpt-7b", fc_type="torch", ffn_config={"ffn_type": "mptmlp"}),
    "openai-community/gpt2-medium": _like("openai-community/gpt2", n_special=0, predict_special_tokens=True),
    "openai-community/gpt2-xl": _like("openai-community/gpt2", output_past=True),
    "EleutherAI/gpt-neox-20b": _like(
        "EleutherAI/pythia-1b", attention_probs_dropout_prob=0, hidden_dropout_prob=0, hidden_act="gelu_fast",
        pad_token_id=None),
    "hf-internal-testing/tiny-random-GPTNeoXForCausalLM": _like(
        "EleutherAI/pythia-1b", attention_probs_dropout_prob=0.1, classifier_dropout=0.1, is_decoder=True,
        partial_rotary_factor=0.25, type_vocab_size=16),
    "databricks/dolly-v2-3b": _like("EleutherAI/pythia-1b", custom_pipelines={
        "text-generation": {"impl": "instruct_pipeline.InstructionTextGenerationPipeline", "pt": "x", "tf": "x"}}),
}  # fmt: skip
"""Repository whose keys these are, to ``model_type`` and config."""

ONCE_REFUSED_AROUND: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen/Qwen3.6-27B": ("qwen3_5", {
        "image_token_id": 248056, "language_model_only": False, "tie_word_embeddings": False,
        "video_token_id": 248057, "vision_end_token_id": 248054, "vision_start_token_id": 248053,
        "text_config": ONCE_REFUSED["Qwen/Qwen3.6-27B, its text_config"][1], "vision_config": {}}),
    "moonshotai/Kimi-K2.5": ("kimi_k25", {
        "architectures": ["KimiK25ForConditionalGeneration"], "bos_token_id": 163584, "eos_token_id": 163585,
        "pad_token_id": 163839, "ignore_index": -100, "media_placeholder_token_id": 163605,
        "tie_word_embeddings": False, "use_unified_vision_chunk": True,
        "video_placeholder": "<|kimi_k25_video_placeholder|>", "vision_config": {"vt_hidden_size": 1152},
        "text_config": ONCE_REFUSED["moonshotai/Kimi-K2-Instruct"][1] | {
            "model_type": "deepseek_v3", "ep_size": 1, "pretraining_tp": 1, "seq_aux": True, "aux_loss_alpha": 0.001,
            "chunk_size_feed_forward": 0, "is_encoder_decoder": False, "tf_legacy_loss": False,
            "quantization_config": {
                "config_groups": {"group_0": {"input_activations": None, "output_activations": None,
                    "targets": ["Linear"], "weights": {
                        "actorder": None, "block_structure": None, "dynamic": False, "group_size": 32, "num_bits": 4,
                        "observer": "minmax", "observer_kwargs": {}, "strategy": "group", "symmetric": True,
                        "type": "int"}}},
                "format": "pack-quantized", "ignore": ["lm_head", "re:.*self_attn.*"], "kv_cache_scheme": None,
                "quant_method": "compressed-tensors", "quantization_status": "compressed"}}}),
}  # fmt: skip
"""The same, of models that see pictures."""
