"""Keys of quantization_config: published ones are known, and what changes the arithmetic is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.config import CheckpointConfig, CheckpointView, Facts, TensorTable
from inference.modelling.families.config_key_tables import COMMON
from inference.modelling.families.config_keys import check_config_keys
from tests.inference.modelling.encodings.formats import FORMATS

PUBLISHED: dict[str, dict[str, Any]] = {
    "gptq": {
        "bits": 4, "group_size": 128, "damp_percent": 0.1, "desc_act": True, "static_groups": False, "sym": True,
        "true_sequential": True, "model_name_or_path": None, "model_file_base_name": "model", "quant_method": "gptq",
        "checkpoint_format": "gptq", "is_marlin_format": False, "pack_dtype": "int32", "lm_head": False,
        "meta": {"quantizer": ["gptqmodel:1.4.0"], "damp_auto_increment": 0.0025}, "use_exllama": True,
    },
    "awq": {
        "bits": 4, "group_size": 128, "modules_to_not_convert": None, "quant_method": "awq", "version": "gemm",
        "zero_point": True, "backend": "autoawq", "do_fuse": False, "modules_to_fuse": None,
    },
    "fp8": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
        "scale_fmt": "ue8m0",
    },
    "fp8 of Qwen3.5": {
        "activation_scheme": "dynamic", "act_per_tensor": False, "fmt": "e4m3", "modules_to_convert": None,
        "modules_to_not_convert": ["lm_head"], "quant_method": "fp8", "weight_block_size": [128, 128],
        "weight_per_tensor": False,
    },
    "fp8 of transformers 5": {
        "activation_scheme": "dynamic", "dequantize": False, "expert_dtype": "fp8", "modules_to_convert": None,
        "modules_to_not_convert": ["lm_head"], "quant_method": "fp8", "scale_fmt": "float",
        "weight_block_size": [128, 128],
    },
    "gptq of GPTQModel 6": {
        "bits": 4, "group_size": 128, "desc_act": False, "lm_head": False, "method": "gptq", "quant_method": "gptq",
        "format": "gptq", "checkpoint_format": "gptq", "pack_dtype": "int32", "sym": True, "meta": {"fallback": None},
    },
    "gptq of AutoRound": {
        "bits": 4, "group_size": 128, "sym": True, "quant_method": "gptq", "provider": "auto-round", "lm_head": False,
        "autoround_version": "0.13.0", "desc_act": False, "true_sequential": False, "damp_percent": 0.01,
        "block_name_to_quantize": "model.layers", "static_attention_granularity": "tensor",
        "static_kv_granularity": "tensor",
    },
    "auto-round without a model": {
        "bits": 4, "group_size": 128, "sym": True, "quant_method": "auto-round", "model_free": True, "iters": 0,
        "packing_format": "auto_round:auto_gptq", "extra_config": {"mtp.norm": {"bits": 16, "data_type": "float"}},
    },
    "compressed-tensors": {
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8}}}, "format": "float-quantized",
        "global_compression_ratio": 1.5, "ignore": ["lm_head"], "kv_cache_scheme": None, "quant_method":
        "compressed-tensors", "quantization_status": "compressed", "sparsity_config": {}, "transform_config": {},
        "version": "0.11.0",
    },
    "bitsandbytes": {
        "_load_in_4bit": True, "_load_in_8bit": False, "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage":
        "uint8", "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "load_in_4bit": True,
        "llm_int8_enable_fp32_cpu_offload": False, "llm_int8_has_fp16_weight": False, "llm_int8_skip_modules": None,
        "llm_int8_threshold": 6.0, "load_in_8bit": False, "quant_method": "bitsandbytes",
    },
    "hqq": {
        "quant_config": {"offload_meta": False, "weight_quant_params": {"nbits": 4, "axis": 1, "group_size": 64}},
        "quant_method": "hqq", "skip_modules": ["lm_head"],
    },
    "mxfp4": {
        "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"], "quant_method": "mxfp4",
    },
    "modelopt": {
        "config_groups": {}, "ignore": ["lm_head"], "quant_algo": "NVFP4", "producer": {"name": "modelopt"},
        "quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8},
    },
}  # fmt: skip


def check(stated: object) -> None:
    view = CheckpointView(CheckpointConfig({"quantization_config": stated}), TensorTable({}), Facts())
    check_config_keys(view, "llama", COMMON)


@pytest.mark.parametrize("stated", [*PUBLISHED.values(), *(form.config for form in FORMATS.values())])
def test_published_keys_are_known(stated: dict[str, Any]) -> None:
    check(stated)


def test_other_keys_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedArchitecture, match=r"quantization_config\.rotation is 'hadamard'"):
        check(PUBLISHED["gptq"] | {"rotation": "hadamard"})
    with pytest.raises(UnsupportedArchitecture, match=r"quantization_config\.new_trick"):
        check(PUBLISHED["gptq"] | {"new_trick": 1})
    with pytest.raises(UnsupportedArchitecture, match=r"quantization_config\.expert_dtype is 'fp4'"):
        check(PUBLISHED["fp8 of transformers 5"] | {"expert_dtype": "fp4"})
