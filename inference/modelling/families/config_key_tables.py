"""The keys of config.json of each family: used, harmless with the reason, or refused unless they have a value.

Sources: transformers' configuration classes, and config.json files as they are published.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.config_keys import USED, Biases, Harmless, Members, Only, Rule
from inference.modelling.families.quantisation_keys import QUANTISATION_KEYS

Table = Mapping[str, Rule]


def _used(*names: str) -> dict[str, Rule]:
    return dict.fromkeys(names, USED)


def _harmless(reason: str, *names: str) -> dict[str, Rule]:
    return dict.fromkeys(names, Harmless(reason))


COMMON: Table = {
    **_used(
        "model_type", "architectures", "hidden_size", "vocab_size", "num_hidden_layers", "num_layers", "n_layer",
        "max_position_embeddings", "max_seq_len", "tie_word_embeddings", "bos_token_id", "eos_token_id",
        "tokenizer_vocab",
    ),
    "quantization_config": Members(QUANTISATION_KEYS),
    "compression_config": Members(QUANTISATION_KEYS),
    **_harmless(
        "which program wrote the file, and how it holds the weights",
        "transformers_version", "torch_dtype", "dtype", "auto_map", "attn_implementation", "use_cache", "torchscript",
        "use_bfloat16", "cache_implementation", "transformers.js_config", "unsloth_version", "unsloth_fixed",
        "use_flash_attention", "use_flash_attn", "model_name", "name_or_path", "base_model_name_or_path",
    ),
    **_harmless(
        "what a call returns",
        "output_attentions", "output_hidden_states", "output_router_logits", "output_scores", "return_dict",
        "return_dict_in_generate", "num_logits_to_keep", "logits_to_keep", "calc_logits_for_entire_prompt",
    ),
    **_harmless(
        "training only",
        "initializer_range", "init_method", "attention_dropout", "hidden_dropout", "hidden_dropout_prob", "resid_pdrop",
        "embd_pdrop", "attn_pdrop", "classifier_dropout", "router_aux_loss_coef", "router_jitter_noise",
        "router_z_loss_coef", "aux_loss_alpha", "seq_aux", "z_loss_coefficient", "gradient_checkpointing",
        "neftune_noise_alpha", "rescale_prenorm_residual",
    ),
    **_harmless(
        "how a product is split among devices or in memory, up to rounding",
        "pretraining_tp", "ep_size", "chunk_size_feed_forward", "residual_in_fp32", "fused_add_norm",
    ),
    **_harmless(
        "for other tasks and other kinds of models",
        "problem_type", "id2label", "label2id", "num_labels", "finetuning_task", "task_specific_params", "prefix",
        "tokenizer_class", "cross_attention_hidden_size", "tie_encoder_decoder", "decoder_start_token_id",
        "tf_legacy_loss", "is_decoder", "use_return_dict",
    ),
    **_harmless(
        "other token ids, which the text side takes from the tokeniser's files",
        "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id", "mask_token_id",
    ),
    **_harmless(
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
    **_used(
        "rope_type", "type", "rope_theta", "partial_rotary_factor", "rotary_percent", "factor",
        "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "attention_factor", "truncate", "short_factor", "long_factor",
    ),
    "finetuned": Harmless("training only"),
}  # fmt: skip

ROPE: Table = {
    **_used("rope_theta", "partial_rotary_factor", "rotary_percent", "original_max_position_embeddings"),
    "rope_parameters": Members(ROPE_MEMBERS),
    "rope_scaling": Members(ROPE_MEMBERS),
    "rope_interleaved": Only((False,), "the halves of a head are rotated"),
}
NO_ROPE: Table = _harmless(
    "attention has no positions here", "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"
)
HEADS: Table = _used("num_attention_heads", "num_heads", "num_key_value_heads", "num_kv_heads", "head_dim")
QKVO_BIAS = Biases(r"self_attn\.(?:[qkvo]|qkv)_proj")
QKV_BIAS = Biases(r"self_attn\.[qkv]_proj")
MLP_BIAS = Biases(r"mlp\.(?:gate|up|gate_up|down)_proj")
FULL_ATTENTION = Only(("full_attention",), "the family has no windows")
NO_WINDOW = Only((), "the family has no windows")

DECODER: Table = {**COMMON, **HEADS, **_used("intermediate_size", "hidden_act", "rms_norm_eps")}
WITH_ROPE: Table = {**DECODER, **ROPE, "attention_bias": QKVO_BIAS}
LLAMA_LIKE: Table = {**WITH_ROPE, "mlp_bias": MLP_BIAS}
EXPERTS: Table = _used("num_experts", "num_local_experts", "num_experts_per_tok")
QWEN: Table = {
    **LLAMA_LIKE,
    **_used("sliding_window", "use_sliding_window", "max_window_layers", "layer_types"),
    "use_mrope": Only((False,), "positions are numbers, not triples"),
    "attention_bias": QKV_BIAS,
    "qkv_bias": QKV_BIAS,
}
QWEN_EXPERTS: Table = {
    **EXPERTS,
    **_used("moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"),
}

DEEPSEEK: Table = {
    **COMMON,
    **ROPE,
    **EXPERTS,
    **_used(
        "num_attention_heads", "intermediate_size", "hidden_act", "rms_norm_eps", "q_lora_rank", "kv_lora_rank",
        "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim", "n_routed_experts", "n_shared_experts",
        "moe_intermediate_size", "first_k_dense_replace", "moe_layer_freq", "n_group", "topk_group", "topk_method",
        "scoring_func", "routed_scaling_factor", "num_nextn_predict_layers",
    ),
    "num_key_value_heads": Harmless("latent attention has no key/value heads"),
    "head_dim": Harmless("qk_rope_head_dim, qk_nope_head_dim and v_head_dim say it"),
    "attention_bias": Biases(r"self_attn\.(?:q_a_proj|kv_a_proj_with_mqa|o_proj)"),
    "mlp_bias": MLP_BIAS,
}  # fmt: skip

LFM2: Table = {
    **COMMON,
    **HEADS,
    **ROPE,
    **_used("norm_eps", "conv_L_cache", "layer_types", "full_attn_idxs", "tie_embedding"),
    **_harmless(
        "the shapes say it",
        "intermediate_size", "block_dim", "block_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of",
        "block_auto_adjust_ff_dim", "conv_dim", "conv_dim_out",
    ),
    **_harmless(
        "start values of a training",
        "block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init",
    ),
    **_harmless("an early name beside norm_eps, rope_theta", "block_norm_eps", "theta"),
    "block_use_swiglu": Only((True,), "the MLP is gated"),
    "use_pos_enc": Only((True,), "attention rotates its positions"),
    "conv_bias": Biases(r"conv\.(?:conv|in_proj|out_proj)"),
}  # fmt: skip
QWEN3_NEXT: Table = {
    **WITH_ROPE,
    **_used(
        "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads",
        "linear_num_value_heads", "layer_types", "full_attention_interval",
    ),
    "attention_bias": Only((False,), "the projections of attention have no biases"),
    "rope_parameters": Members({
        **ROPE_MEMBERS,
        **_harmless("three equal positions for text are one", "mrope_section", "mrope_interleaved"),
    }),
    **_harmless("layers for drafting, which are left out", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"),
    "attn_output_gate": Only((True,), "the output of attention is gated"),
    "use_sliding_window": Only((False,), "the family has no windows"),
    "mamba_ssm_dtype": Harmless("states are float32"),
}  # fmt: skip
QWEN3_NEXT_EXPERTS: Table = {
    **_used("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"),
    **_harmless("the layers have experts; the shapes say it", "intermediate_size"),
}


def _around(text: Table) -> Table:
    """The keys of a model that sees pictures, whose text model has those of ``text``."""
    return {
        **COMMON,
        "text_config": Members(text),
        **_harmless(
            "pictures aren't read",
            "vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id",
        ),
    }  # fmt: skip


MAMBA_COMMON: Table = {
    **COMMON,
    **_used("state_size", "conv_kernel", "hidden_act", "layer_norm_epsilon", "intermediate_size"),
    **_harmless(
        "start values of a training",
        "time_step_min", "time_step_max", "time_step_floor", "time_step_scale", "time_step_init_scheme",
    ),
    **_harmless("which kernel computes it", "use_mambapy", "use_associative_scan", "use_mamba_kernels", "chunk_size"),
    **_harmless("the shapes say it", "expand", "d_model", "pad_vocab_size_multiple"),
    "norm_before_gate": Harmless("transformers gates before the norm, whatever it says"),
    "rms_norm": Only((True,), "the norms are RMS norms"),
    "ssm_cfg": Only(({},), "no variants of the layer"),
    "use_bias": Biases(r"mixer\.(?:in|out)_proj"),
    "use_conv_bias": Biases(r"mixer\.conv1d"),
}  # fmt: skip
MAMBA: Table = {**MAMBA_COMMON, **_used("d_inner", "time_step_rank")}

HYBRID_MAMBA: Table = {
    **_used("mamba_d_state", "mamba_d_conv"),
    **_harmless("which kernel computes it", "use_mamba_kernels", "use_mambapy", "use_associative_scan"),
    "mamba_expand": Harmless("the shapes say it"),
    "mamba_conv_bias": Biases(r"mamba\.conv1d"),
    "mamba_proj_bias": Biases(r"mamba\.(?:in|out)_proj"),
}
HYBRID_MAMBA2: Table = {
    **HYBRID_MAMBA,
    **_used("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "time_step_limit", "layer_types", "layers_block_type"),
    "mamba_chunk_size": Harmless("how the recurrence is split, up to rounding"),
}

NEMOTRON: Table = {
    **COMMON,
    **HEADS,
    **NO_ROPE,
    **_used(
        "num_local_experts", "num_experts_per_tok", "attention_head_dim",
        "intermediate_size", "layer_norm_epsilon", "rms_norm_eps", "mlp_hidden_act",
        "mamba_hidden_act", "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "mamba_n_groups",
        "conv_kernel", "mamba_d_conv", "time_step_min", "mamba_dt_min", "hybrid_override_pattern", "layers_block_type",
        "layer_types", "n_routed_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size",
        "routed_scaling_factor", "n_group", "topk_group", "norm_topk_prob",
    ),
    **_harmless(
        "start values of a training", "time_step_max", "time_step_floor", "time_step_rank", "mamba_dt_max",
        "mamba_dt_init_floor",
    ),
    **_harmless("the shapes say it", "expand", "mamba_expand", "num_query_groups", "n_shared_experts"),
    **_harmless("layers for drafting, which are left out", "num_nextn_predict_layers", "mtp_layers_block_type",
                "mtp_hybrid_override_pattern"),
    **_harmless("which kernel computes it, and when", "use_mamba_kernels", "chunk_size", "mamba_chunk_size",
                "mamba_ssm_cache_dtype", "moe_shared_expert_overlap"),
    **_harmless("transformers doesn't read it", "time_step_limit", "attention_bias", "mamba_proj_bias", "norm_eps"),
    "sliding_window": NO_WINDOW,
    "moe_latent_size": Only((), "experts in a latent space can't be served yet"),
    "mlp_bias": Biases(r"mixer\.(?:up|down)_proj"),
    "use_bias": Biases(r"mixer\.(?:in|out)_proj"),
    "use_conv_bias": Biases(r"mixer\.conv1d"),
}  # fmt: skip

TRAINER_SIZES: Table = _harmless(
    "the tensors show it, and the trainer may leave a stale file",
    "mamba2_num_heads", "mamba2_head_dim", "mamba2_chunk_size", "mamba2_expand", "mamba2_conv_kernel",
    "mamba3_enabled", "mamba3_complex_rope", "mamba3_mimo_rank", "mamba3_use_conv", "kv_latent_dim", "q_latent_dim",
    "d_rope", "num_experts", "shared_expert_enabled", "intermediate_size", "num_key_value_heads", "num_kv_heads",
    "kv_heads", "name",
)  # fmt: skip
OXIDIZR: Table = {
    **COMMON,
    **ROPE,
    **TRAINER_SIZES,
    **_used(
        "num_attention_heads", "num_heads", "head_dim", "mamba_layers", "mamba2_state_size", "mamba2_n_groups",
        "experts_per_tok", "num_experts_per_tok", "rms_norm_eps",
    ),
    "hidden_act": Only(("silu", "swish"), "the trainer has no other activation"),
    "sliding_window": NO_WINDOW,
    "vision": Only((), "only text is read"),
    "audio": Only((), "only text is read"),
    "attention": Members(
        {
            **_used("num_heads", "head_dim"),
            **_harmless("the tensors show it", "num_kv_heads", "kv_latent_dim", "q_latent_dim", "d_rope"),
            "rope_theta": Only((10000, 10000.0), "another base has to be rope_theta at the top level"),
            "rope_scaling": Only((), "scaling has to be rope_scaling at the top level"),
            "sliding_window": NO_WINDOW,
            "use_alibi": Only((False,), "the trainer rotates"),
        }
    ),
    "ssm": Members(
        {
            **_used("state_size", "n_groups"),
            **_harmless(
                "the tensors show it", "variant", "num_heads", "head_dim", "chunk_size", "conv_kernel", "expand",
                "complex_rope", "mimo_rank", "use_conv",
            ),
        }
    ),
    "moe": Members(
        {
            **_used("experts_per_tok"),
            **_harmless("the tensors show it", "num_experts", "shared_expert", "intermediate_size"),
            **_harmless("training only", "load_balance_alpha", "z_loss_alpha"),
        }
    ),
    "hybrid_layers": Members(_used("ssm_layers") | _harmless("the tensors show it", "attention_layers")),
}  # fmt: skip

CONFIG_KEYS: Mapping[str, Table] = {
    "oxidizr": OXIDIZR,
    "llama": {
        **LLAMA_LIKE,
        "bias": QKVO_BIAS,
        "is_llama_config": Harmless("says what model_type says"),
        "sliding_window": NO_WINDOW,
        "use_sliding_window": Only((False,), "the family has no windows"),
        "layer_types": FULL_ATTENTION,
    },
    "mistral": {**LLAMA_LIKE, **_used("sliding_window")},
    "qwen2": QWEN,
    "qwen3": {**QWEN, "attention_bias": QKVO_BIAS},
    "qwen2_moe": {**QWEN, **QWEN_EXPERTS, **_used("shared_expert_intermediate_size")},
    "qwen3_moe": {
        **QWEN,
        **QWEN_EXPERTS,
        "attention_bias": QKVO_BIAS,
        "max_window_layers": Harmless("all layers have the window, or none"),
        "layer_types": FULL_ATTENTION,
    },
    "mixtral": {**WITH_ROPE, **EXPERTS, **_used("sliding_window")},
    "phi3": {
        **LLAMA_LIKE,
        **_used("sliding_window"),
        "full_attn_mod": Only((1,), "all layers attend alike"),
        "interpolate_factor": Only((1,), "positions are whole numbers"),
        "lm_head_bias": Only((False,), "the head has no bias"),
    },
    "gemma2": {
        **LLAMA_LIKE,
        **_used(
            "hidden_activation", "query_pre_attn_scalar", "sliding_window", "layer_types", "attn_logit_softcapping",
            "final_logit_softcapping", "use_bidirectional_attention",
        ),
        "hidden_act": Harmless("hidden_activation says it"),
        "sliding_window_size": Harmless("an early name beside sliding_window"),
    },
    "gemma3_text": {
        **LLAMA_LIKE,
        **_used(
            "hidden_activation", "query_pre_attn_scalar", "sliding_window", "layer_types", "final_logit_softcapping",
            "use_bidirectional_attention", "rope_local_base_freq", "sliding_window_pattern",
        ),
        "attn_logit_softcapping": Only((), "transformers doesn't apply it"),
        "hidden_act": Harmless("hidden_activation says it"),
    },
    "deepseek_v2": {
        **DEEPSEEK,
        "norm_topk_prob": Only((False,), "the published code and transformers differ in what it does"),
        "rope_interleave": Only((True,), "adjacent pairs are rotated"),
    },
    "deepseek_v3": {**DEEPSEEK, **_used("norm_topk_prob", "rope_interleave", "num_mtp_layers")},
    "mamba": MAMBA,
    "falcon_mamba": {**MAMBA, **_used("mixer_rms_eps")},
    "mamba2": {
        **MAMBA_COMMON,
        **_used("num_heads", "head_dim", "n_groups", "time_step_limit"),
        "time_step_rank": Harmless("a start value of a training"),
    },
    "bamba": {
        **WITH_ROPE,
        **HYBRID_MAMBA2,
        **_used("attn_layer_indices", "attn_rotary_emb"),
        "mlp_bias": Biases(r"feed_forward\.(?:gate|up|down)_proj"),
    },
    "granitemoehybrid": {
        **WITH_ROPE,
        **_used("num_local_experts", "num_experts_per_tok"),
        **HYBRID_MAMBA2,
        **_used(
            "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling",
            "shared_intermediate_size", "position_embedding_type",
        ),
        "normalization_function": Only(("rmsnorm",), "the norms are RMS norms"),
    },
    "nemotron_h": NEMOTRON,
    "jamba": {
        **DECODER,
        **NO_ROPE,
        **EXPERTS,
        **HYBRID_MAMBA,
        **_used(
            "mamba_dt_rank", "attn_layer_period", "attn_layer_offset", "expert_layer_period", "expert_layer_offset"
        ),
        "layer_types": Harmless("attn_layer_period and attn_layer_offset say it"),
        "layers_block_type": Harmless("attn_layer_period and attn_layer_offset say it"),
        "mamba_inner_layernorms": Only((True,), "the inner norms belong to the layer"),
        "n_ctx": Harmless("an early name beside max_position_embeddings"),
        "sliding_window": NO_WINDOW,
    },
    "lfm2": LFM2,
    "lfm2_moe": {
        **LFM2,
        **_used(
            "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "use_expert_bias",
            "routed_scaling_factor",
        ),
        "num_dense_layers": Harmless("the tensors say it"),
    },
    "qwen3_next": {
        **QWEN3_NEXT,
        **QWEN3_NEXT_EXPERTS,
        **_used("norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "intermediate_size"),
    },
    "qwen3_5": _around(QWEN3_NEXT),
    "qwen3_5_moe": _around({**QWEN3_NEXT, **QWEN3_NEXT_EXPERTS}),
    "qwen3_5_text": QWEN3_NEXT,
    "qwen3_5_moe_text": {**QWEN3_NEXT, **QWEN3_NEXT_EXPERTS},
}  # fmt: skip
"""``model_type`` to the rules of its keys; a key that isn't in it is refused."""
