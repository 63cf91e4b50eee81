"""Architectures that are newer than the ``gguf`` package: the logits of HuggingFace's files, by llama.cpp's names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import ExpertGatingFuncType, GGUFWriter, RopeScalingType
from safetensors.torch import load_file

from tests.inference.modelling.gguf.test_architectures import load_gguf
from tests.inference.modelling.gguf.test_expert_names import begin, end, stacked
from tests.inference.modelling.harness import assert_matches_oracle
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_network_dense import CASES as DENSE
from tests.inference.modelling.test_network_dense import tiny_config
from tests.inference.modelling.test_network_large import CASES as LARGE

OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {
    **{f"self_attn.{letter}_proj.weight": f"attn_{letter}.weight" for letter in "qkv"},
    **{f"self_attn.{letter}_norm.weight": f"attn_{letter}_norm.weight" for letter in "qk"},
    "self_attn.o_proj.weight": "attn_output.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    **{
        f"{stem}.{ours}.weight": f"ffn_{theirs}_exps.weight"
        for stem in ("mlp.experts", "block_sparse_moe.experts")
        for names in (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
        for ours, theirs in zip(names, ("gate", "up", "down"), strict=True)
    },
    **{f"mlp.{part}_proj.weight": f"ffn_{part}.weight" for part in ("gate", "up", "down")},
    **{
        f"{stem}.shared_experts.{part}_proj.weight": f"ffn_{part}_shexp.weight"
        for stem in ("mlp", "block_sparse_moe")
        for part in ("gate", "up", "down")
    },
    **{f"mlp.shared_mlp.{part}_proj.weight": f"ffn_{part}_shexp.weight" for part in ("gate", "up", "down")},
    **dict.fromkeys(
        ("mlp.gate.weight", "mlp.router.gate.weight", "block_sparse_moe.gate.weight"), "ffn_gate_inp.weight"
    ),
    "mlp.expert_bias": "exp_probs_b",
    **dict.fromkeys(
        (
            "mlp.gate.e_score_correction_bias", "mlp.e_score_correction_bias",
            "block_sparse_moe.gate.e_score_correction_bias", "block_sparse_moe.e_score_correction_bias",
        ),
        "exp_probs_b.bias",
    ),
    **{
        f"self_attn.{stem}{letter}_{leaf}.weight": f"indexer.{letter}_{leaf}.weight"
        for stem in ("indexer.", "index_")
        for letter in "qk"
        for leaf in ("proj", "norm")
    },
}  # fmt: skip


def write(directory: Path, path: Path, arch: str, *, offset: float = 0.0) -> Path:
    """Write a checkpoint; ``offset`` is added to the weights of norms."""
    config, writer = begin(directory, path, arch)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    KEYS[arch](config, writer)
    for name, value in _split(stacked(load_file(directory / "model.safetensors"))).items():
        renamed = OUTER.get(name)
        if renamed is None:
            _, _, number, rest = name.split(".", 3)
            renamed = f"blk.{number}.{LAYER[rest]}"
        content = value.float() + (offset if name.endswith("norm.weight") else 0.0)
        writer.add_tensor(renamed, content.contiguous().numpy())
    end(writer)
    return path


def _split(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """With gates and ups apart, which transformers has in one matrix."""
    found: dict[str, torch.Tensor] = {}
    for name, value in tensors.items():
        full = f"{name}.weight" if value.dim() == 3 and not name.endswith(".weight") else name
        if "gate_up_proj" in full:
            for part, half in zip(("gate", "up"), value.chunk(2, -2), strict=True):
                found[full.replace("gate_up", part)] = half
        else:
            found[full] = value
    return found


def _windows(config: dict[str, Any], writer: GGUFWriter) -> None:
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])


def _mellum(config: dict[str, Any], writer: GGUFWriter) -> None:
    full, local = (config["rope_parameters"][kind] for kind in ("full_attention", "sliding_attention"))
    writer.add_rope_freq_base(full["rope_theta"])
    writer.add_rope_freq_base_swa(local["rope_theta"])
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(full["factor"])
    writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
    writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    _windows(config, writer)


def _cohere2_moe(config: dict[str, Any], writer: GGUFWriter) -> None:
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_logit_scale(config["logit_scale"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_expert_shared_count(config["num_shared_experts"])
    writer.add_leading_dense_block_count(config["mlp_layer_types"].index("sparse"))
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    _windows(config, writer)


def _minimax_m3(config: dict[str, Any], writer: GGUFWriter) -> None:
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_expert_shared_count(1)
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    writer.add_indexer_head_count(config["index_n_heads"])
    writer.add_indexer_key_length(config["index_head_dim"])
    writer.add_indexer_top_k(config["index_topk_blocks"])
    writer.add_uint32("minimax-m3.attention.indexer.block_size", config["index_block_size"])
    writer.add_uint32("minimax-m3.attention.indexer.local_blocks", config["index_local_blocks"])


def _hy_v3(config: dict[str, Any], writer: GGUFWriter) -> None:
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(config["moe_intermediate_size"] * config["num_shared_experts"])
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(config["router_scaling_factor"])
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)


KEYS = {"mellum": _mellum, "cohere2moe": _cohere2_moe, "minimax-m3": _minimax_m3, "hy_v3": _hy_v3}
CASES: dict[str, tuple[str, tuple[str, dict[str, Any]], dict[str, Any]]] = {
    "mellum": ("mellum", DENSE["mellum"], {"mlp_layer_types": None, "norm_topk_prob": True}),
    "cohere2_moe": (
        "cohere2moe",
        DENSE["cohere2_moe"],
        {"expert_selection_fn": "sigmoid", "norm_topk_prob": True},
    ),
    "hy_v3": ("hy_v3", DENSE["hy_v3"], {}),
    "minimax_m3": ("minimax-m3", LARGE["minimax_m3_vl_text"], {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}),
}
"""The architecture, a case of the network's tests, and what llama.cpp has fixed."""


@pytest.mark.parametrize("name", CASES)
def test_newer_architectures_give_the_same_logits(name, tmp_path):
    arch, (model_type, values), changes = CASES[name]
    directory, oracle = make_checkpoint(tiny_config(model_type, {**values, **changes}), tmp_path)
    path = write(directory, tmp_path / "model.gguf", arch, offset=1.0 if arch == "minimax-m3" else 0.0)
    assert json.loads((directory / "config.json").read_text())["model_type"] == model_type
    assert_matches_oracle(load_gguf(path), oracle)
