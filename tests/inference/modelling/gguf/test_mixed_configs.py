"""Decoders whose layers are of several kinds, as GGUF: the logits of HuggingFace's files, by llama.cpp's names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import ExpertGatingFuncType, GGUFWriter, RopeScalingType
from safetensors.torch import load_file

from inference.errors import UnsupportedArchitecture
from inference.modelling.gguf.architectures import read_checkpoint
from tests.inference.modelling.gguf.converter import permuted
from tests.inference.modelling.gguf.test_architectures import load_gguf
from tests.inference.modelling.gguf.test_architectures_newer import LAYER, OUTER
from tests.inference.modelling.gguf.test_dense_configs import SIZES, read
from tests.inference.modelling.gguf.test_expert_names import begin, end, stacked
from tests.inference.modelling.gguf.writer import Tensor, value
from tests.inference.modelling.harness import SequenceRunner, assert_matches_oracle, load_directory
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_network_dense import CASES as DENSE
from tests.inference.modelling.test_network_dense import PLAIN, tiny_config
from tests.inference.modelling.test_network_kimi import CASES as KIMI
from tests.inference.modelling.test_network_large import CASES as LARGE
from tests.inference.modelling.test_network_linear import CASES as LINEAR
from tests.inference.modelling.test_network_linear import MINIMAX
from tests.inference.modelling.test_network_recurrent import make_model, oracle_of

NAMES = {
    **OUTER,
    "model.word_embeddings.weight": "token_embd.weight",
    **LAYER,
    **{f"mlp.shared_expert.{part}_proj.weight": f"ffn_{part}_shexp.weight" for part in ("gate", "up", "down")},
    **dict.fromkeys(("mlp.experts.e_score_correction_bias", "mlp.gate.expert_bias"), "exp_probs_b.bias"),
    **dict.fromkeys(("self_attn.g_proj.weight", "self_attn.output_gate.weight"), "attn_gate.weight"),
    "self_attn.sinks": "attn_sinks.weight",
    "self_attn.qkv_proj.weight": "attn_qkv.weight",
    "self_attn.out_proj.weight": "attn_output.weight",
    "self_attn.norm.weight": "attn_norm_2.weight",
    "block_sparse_moe.router.weight": "ffn_gate_inp.weight",
    "shared_mlp.input_linear.weight": "ffn_up_shexp.weight",
    "shared_mlp.output_linear.weight": "ffn_down_shexp.weight",
    **{f"attention.{letter}_proj.weight": f"attn_{letter}.weight" for letter in "qkv"},
    **{f"attention.{letter}_conv1d.weight": f"ssm_conv1d_{letter}.weight" for letter in "qkv"},
    "attention.dense.weight": "attn_output.weight",
    "attention.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "attention.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
    "attention.f_proj.weight": "ssm_f_a.weight",
    "attention.b_proj.weight": "ssm_beta.weight",
    "attention.o_norm.weight": "ssm_norm.weight",
    "attention.dt_bias": "ssm_dt.bias",
    **{f"self_attn.{ours}.weight": f"attn_{theirs}.weight" for ours, theirs in (
        ("q_a_proj", "q_a"), ("q_a_layernorm", "q_a_norm"), ("q_b_proj", "q_b"), ("linear_gate", "gate"),
        ("kv_a_proj_with_mqa", "kv_a_mqa"), ("kv_a_layernorm", "kv_a_norm"),
    )},
    "self_attn.learnable_sink_param": "attn_sinks.weight",
    **{f"self_attn.indexer.{ours}": f"indexer.{theirs}" for ours, theirs in (
        ("wq_b.weight", "attn_q_b.weight"), ("wk.weight", "attn_k.weight"), ("weights_proj.weight", "proj.weight"),
        ("k_norm.weight", "k_norm.weight"), ("k_norm.bias", "k_norm.bias"),
    )},
    "mlp.linear_gate.weight": "ffn_gate.weight",
    "mlp.shared_experts.linear_gate.weight": "ffn_gate_shexp.weight",
    **{
        f"hc_pre.hc_{ours}_layer.hc_{leaf}": f"hc_{theirs}_{leaf}.weight"
        for ours, theirs in (("attn", "attn"), ("mlp", "ffn"))
        for leaf in ("fn", "base", "scale")
    },
    **{f"model.hc_pre.hc_head.hc_head_{leaf}": f"output_hc_{leaf}.weight" for leaf in ("fn", "base", "scale")},
}  # fmt: skip
"""By llama.cpp's table: those outside of layers, and those inside of one."""
SKIPPED = re.compile(r"\.self_attn\.(slope_rate|\w+_decay)$")


def write(directory: Path, path: Path, arch: str, *, drafts: int = 0) -> Path:
    """Write a checkpoint as its converter does.

    Args:
        drafts: How many layers that draft are behind the others, copies of the last one.
    """
    config, writer = begin(directory, path, arch)
    count = config["num_hidden_layers"]
    config["drafts"] = drafts
    if drafts:
        _replace(writer, "block_count")
        writer.add_block_count(count + drafts)
        writer.add_nextn_predict_layers(drafts)
    KEYS[arch](config, writer)
    tensors = load_file(next(directory.glob("*.safetensors")))
    for name, content in stacked(tensors).items():
        if SKIPPED.search(name):
            continue
        for renamed, part in _renamed(name, content.float(), config, tensors):
            copies = range(count, count + drafts) if renamed.startswith(f"blk.{count - 1}.") else ()
            places = [renamed, *(renamed.replace(f"blk.{count - 1}.", f"blk.{number}.") for number in copies)]
            for place in places:
                writer.add_tensor(place, part.contiguous().numpy())
    for number in range(count, count + drafts):
        for norm in ("nextn.enorm", "nextn.hnorm", "layer_output_norm"):
            writer.add_tensor(f"blk.{number}.{norm}.weight", torch.ones(config["hidden_size"]).numpy())
    end(writer)
    return path


def _renamed(
    name: str, content: torch.Tensor, config: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """What becomes of a tensor."""
    if name in NAMES:
        yield NAMES[name], content
        return
    _, _, number, rest = name.split(".", 3)
    layer = f"blk.{number}."
    if "granite" in config["model_type"] and re.search(r"self_attn\.[qk]_proj", rest):
        heads = config["num_attention_heads" if ".q_" in rest else "num_key_value_heads"]
        content = torch.from_numpy(permuted(content.numpy(), heads))
    if rest.endswith(".experts.gate_up_proj"):
        yield f"{layer}ffn_gate_exps.weight", content.chunk(2, 1)[0]
        yield f"{layer}ffn_up_exps.weight", content.chunk(2, 1)[1]
    elif rest.endswith(".experts.down_proj"):
        yield f"{layer}ffn_down_exps.weight", content
    elif rest.endswith(".kv_b_proj.weight"):
        whole = content.view(config["num_attention_heads"], -1, config["kv_lora_rank"])
        nope = config["qk_nope_head_dim"]
        yield f"{layer}attn_k_b.weight", whole[:, :nope].transpose(1, 2)
        yield f"{layer}attn_v_b.weight", whole[:, nope:]
    elif rest == "attention.A_log":
        yield f"{layer}ssm_a", content.exp().view(-1, 1)
    elif rest == "attention.g_proj.weight":
        is_delta = f"model.layers.{number}.attention.A_log" in tensors
        yield f"{layer}{'ssm_g_a' if is_delta else 'attn_gate'}.weight", content
    elif "conv1d" in rest:
        yield layer + NAMES[rest], content.reshape(1, content.shape[0], 1, content.shape[-1])
    else:
        yield layer + NAMES[rest], content


def _experts(config: dict[str, Any], writer: GGUFWriter) -> None:
    writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
    writer.add_expert_used_count(config.get("num_experts_per_tok") or config["num_experts_per_token"])
    if config.get("moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _replace(writer: GGUFWriter, key: str) -> None:
    del writer.kv_data[0][f"{writer.arch}.{key}"]


def _laguna(config: dict[str, Any], writer: GGUFWriter) -> None:
    count, width, ropes = config["num_hidden_layers"], config["head_dim"], config["rope_parameters"]
    _replace(writer, "attention.head_count")
    writer.add_head_count(config["num_attention_heads_per_layer"] or [config["num_attention_heads"]] * count)
    writer.add_key_length(width)
    writer.add_value_length(width)
    _experts(config, writer)
    writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(config["moe_routed_scaling_factor"])
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    writer.add_leading_dense_block_count(config["mlp_layer_types"].count("dense"))
    full = ropes["full_attention"]
    writer.add_rope_freq_base(full["rope_theta"])
    writer.add_rope_dimension_count(int(width * full.get("partial_rotary_factor", 1.0)))
    if full["rope_type"] == "yarn":
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(full["factor"])
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
        if "attention_factor" in full:
            writer.add_rope_scaling_yarn_attn_factor(full["attention_factor"])
    if "sliding_attention" in config["layer_types"]:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
        writer.add_uint32("laguna.rope.dimension_count_swa", width)


def _granite_swa(config: dict[str, Any], writer: GGUFWriter) -> None:
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if config.get("layer_rope_theta"):
        writer.add_array("granite_swa.attention.rope_pattern", [bool(base) for base in config["layer_rope_theta"]])
    if config.get("num_local_experts"):
        _experts(config, writer)
        writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])


def _minimax_01(config: dict[str, Any], writer: GGUFWriter) -> None:
    _experts(config, writer)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    width = config["hidden_size"] // config["num_attention_heads"]
    writer.add_rope_dimension_count(int(width * config["rope_parameters"].get("partial_rotary_factor", 1.0)))
    writer.add_residual_scale(config["full_attn_alpha_factor"])


def _bailing_moe3(config: dict[str, Any], writer: GGUFWriter) -> None:
    _replace(writer, "attention.head_count_kv")
    writer.add_head_count_kv([int(kind == "full_attention") for kind in config["layer_types"]] + [1] * config["drafts"])
    _experts(config, writer)
    rotated = config["qk_rope_head_dim"]
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(rotated)
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    writer.add_key_length(config["kv_lora_rank"] + rotated)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + rotated)
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_ssm_conv_kernel(config["short_conv_kernel_size"])
    writer.add_kda_head_dim(config["linear_head_dim"])
    writer.add_bool("bailingmoe3.kda.safe_gate", True)
    writer.add_float32("bailingmoe3.kda.gate_lower_bound", config["kda_lower_bound"])
    writer.add_expert_group_count(config["num_expert_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    writer.add_expert_shared_count(config["num_shared_experts"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["moe_renormalize"])
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    writer.add_array("bailingmoe3.swiglu_clamp_exp", [0.0] * config["num_hidden_layers"])


def _hy_v4(config: dict[str, Any], writer: GGUFWriter) -> None:
    _replace(writer, "attention.head_count_kv")
    writer.add_head_count_kv(1)
    _experts({**config, "num_experts": config["n_routed_experts"]}, writer)
    rotated = config["qk_rope_head_dim"]
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(rotated)
    writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    writer.add_key_length(config["kv_lora_rank"] + rotated)
    writer.add_value_length(config["kv_lora_rank"])
    writer.add_key_length_mla(config["qk_nope_head_dim"] + rotated)
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    writer.add_array("hy_v4.swiglu_clamp_exp", [config["swiglu_limit"]] * config["num_hidden_layers"])
    writer.add_uint32("hy_v4.hyper_connection.count", config["hc_mult"])
    writer.add_float32("hy_v4.hyper_connection.epsilon", config["hc_eps"])
    writer.add_float32("hy_v4.hyper_connection.magnitude", config["hc_magnitude"])
    writer.add_indexer_head_count(config["index_n_heads"])
    writer.add_indexer_key_length(config["index_head_dim"])
    writer.add_indexer_top_k(config["index_topk"])
    writer.add_array("hy_v4.attention.indexer.types", [kind == "full" for kind in config["indexer_types"]])


KEYS = {
    "hy_v4": _hy_v4,
    "laguna": _laguna,
    "granite_swa": _granite_swa,
    "minimax-01": _minimax_01,
    "bailingmoe3": _bailing_moe3,
}
FULL_FIRST = ["full_attention", *["sliding_attention"] * 3]
MAGNIFIED = {
    kind: {**rope, "attention_factor": 1.3} if rope["rope_type"] == "yarn" else rope
    for kind, rope in DENSE["laguna"][1]["rope_parameters"].items()
}
CASES = DENSE | LARGE
ATTENTION = {
    "laguna": ("laguna", {"layer_types": FULL_FIRST, "num_attention_heads_per_layer": [4, 2, 6, 4]}),
    "laguna-magnified": ("laguna", {"layer_types": FULL_FIRST, "rope_parameters": MAGNIFIED}),
    "laguna-gates-of-values": ("laguna", {}),
    "granite_swa": ("granite_swa", {"layer_rope_theta": [1e4, 0, 1e4, 1e4]}),
    "granitemoe_swa": ("granite_swa", {}),
    "hy_v4": ("hy_v4", {}),
    "hy_v4-two-streams-biases": ("hy_v4", {"attention_bias": False, "rope_parameters": PLAIN}),
}
"""The architecture, and what differs from the case of the network's tests, as no file of it can state that."""


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_of_several_kinds_gives_the_same_logits(name, tmp_path):
    arch, changes = ATTENTION[name]
    model_type, values = CASES[name if name in CASES else name.partition("-")[0]]
    directory, oracle = make_checkpoint(tiny_config(model_type, {**values, **changes}), tmp_path)
    path = write(directory, tmp_path / "model.gguf", arch)
    assert read_checkpoint([path]).config["model_type"] == model_type
    assert_matches_oracle(load_gguf(path), oracle)


ALPHAS = {
    **{f"{name}_alpha_factor": 1.7 for name in ("full_attn", "linear_attn", "mlp")},
    **{f"{name}_beta_factor": 1.0 for name in ("full_attn", "linear_attn", "mlp")},
}
RECURRENT = {
    "minimax-01": (LINEAR["minimax"], ALPHAS),
    "bailingmoe3": (KIMI["bailing_hybrid"], {}),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_linear_attention_gives_the_same_logits(name, tmp_path):
    (family, values), changes = RECURRENT[name]
    model = make_model(family, values | changes)
    model.save_pretrained(tmp_path)
    assert_matches_oracle(load_gguf(write(tmp_path, tmp_path / "model.gguf", name)), oracle_of(model))


def test_a_layer_of_ling_that_drafts_is_left_out(tmp_path):
    model = make_model(*KIMI["bailing_hybrid"])
    model.save_pretrained(tmp_path)
    path = write(tmp_path, tmp_path / "model.gguf", "bailingmoe3", drafts=1)
    assert "blk.4.nextn.enorm.weight" in read_checkpoint([path]).parts.tensors
    assert_matches_oracle(load_gguf(path), oracle_of(model))


def test_a_layer_of_hunyuan_that_drafts_is_not_the_models(tmp_path):
    found = read(tmp_path, "hy_v3", SIZES | {"nextn_predict_layers": 1}).config
    assert (found["num_hidden_layers"], found["num_nextn_predict_layers"]) == (3, 1)


def test_minimax_rotates_a_part_of_each_head(tmp_path):
    """Which transformers leaves out, but not the published files."""
    half = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}
    make_model("MiniMax", {**MINIMAX, **ALPHAS, "rope_parameters": half}).save_pretrained(tmp_path)
    networks = load_directory(tmp_path), load_gguf(write(tmp_path, tmp_path / "model.gguf", "minimax-01"))
    assert networks[1].spec.layers[0].token_mixer.rope.rotary_dim == 4
    first, second = (SequenceRunner(network).step([("a", list(range(40)))])["a"] for network in networks)
    torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)


def test_the_layers_of_laguna_follow_from_their_number(tmp_path):
    keys = SIZES | {"block_count": 8, "attention.sliding_window": 16}
    types = read(tmp_path, "laguna", keys).config["layer_types"]
    assert [number for number, kind in enumerate(types) if kind == "full_attention"] == [0, 4]


@pytest.mark.parametrize(
    ("arch", "keys", "message"),
    [
        ("laguna", {"rope.dimension_count_swa": 8}, "dimension_count_swa is 8"),
        ("laguna", {"expert_weights_norm": False}, "expert_weights_norm is false"),
        ("hy_v4", {}, r"indexer\.top_k is missing"),
        ("hy_v4", {"attention.indexer.top_k": 8}, "swiglu_clamp_exp has 0 different bounds"),
        ("bailingmoe3", {"rope.dimension_sections": value([8, 12, 12, 0], "i32")}, "positions are triples"),
        ("bailingmoe3", {"kda.safe_gate": False}, "safe_gate is false"),
        ("bailingmoe3", {"swiglu_clamp_exp": value([0.0, 7.0, 7.0, 7.0], "f32")}, "swiglu_clamp_exp cuts"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(arch, keys, message, tmp_path):
    with pytest.raises(UnsupportedArchitecture, match=message):
        read(tmp_path, arch, SIZES | keys)


def test_a_gate_has_a_value_for_each_head_or_for_each_of_theirs(tmp_path):
    for rows, kind in ((4, "per-head"), (64, "per-element")):
        gate = Tensor("blk.0.attn_gate.weight", (rows, 64), bytes(4 * 64 * rows))
        assert read(tmp_path, "laguna", SIZES, gate).config["gating"] == kind
