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
    "llava-hf/llava-1.5-7b-hf": ("llava", {
        "architectures": ["LlavaForConditionalGeneration"], "ignore_index": -100, "image_token_index": 32000,
        "pad_token_id": 32001, "projector_hidden_act": "gelu", "tie_word_embeddings": False, "torch_dtype": "float16",
        "vision_feature_layer": -2, "vision_feature_select_strategy": "default", "vision_config": {}, "text_config": {
            "_name_or_path": "lmsys/vicuna-7b-v1.5", "architectures": ["LlamaForCausalLM"],
            "max_position_embeddings": 4096, "model_type": "llama", "rms_norm_eps": 1e-05, "torch_dtype": "float16",
            "vocab_size": 32064}}),
    "llava-hf/llava-v1.6-mistral-7b-hf": ("llava_next", {
        "ignore_index": -100, "image_grid_pinpoints": [[336, 672], [672, 336]], "image_token_index": 32000,
        "projector_hidden_act": "gelu", "use_image_newline_parameter": True, "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default", "vision_config": {}, "text_config": {
            "architectures": ["MistralForCausalLM"], "intermediate_size": 14336, "max_position_embeddings": 32768,
            "model_type": "mistral", "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
            "sliding_window": None, "torch_dtype": "bfloat16", "vocab_size": 32064}}),
    "llava-hf/llava-onevision-qwen2-0.5b-ov-hf": ("llava_onevision", {
        "ignore_index": -100, "image_grid_pinpoints": [[384, 384]], "image_token_index": 151646,
        "projector_hidden_act": "gelu", "tie_word_embeddings": False, "use_image_newline_parameter": True,
        "video_token_index": 151647, "vision_aspect_ratio": "anyres_max_9", "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full", "vision_config": {}, "text_config": USUAL | {
            "max_window_layers": 24, "model_type": "qwen2", "rope_theta": 1000000.0, "sliding_window": 32768,
            "tie_word_embeddings": True, "use_sliding_window": False}}),
    "ibm-granite/granite-vision-3.2-2b": ("llava_next", {
        "image_token_index": 49155, "vision_feature_layer": [-24, -20, -12, -1], "vision_config": {},
        "vision_feature_select_strategy": "full", "text_config": USUAL | {
            "attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "logits_scaling": 8.0, "mlp_bias": False,
            "attention_bias": False, "model_type": "granite", "residual_multiplier": 0.22, "rope_theta": 300000}}),
    "OpenGVLab/InternVL3-1B": ("internvl_chat", {
        "architectures": ["InternVLChatModel"], "auto_map": {"AutoConfig": "configuration_internvl_chat.x"},
        "downsample_ratio": 0.5, "dynamic_image_size": True, "force_image_size": 448, "hidden_size": 896,
        "image_fold": None, "max_dynamic_patch": 12, "min_dynamic_patch": 1, "output_attentions": False,
        "pad2square": False, "ps_version": "v2", "select_layer": -1, "system_message": None, "template": "internvl2_5",
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": None, "use_backbone_lora": 0,
        "use_llm_lora": 0, "use_thumbnail": True, "vision_config": {}, "llm_config": USUAL | {
            "_name_or_path": "./pretrained/x", "attention_dropout": 0.0, "layer_types": ["full_attention"],
            "max_window_layers": 70, "model_type": "qwen2", "moe_config": None, "rope_scaling": {
                "factor": 2.0, "rope_type": "dynamic", "type": "dynamic"}, "rope_theta": 1000000.0,
            "sliding_window": None, "use_bfloat16": True, "use_sliding_window": False}}),
    "zai-org/GLM-4.5V": ("glm4v_moe", {
        "architectures": ["Glm4vMoeForConditionalGeneration"], "image_start_token_id": 151339,
        "image_end_token_id": 151340, "video_start_token_id": 151341, "video_end_token_id": 151342,
        "image_token_id": 151363, "video_token_id": 151364, "tie_word_embeddings": False, "vision_config": {},
        "text_config": USUAL | {
            "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": [151329, 151336, 151338],
            "first_k_dense_replace": 1, "head_dim": 128, "model_type": "glm4v_moe_text",
            "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1,
            "norm_topk_prob": True, "num_experts_per_tok": 8, "pad_token_id": 151329, "partial_rotary_factor": 0.5,
            "rope_scaling": {"rope_type": "default", "mrope_section": [8, 12, 12]}, "rope_theta": 10000.0,
            "routed_scaling_factor": 1.0, "topk_group": 1, "use_qk_norm": False}}),
    "zai-org/GLM-4.1V-9B-Thinking": ("glm4v", {
        "image_start_token_id": 151339, "image_end_token_id": 151340, "video_start_token_id": 151341,
        "video_end_token_id": 151342, "image_token_id": 151343, "video_token_id": 151344, "tie_word_embeddings": False,
        "vision_config": {}, "text_config": USUAL | {
            "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": [151329, 151336], "head_dim": 128,
            "model_type": "glm4v_text", "partial_rotary_factor": 0.5, "rope_theta": 10000.0,
            "rope_scaling": {"rope_type": "default", "mrope_section": [8, 12, 12]}}}),
    "meta-llama/Llama-3.2-11B-Vision-Instruct": ("mllama", {
        "image_token_index": 128256, "vision_config": {}, "text_config": USUAL | {
            "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38], "dropout": 0, "model_type": "mllama_text_model",
            "cross_attention_hidden_size": None, "no_repeat_ngram_size": 0, "rope_theta": 500000.0, "rope_scaling": {
                "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3"}}}),
}  # fmt: skip
"""The same, of models that see pictures."""
