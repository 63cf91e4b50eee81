"""Rules of config.json's keys that families share: used, harmless with the reason, or refused unless they have a value.

Sources: transformers' configuration classes, and config.json files as they are published.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.config_keys import USED, Alias, Biases, Harmless, Members, Only, Rule
from inference.modelling.families.quantisation_keys import QUANTISATION_KEYS

Table = Mapping[str, Rule]


def used(*names: str) -> dict[str, Rule]:
    return dict.fromkeys(names, USED)


def aliases(of: str, *names: str) -> dict[str, Rule]:
    """Further names of the setting ``of``."""
    return dict.fromkeys(names, Alias((of,)))


def harmless(reason: str, *names: str) -> dict[str, Rule]:
    return dict.fromkeys(names, Harmless(reason))


COMMON: Table = {
    **used(
        "model_type", "architectures", "hidden_size", "vocab_size", "num_hidden_layers", "num_layers", "n_layer",
        "max_position_embeddings", "max_seq_len", "tie_word_embeddings", "bos_token_id", "eos_token_id",
        "tokenizer_vocab",
    ),
    "quantization_config": Members(QUANTISATION_KEYS),
    "compression_config": Members(QUANTISATION_KEYS),
    **harmless(
        "which program wrote the file, and how it holds the weights",
        "transformers_version", "torch_dtype", "dtype", "auto_map", "attn_implementation", "use_cache", "torchscript",
        "use_bfloat16", "cache_implementation", "transformers.js_config", "unsloth_version", "unsloth_fixed",
        "use_flash_attention", "use_flash_attn", "model_name", "name_or_path", "base_model_name_or_path",
        "custom_pipelines",
    ),
    **harmless(
        "what a call returns",
        "output_attentions", "output_hidden_states", "output_router_logits", "output_scores", "return_dict",
        "return_dict_in_generate", "num_logits_to_keep", "logits_to_keep", "calc_logits_for_entire_prompt",
        "output_past",
    ),
    **harmless(
        "training only",
        "initializer_range", "init_method", "attention_dropout", "attention_probs_dropout_prob", "hidden_dropout",
        "hidden_dropout_prob", "resid_pdrop", "embd_pdrop", "attn_pdrop", "classifier_dropout", "router_aux_loss_coef",
        "router_jitter_noise", "router_z_loss_coef", "aux_loss_alpha", "seq_aux", "z_loss_coefficient",
        "gradient_checkpointing", "neftune_noise_alpha", "rescale_prenorm_residual",
    ),
    **harmless(
        "how a product is split among devices or in memory, up to rounding",
        "pretraining_tp", "ep_size", "chunk_size_feed_forward", "residual_in_fp32", "fused_add_norm",
    ),
    **harmless(
        "for other tasks and other kinds of models",
        "problem_type", "id2label", "label2id", "num_labels", "finetuning_task", "task_specific_params", "prefix",
        "tokenizer_class", "cross_attention_hidden_size", "tie_encoder_decoder", "decoder_start_token_id",
        "tf_legacy_loss", "is_decoder", "use_return_dict", "type_vocab_size",
    ),
    **harmless(
        "other token ids, which the text side takes from the tokeniser's files",
        "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id", "mask_token_id",
    ),
    **harmless(
        "defaults of generation, which requests set",
        "min_length", "max_length", "max_new_tokens", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
        "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty",
        "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences",
        "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
        "suppress_tokens", "begin_suppress_tokens",
    ),
    "max_sequence_length": Harmless("an early name beside max_position_embeddings"),
    "is_encoder_decoder": Only((False,), "an encoder is no text generator"),
    "add_cross_attention": Only((False,), "there is no encoder to attend to"),
    "is_causal": Only((True,), "a model that sees later tokens can't generate text"),
    "pruned_heads": Only(({},), "heads are read whole"),
}  # fmt: skip

ROPE_MEMBERS: Table = {
    **used(
        "rope_type", "type", "rope_theta", "partial_rotary_factor", "rotary_percent", "factor",
        "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "attention_factor", "attn_factor", "truncate", "short_factor", "long_factor",
    ),
    "finetuned": Harmless("training only"),
}  # fmt: skip

ROPE: Table = {
    **used("rope_theta", "partial_rotary_factor", "rotary_percent", "original_max_position_embeddings"),
    "rope_parameters": Members(ROPE_MEMBERS),
    "rope_scaling": Members(ROPE_MEMBERS),
    "rope_interleaved": Only((False,), "the halves of a head are rotated"),
}
NO_ROPE: Table = harmless(
    "attention has no positions here", "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"
)
HEADS: Table = used("num_attention_heads", "num_heads", "num_key_value_heads", "num_kv_heads", "head_dim")
QKVO_BIAS = Biases(r"self_attn\.(?:[qkvo]|qkv)_proj")
QKV_BIAS = Biases(r"self_attn\.[qkv]_proj")
MLP_BIAS = Biases(r"mlp\.(?:gate|up|gate_up|down)_proj")
FULL_ATTENTION = Only(("full_attention",), "the family has no windows")
NO_WINDOW = Only((), "the family has no windows")

GPT: Table = {
    **COMMON,
    **used("n_positions", "n_embd", "n_head", "n_inner", "activation_function", "layer_norm_epsilon"),
    **harmless("an early name beside n_positions", "n_ctx"),
    **harmless("of an early tokeniser", "n_special", "predict_special_tokens"),
    **harmless(
        "for other tasks",
        "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
    ),
    "scale_attn_weights": Only((True,), "scores are divided by the root of the head's width"),
}  # fmt: skip
"""GPT-2 and the families that took its names."""
DECODER: Table = {**COMMON, **HEADS, **used("intermediate_size", "hidden_act", "rms_norm_eps")}
WITH_ROPE: Table = {**DECODER, **ROPE, "attention_bias": QKVO_BIAS}
LLAMA_LIKE: Table = {**WITH_ROPE, "mlp_bias": MLP_BIAS}
EXPERTS: Table = {**used("num_experts", "num_experts_per_tok"), **aliases("num_experts", "num_local_experts")}
COUNTED_EXPERTS: Table = {
    **used("n_routed_experts", "num_experts_per_tok"),
    "num_experts": Alias(("n_routed_experts",)),
    "num_local_experts": Alias(("n_routed_experts", "num_experts")),
}
"""``EXPERTS`` of families whose first name of their number is DeepSeek's."""
QWEN_ROPE = Members(
    {**ROPE_MEMBERS, **harmless("three equal positions for text are one", "mrope_section", "mrope_interleaved")}
)
MROPE: Table = {"rope_parameters": QWEN_ROPE, "rope_scaling": QWEN_ROPE}
QWEN: Table = {
    **LLAMA_LIKE,
    **MROPE,
    **used("sliding_window", "use_sliding_window", "max_window_layers", "layer_types"),
    "use_mrope": Only((False,), "positions are numbers, not triples"),
    "attention_bias": QKV_BIAS,
    "qkv_bias": QKV_BIAS,
}

MAMBA_COMMON: Table = {
    **COMMON,
    **used("state_size", "conv_kernel", "hidden_act", "layer_norm_epsilon", "intermediate_size"),
    **harmless(
        "start values of a training",
        "time_step_min", "time_step_max", "time_step_floor", "time_step_scale", "time_step_init_scheme",
    ),
    **harmless("which kernel computes it", "use_mambapy", "use_associative_scan", "use_mamba_kernels", "chunk_size"),
    **harmless("the shapes say it", "expand", "d_model", "pad_vocab_size_multiple"),
    "norm_before_gate": Harmless("transformers gates before the norm, whatever it says"),
    "rms_norm": Only((True,), "the norms are RMS norms"),
    "use_bias": Biases(r"mixer\.(?:in|out)_proj"),
    "use_conv_bias": Biases(r"mixer\.conv1d"),
}  # fmt: skip

HYBRID_MAMBA: Table = {
    **used("mamba_d_state", "mamba_d_conv"),
    **harmless("which kernel computes it", "use_mamba_kernels", "use_mambapy", "use_associative_scan"),
    "mamba_expand": Harmless("the shapes say it"),
    "mamba_conv_bias": Biases(r"mamba\.conv1d"),
    "mamba_proj_bias": Biases(r"mamba\.(?:in|out)_proj"),
}
HYBRID_MAMBA2: Table = {
    **HYBRID_MAMBA,
    **used("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "time_step_limit", "layer_types", "layers_block_type"),
    "mamba_chunk_size": Harmless("how the recurrence is split, up to rounding"),
}
