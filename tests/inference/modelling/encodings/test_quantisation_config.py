"""What configs state: methods that are read, and variants that are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CorruptCheckpoint, UnsupportedFormat
from inference.modelling.encodings.quantisation_config import BLAZR_VERSION, METHODS, read_quantisation_config


@pytest.mark.parametrize("method", METHODS)
def test_every_method_that_is_named_is_read(method: str) -> None:
    stated: dict[str, object] = {"quant_method": method.upper(), "quant_algo": "FP8"}
    if method == "blazr":
        stated["version"] = BLAZR_VERSION
    assert read_quantisation_config(stated).method == method


@pytest.mark.parametrize(
    ("value", "file", "method"),
    [
        ({"bits": 4, "group_size": 128}, "quantize_config.json", "gptq"),
        ({"w_bit": 4, "q_group_size": 128, "zero_point": True}, "quant_config.json", "awq"),
        ({"producer": {}, "quantization": {"quant_algo": "FP8"}}, "hf_quant_config.json", "modelopt"),
        ({"config_groups": {}, "format": "dense"}, "config.json", "compressed-tensors"),
        ({"load_in_8bit": True}, "config.json", "bitsandbytes"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}, "config.json", "gptq"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:auto_awq"}, "config.json", "awq"),
    ],
)
def test_methods_without_a_name(value: dict[str, Any], file: str, method: str) -> None:
    found = read_quantisation_config(value, file)
    assert (found.method, found.file) == (method, file)


MIXED: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}


@pytest.mark.parametrize(
    "value",
    [
        MIXED | {"quantized_layers": {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "NVFP4", "group_size": 16}}},
        MIXED | {"quantized_layers": {"a": {"quant_algo": "W4A16_NVFP4", "group_size": 16}}},
        MIXED | {"quantized_layers": {"a": {"quant_algo": "MXFP8", "group_size": 32}, "b": {"quant_algo": "NVFP4"}}},
        {"quant_method": "modelopt", "quant_algo": "fp8_pb_wo", "ignore": ["lm_head"]},
        {"quant_method": "modelopt", "quantization": {"quant_algo": "MXFP8", "exclude_modules": ["lm_head"]}},
        {"quant_method": "mxfp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0", "ignored_layers": ["lm_head"]},
        {"quant_method": "fp8", "fmt": "float8_e4m3fn", "weight_block_size": [128, 128]},
    ],
)
def test_forms_of_published_files_are_read(value: dict[str, Any]) -> None:
    """Those of nvidia's Qwen3.6, MiniMax-M2.5 and M3, HY 4 and others, which were refused."""
    assert read_quantisation_config(value).method == value["quant_method"]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"quant_method": "exl2"}, "'exl2'"),
        ({"quant_method": "marlin"}, "'marlin'"),
        ({"quant_method": "auto-round", "packing_format": "auto_round"}, "'auto-round auto_round'"),
        ({}, "'?'"),
        ([1], r"\[1\]"),
        ("gptq", "'gptq'"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "'marlin'; gptq and gptq_v2"),
        ({"quant_method": "gptq", "is_marlin_format": True}, "'marlin'"),
        ({"quant_method": "gptq", "checkpoint_format": "bitblas"}, "'bitblas'"),
        ({"quant_method": "awq", "version": "GEMV"}, "'gemv'; gemm"),
        ({"quant_method": "awq", "backend": "llm-awq"}, "'llm-awq'"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "'marlin-24'; pack-quantized"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"format": "new"}}}, "'new'"),
        ({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-bitmask"}}, "'sparse-bitmask'"),
        ({"quant_method": "compressed-tensors", "transform_config": {"config_groups": {}}}, "rotates activations"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "'W4A8_AWQ'; FP8, FP8_PER_CHANNEL_PER_TOKEN"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "'MIXED_PRECISION'; FP8"),
        (MIXED | {"quantized_layers": {"a": {"quant_algo": "W4A8_AWQ"}}}, "'W4A8_AWQ'; FP8"),
        (MIXED | {"quantized_layers": {"a": "FP8"}}, "'None'; FP8"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "'e5m2'; e4m3"),
    ],
)
def test_other_methods_and_variants_are_refused_by_name(value: object, named: str) -> None:
    with pytest.raises(UnsupportedFormat, match=named.replace("?", r"\?")):
        read_quantisation_config(value)


def test_numbers_are_whole() -> None:
    for wrong in ("4", 4.5, True, 1 << 40, -2):
        config = read_quantisation_config({"quant_method": "awq", "bits": wrong})
        with pytest.raises(CorruptCheckpoint, match=r"config\.json: bits is .*; it must be a whole number"):
            config.integer("bits")
    assert read_quantisation_config({"quant_method": "awq", "w_bit": 4}).integer("bits", "w_bit") == 4
