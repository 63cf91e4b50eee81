"""Families with delta rules that decay by channel, against transformers."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file, save_file

from tests.inference.modelling.harness import assert_matches_oracle, load_directory
from tests.inference.modelling.test_network_recurrent import SIZES, make_model, oracle_of, rewrite_config

KIMI = {
    **SIZES, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 48,
    "moe_intermediate_size": 20, "num_experts": 8, "num_experts_per_token": 2, "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10, "rms_norm_eps": 1e-2, "pad_token_id": None,
    "eos_token_id": 2,
}  # fmt: skip
"""The eps as in ``test_network_linear``."""
KIMI_LINEAR = {
    **KIMI, "linear_head_dim": 12, "linear_num_heads": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
}  # fmt: skip
BAILING = {**KIMI, "head_dim": 12, "layer_group_size": 2, "num_expert_group": 4, "topk_group": 2}

CASES = {
    "kimi_linear": ("KimiLinear", KIMI_LINEAR),
    "kimi_linear-groups-q-lora-biases": (
        "KimiLinear",
        {
            **KIMI_LINEAR, "num_expert_group": 4, "topk_group": 2, "q_lora_rank": 14, "attention_bias": True,
            "num_shared_experts": 2, "moe_renormalize": False, "linear_conv_kernel_dim": 3,
            "mlp_layer_types": ["sparse", "dense", "dense", "sparse"],
        },
    ),
    "bailing_hybrid": ("BailingHybrid", BAILING),
    "bailing_hybrid-softplus-biases-dense": (
        "BailingHybrid",
        {
            **BAILING, "kda_safe_gate": False, "attention_bias": True, "short_conv_kernel_size": 2,
            "first_k_dense_replace": 1, "num_expert_group": 1, "topk_group": 1,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_matches_transformers(name, tmp_path):
    model = make_model(*CASES[name])
    model.save_pretrained(tmp_path)
    assert_matches_oracle(load_directory(tmp_path), oracle_of(model))


def test_kimi_linear_in_the_hubs_naming(tmp_path):
    model = make_model(*CASES["kimi_linear"])
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    dense = "model.layers.0.block_sparse_moe."
    tensors = {name.replace(dense, "model.layers.0.mlp."): value for name, value in load_file(path).items()}
    save_file(tensors, path)
    layers = {"head_dim": 12, "num_heads": 3, "short_conv_kernel_size": 4, "full_attn_layers": [2]}
    config = rewrite_config(
        tmp_path, layer_types=None, mlp_layer_types=None, linear_head_dim=None, linear_num_heads=None,
        linear_conv_kernel_dim=None, first_k_dense_replace=1, moe_layer_freq=1, rope_theta=10000.0,
        linear_attn_config={**layers, "kda_layers": [1, 3, 4]},
    )  # fmt: skip
    assert_matches_oracle(load_directory(tmp_path, config), oracle_of(model))
