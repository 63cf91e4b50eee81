"""As ``published_configs.py``, of families from before Llama: keys of config.json, and the values that matter."""

from __future__ import annotations

from typing import Any

_GPT: dict[str, Any] = {
    "activation_function": "gelu_new", "attn_pdrop": 0.0, "bos_token_id": 50256, "embd_pdrop": 0.0,
    "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "n_embd": 4096, "n_head": 16,
    "n_inner": None, "n_layer": 28, "n_positions": 2048, "resid_pdrop": 0.0, "summary_activation": None,
    "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index",
    "summary_use_proj": True, "use_cache": True, "vocab_size": 50400,
}  # fmt: skip

EARLY: dict[str, tuple[str, dict[str, Any]]] = {
    "mosaicml/mpt-7b": ("mpt", {
        "architectures": ["MPTForCausalLM"], "d_model": 4096, "emb_pdrop": 0, "embedding_fraction": 1.0,
        "expansion_ratio": 4, "init_device": "cpu", "learned_pos_emb": True, "logit_scale": None, "max_seq_len": 2048,
        "model_type": "mpt", "n_heads": 32, "n_layers": 32, "no_bias": True, "norm_type": "low_precision_layernorm",
        "resid_pdrop": 0, "tokenizer_name": "EleutherAI/gpt-neox-20b", "torch_dtype": "bfloat16", "use_cache": False,
        "verbose": 0, "vocab_size": 50432,
        "attn_config": {
            "alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0,
            "attn_type": "multihead_attention", "attn_uses_sequence_id": False, "clip_qkv": None, "prefix_lm": False,
            "qk_ln": False, "softmax_scale": None,
        },
        "init_config": {"emb_init_std": None, "name": "kaiming_normal_", "verbose": 0},
    }),
    "openai-community/gpt2": ("gpt2", {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
        "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 50257}),
    "EleutherAI/pythia-1b": ("gpt_neox", {
        "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048, "num_attention_heads": 8, "num_hidden_layers": 16, "rotary_emb_base": 10000,
        "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16", "use_cache": True,
        "use_parallel_residual": True, "vocab_size": 50304}),
    "facebook/opt-125m": ("opt", {
        "_remove_final_layer_norm": False, "activation_dropout": 0.0, "activation_function": "relu",
        "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2, "do_layer_norm_before": True,
        "dropout": 0.1, "eos_token_id": 2, "ffn_dim": 3072, "hidden_size": 768, "init_std": 0.02, "layerdrop": 0.0,
        "max_position_embeddings": 2048, "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1,
        "prefix": "</s>", "torch_dtype": "float16", "use_cache": True, "vocab_size": 50272,
        "word_embed_proj_dim": 768}),
    "adept/persimmon-8b-base": ("persimmon", {
        "architectures": ["PersimmonForCausalLM"], "bos_token_id": 71013, "eos_token_id": 71013, "hidden_act": "relu2",
        "hidden_dropout": 0.0, "attention_dropout": 0.0, "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 16384, "layer_norm_eps": 1e-05, "max_position_embeddings": 16384,
        "num_attention_heads": 64, "num_hidden_layers": 36, "partial_rotary_factor": 0.5, "qk_layernorm": True,
        "rope_scaling": None, "rope_theta": 25000.0, "tie_word_embeddings": False, "use_cache": True,
        "vocab_size": 262144}),
    "tiiuae/falcon-7b": ("falcon", {
        "alibi": False, "apply_residual_connection_post_layernorm": False, "architectures": ["FalconForCausalLM"],
        "attention_dropout": 0.0, "auto_map": {"AutoConfig": "x"}, "bias": False, "bos_token_id": 11,
        "eos_token_id": 11, "hidden_dropout": 0.0, "hidden_size": 4544, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "multi_query": True, "new_decoder_architecture": False,
        "num_attention_heads": 71, "num_hidden_layers": 32, "parallel_attn": True, "torch_dtype": "bfloat16",
        "use_cache": True, "vocab_size": 65024}),
    "tiiuae/falcon-11B": ("falcon", {
        "activation": "gelu", "alibi": False, "architectures": ["FalconForCausalLM"], "bias": False,
        "ff_factor": None, "ffn_hidden_size": 16384, "hidden_size": 4096, "layer_norm_epsilon": 1e-05,
        "max_position_embeddings": 8192, "multi_query": True, "new_decoder_architecture": True,
        "num_attention_heads": 32, "num_hidden_layers": 60, "num_kv_heads": 8, "num_ln_in_parallel_attn": 1,
        "parallel_attn": True, "rope_scaling": None, "rope_theta": 500042.0, "tie_word_embeddings": False,
        "vocab_size": 65024}),
    "bigscience/bloom-7b1": ("bloom", {
        "apply_residual_connection_post_layernorm": False, "architectures": ["BloomForCausalLM"],
        "attention_dropout": 0.0, "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_dropout": 0.0, "hidden_size": 4096, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "masked_softmax_fusion": True, "n_inner": None, "n_layer": 30,
        "num_attention_heads": 32, "offset_alibi": 100, "pad_token_id": 3, "pretraining_tp": 1, "seq_length": 2048,
        "skip_bias_add": True, "skip_bias_add_qkv": False, "unk_token_id": 0, "use_cache": True,
        "vocab_size": 250880}),
    "EleutherAI/gpt-j-6b": ("gptj", _GPT | {
        "gradient_checkpointing": False, "rotary": True, "rotary_dim": 64, "scale_attn_weights": True,
        "tie_word_embeddings": False, "tokenizer_class": "GPT2Tokenizer", "transformers_version": "4.18.0.dev0"}),
    "Salesforce/codegen-350M-mono": ("codegen", _GPT | {
        "gradient_checkpointing": False, "n_ctx": 2048, "rotary_dim": 32, "scale_attn_weights": True,
        "tokenizer_class": "GPT2Tokenizer", "use_cache": True}),
    "EleutherAI/gpt-neo-1.3B": ("gpt_neo", {
        "activation_function": "gelu_new", "architectures": ["GPTNeoForCausalLM"], "attention_dropout": 0,
        "attention_layers": ["global", "local"], "attention_types": [[["global", "local"], 12]],
        "bos_token_id": 50256, "embed_dropout": 0, "eos_token_id": 50256, "gradient_checkpointing": False,
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": None, "layer_norm_epsilon": 1e-05,
        "max_position_embeddings": 2048, "num_heads": 16, "num_layers": 24, "resid_dropout": 0,
        "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
        "summary_type": "cls_index", "summary_use_proj": True, "use_cache": True, "vocab_size": 50257,
        "window_size": 256}),
    "bigcode/starcoder": ("gpt_bigcode", _GPT | {
        "attention_softmax_in_fp32": True, "inference_runner": 0, "max_batch_size": None, "max_sequence_length": None,
        "multi_query": True, "pad_key_length": True, "pre_allocate_kv_cache": False,
        "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True, "validate_runner_input": True}),
    "AI-Sweden-Models/gpt-sw3-1.3b": ("gpt2", _GPT | {
        "apply_query_key_layer_scaling": True, "normalize_attention_scores": True, "pad_token_id": 0,
        "reorder_and_upcast_attn": False, "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True,
        "tokenizer_class": "GPTSw3Tokenizer"}),
}  # fmt: skip
"""Repository whose keys these are, to ``model_type`` and config."""
