"""The keys of ``quantization_config``, of all methods that are read: used, harmless, or refused unless of a value.

Sources: transformers' quantisation configs, AutoGPTQ and GPTQModel, AutoAWQ, compressed-tensors, ModelOpt.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.config_keys import USED, Harmless, Only, Rule


def _harmless(reason: str, *names: str) -> dict[str, Rule]:
    return dict.fromkeys(names, Harmless(reason))


QUANTISATION_KEYS: Mapping[str, Rule] = {
    **dict.fromkeys(
        (
            "quant_method", "bits", "w_bit", "group_size", "q_group_size", "checkpoint_format", "format", "version",
            "backend", "dynamic", "is_marlin_format", "packing_format", "weight_block_size", "fmt", "config_groups",
            "sparsity_config", "transform_config", "bnb_4bit_quant_type", "quant_config", "quant_algo", "quantization",
            "load_in_4bit", "load_in_8bit", "tensors", "stored_dtype", "measured",
            "linear_class", "quantization_mode", "use_rms_norm",
        ),
        USED,
    ),
    **_harmless(
        "the tensors show which layers are in codes",
        "modules_to_not_convert", "modules_to_convert", "ignore", "ignored_layers", "skip_modules",
        "llm_int8_skip_modules", "lm_head", "modules_in_block_to_quantize", "exclude_modules",
        "block_name_to_quantize", "inside_layer_modules", "outside_layer_modules", "to_quant_block_names",
        "extra_config", "quantized_layers",
    ),
    **_harmless(
        "the tensors show it: g_idx, zero points and scales are always used",
        "desc_act", "sym", "weight_per_tensor", "static_groups", "zero_point", "scale_fmt", "pack_dtype",
        "bnb_4bit_use_double_quant", "bnb_4bit_quant_storage", "act_group_aware", "data_type",
    ),
    **_harmless(
        "how activations or caches are held; ours are in the model's dtype",
        "activation_scheme", "act_per_tensor", "activation_scale_ub", "kv_cache_scheme", "kv_cache_quant_algo",
        "llm_int8_threshold", "bnb_4bit_compute_dtype", "hyb_act", "act_bits", "act_data_type", "act_dynamic",
        "act_sym", "act_group_size", "static_kv_dtype", "static_kv_granularity", "static_attention_dtype",
        "static_attention_granularity",
    ),
    **_harmless(
        "how the weights were quantised",
        "damp_percent", "damp_auto_increment", "true_sequential", "dataset", "tokenizer", "model_seqlen", "meta",
        "mse", "nsamples", "seqlen", "iters", "lr", "minmax_lr", "enable_minmax_tuning", "enable_quanted_input",
        "batch_size", "gradient_accumulate_steps", "low_gpu_mem_usage", "amp", "scale_dtype", "low_cpu_mem_usage",
        "quantization_status", "global_compression_ratio", "producer", "autoround_version", "quant_method_version",
        "duo_scaling", "n_samples", "max_calib_samples", "max_calib_seq_len", "train_bs", "enable_norm_bias_tuning",
        "model_free", "provider",
    ),
    **_harmless(
        "which program and kernel would compute it",
        "model_name_or_path", "model_file_base_name", "use_cuda_fp16", "use_exllama", "disable_exllama",
        "exllama_config", "max_input_length", "cache_block_outputs", "module_name_preceding_first_block",
        "pad_token_id", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "run_compressed", "_load_in_4bit",
        "_load_in_8bit", "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "dequantize", "offload_meta",
        "use_fast", "torch_dtype", "dtype", "parallelization", "gptq_layout",
    ),
    "method": Harmless("GPTQModel's second name of quant_method"),
    "rms_norm_eps": Harmless("only use_rms_norm, which is refused, has such a norm"),
    "expert_dtype": Only(("fp8",), "experts of another type than the rest aren't read"),
    "rotation": Only((), "a rotation of the activations isn't computed"),
    "compressed": Only((), "an unknown compression of the tensors isn't read"),
}  # fmt: skip
