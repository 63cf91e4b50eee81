"""Newer decoders with experts as GGUF: the logits of HuggingFace's files, by llama.cpp's steps and names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import (
    MODEL_ARCH,
    ExpertGatingFuncType,
    GGMLQuantizationType,
    GGUFWriter,
    RopeScalingType,
    get_tensor_name_map,
    quants,
)
from safetensors.torch import load_file
from transformers import GptOssConfig

from inference.errors import TensorShapeMismatch
from inference.modelling.layers.moe import Experts
from inference.modelling.quantisation import coded_parameters
from inference.modelling.weights.loader import load_network
from models_registry.detection.inspection import inspect_checkpoint
from tests.inference.modelling.families.test_gpt_oss import CONFIG, published_checkpoint
from tests.inference.modelling.gguf.converter import convert
from tests.inference.modelling.gguf.test_architectures import load_gguf
from tests.inference.modelling.gguf.test_dense_configs import read
from tests.inference.modelling.gguf.writer import TYPES, Tensor
from tests.inference.modelling.harness import SequenceRunner, assert_matches_oracle
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_network_attention import YARN as YARN64
from tests.inference.modelling.test_network_dense import CASES as DENSE
from tests.inference.modelling.test_network_dense import tiny_config
from tests.inference.modelling.test_network_kimi import KIMI_LINEAR
from tests.inference.modelling.test_network_large import CASES as LARGE
from tests.inference.modelling.test_network_large import MIMO, MIMO_ROPES
from tests.inference.modelling.test_network_recurrent import make_model, oracle_of

YARN = {
    "rope_type": "yarn", "rope_theta": 150000.0, "factor": 4.0, "original_max_position_embeddings": 16,
    "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
}  # fmt: skip
GPT_OSS = GptOssConfig(**CONFIG.to_dict() | {"rope_parameters": YARN, "num_hidden_layers": 3, "layer_types": None})


def begin(directory: Path, path: Path, arch: str) -> tuple[dict[str, Any], GGUFWriter]:
    """The checkpoint's config, and a file with what all architectures state."""
    config = json.loads((directory / "config.json").read_text())
    writer = GGUFWriter(path, arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config.get("max_position_embeddings") or config["model_max_length"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    if config.get("rms_norm_eps") is not None:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{number}" for number in range(config["vocab_size"])])
    return config, writer


def end(writer: GGUFWriter) -> None:
    """Write what was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def convert_gpt_oss(directory: Path, path: Path, kind: str = "F32") -> Path:
    """Write a gpt-oss; ``kind`` is the type of attention, embedding and head, where their rows are whole blocks."""
    config, writer = begin(directory, path, "gpt-oss")
    rope = config["rope_parameters"]
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    names = get_tensor_name_map(MODEL_ARCH.GPT_OSS, config["num_hidden_layers"])
    tensors = load_file(directory / "model.safetensors")
    for name, value in tensors.items():
        if name.endswith("_scales"):
            continue
        for full, part in _gpt_oss_parts(name, value, tensors):
            renamed = names.get_name(full, try_suffixes=(".weight", ".bias"))
            assert renamed is not None, full
            if part.dtype == torch.uint8:
                writer.add_tensor(renamed, part.contiguous().numpy(), raw_dtype=GGMLQuantizationType.MXFP4)
                continue
            number = GGMLQuantizationType[
                kind if part.dim() == 2 and "bias" not in full and "router" not in full else "F32"
            ]
            writer.add_tensor(renamed, quants.quantize(part.float().contiguous().numpy(), number), raw_dtype=number)
    end(writer)
    return path


def _gpt_oss_parts(name: str, value: torch.Tensor, tensors: dict[str, torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """What the converter writes of a tensor, under names that the package's table knows."""
    if name.endswith("sinks"):
        return [(f"{name}.weight", value)]
    if ".experts." not in name:
        return [(name, value)]
    if name.endswith("_blocks"):
        value = _blocks(value, tensors[name.replace("_blocks", "_scales")])
        name = name.removesuffix("_blocks")
    elif not name.endswith("_bias"):
        value = value.transpose(1, 2)
    leaf = "bias" if name.endswith("_bias") else "weight"
    name = name.removesuffix("_bias")
    if name.endswith("gate_up_proj"):
        stem = name.removesuffix("gate_up_proj")
        return [(f"{stem}gate_proj.{leaf}", value[:, ::2]), (f"{stem}up_proj.{leaf}", value[:, 1::2])]
    return [(f"{name}.{leaf}", value)]


def _blocks(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """(E, rows, bytes): blocks of GGUF, whose byte k has the values k and k + 16, of those with 2k and 2k + 1."""
    codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)
    packed = codes[..., :16] | codes[..., 16:] << 4
    return torch.cat((scales.unsqueeze(-1), packed), -1).flatten(2)


def test_gpt_oss_gives_the_same_logits(tmp_path):
    directory, oracle = make_checkpoint(GPT_OSS, tmp_path)
    assert_matches_oracle(load_gguf(convert_gpt_oss(directory, tmp_path / "model.gguf")), oracle)


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_experts_of_gpt_oss_stay_in_their_codes(kind, tmp_path):
    directory, _ = published_checkpoint(GPT_OSS, tmp_path / "gpt-oss")
    path = convert_gpt_oss(directory, tmp_path / "model.gguf", kind)
    runs = []
    for given in (directory, path):
        found = inspect_checkpoint(given)
        coded = coded_parameters(found.spec, "auto")
        assert sum(".experts." in name for name in coded) == 2 * GPT_OSS.num_hidden_layers
        assert any("token_mixer" in name for name in coded) == (kind == "Q8_0" and given == path)
        network = load_network(found.spec, found.weight_paths, dtype=torch.float32, quant="auto", pack=True)
        packed = [module.packed for module in network.modules() if isinstance(module, Experts)]
        assert all(stack.keys() == {"gate_up_proj", "down_proj"} for stack in packed)
        assert all(part.is_quantised for stack in packed for part in stack.values())
        runs.append(SequenceRunner(network).step([("a", list(range(40)))])["a"])
    if kind == "F32":
        torch.testing.assert_close(runs[1], runs[0], atol=1e-5, rtol=1e-5)


def test_expanded_experts_of_gpt_oss_have_the_published_values(tmp_path):
    directory, model = published_checkpoint(GPT_OSS, tmp_path / "gpt-oss")
    path = convert_gpt_oss(directory, tmp_path / "model.gguf")

    def oracle(given: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return model(given.unsqueeze(0), use_cache=False).logits[0].float()

    assert_matches_oracle(load_network(inspect_checkpoint(path).spec, [path], dtype=torch.float32), oracle)


def convert_kimi(directory: Path, path: Path, *, is_legacy: bool = False) -> Path:
    """Write a Kimi Linear; ``is_legacy``: with kv_b whole."""
    config, writer = begin(directory, path, "kimi-linear")
    layers = config["num_hidden_layers"]
    del writer.kv_data[0]["kimi-linear.attention.head_count_kv"]
    writer.add_head_count_kv([int(kind == "full_attention") for kind in config["layer_types"]])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_kda_head_dim(config["linear_head_dim"])
    nope, rotated, wide = (config[f"{name}_dim"] for name in ("qk_nope_head", "qk_rope_head", "v_head"))
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    writer.add_rope_dimension_count(rotated)
    writer.add_key_length(config["kv_lora_rank"] + rotated)
    writer.add_key_length_mla(nope + rotated)
    writer.add_value_length_mla(wide)
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_token"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_count(config["num_shared_experts"])
    writer.add_leading_dense_block_count(1)
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    names = get_tensor_name_map(MODEL_ARCH.KIMI_LINEAR, layers)
    tensors = load_file(directory / "model.safetensors")
    stacks: dict[str, list[torch.Tensor]] = {}
    for name in sorted(tensors, key=lambda name: [int(part) if part.isdigit() else -1 for part in name.split(".")]):
        value = tensors[name]
        if match := re.fullmatch(r"(.*\.experts)\.\d+\.(.*)", name):
            stacks.setdefault(f"{match[1]}.{match[2]}", []).append(value)
        elif name.endswith("kv_b_proj.weight") and not is_legacy:
            whole = value.view(config["num_attention_heads"], nope + wide, -1)
            stacks[name.replace("kv_b", "k_b")] = list(whole[:, :nope].transpose(1, 2))
            stacks[name.replace("kv_b", "v_b")] = list(whole[:, nope:])
        elif "conv1d" in name:
            tensors[name] = value.reshape(1, value.shape[0], 1, value.shape[-1])
        elif name.endswith("A_log"):
            tensors[name] = -value.exp().view(1, 1, -1, 1)
    tensors |= {name: torch.stack(parts) for name, parts in stacks.items()}
    for name, value in tensors.items():
        if re.search(r"\.experts\.\d", name) or (name.endswith("kv_b_proj.weight") and not is_legacy):
            continue
        full = name.replace("layers.0.block_sparse_moe", "layers.0.mlp").replace(".dt_bias", ".dt_proj.bias")
        renamed = names.get_name(full, try_suffixes=(".weight", ".bias"))
        if full.endswith("e_score_correction_bias"):
            renamed = f"blk.{full.split('.')[2]}.exp_probs_b.bias"
        assert renamed is not None, full
        writer.add_tensor(renamed, value.float().contiguous().numpy())
    end(writer)
    return path


@pytest.mark.parametrize(
    ("changes", "is_legacy"),
    [({}, False), ({"q_lora_rank": 14, "num_shared_experts": 2, "linear_conv_kernel_dim": 3}, False), ({}, True)],
    ids=["published", "low-rank-queries", "first-files"],
)
def test_kimi_linear_gives_the_same_logits(changes, is_legacy, tmp_path):
    model = make_model("KimiLinear", {**KIMI_LINEAR, "linear_num_heads": 4, **changes})
    model.save_pretrained(tmp_path)
    path = convert_kimi(tmp_path, tmp_path / "model.gguf", is_legacy=is_legacy)
    assert_matches_oracle(load_gguf(path), oracle_of(model))


def convert_mimo(directory: Path, path: Path, *, drafts: int = 0) -> Path:
    """Write a MiMo-V2-Flash; ``drafts``: how many layers that draft are behind the others, copies of the last one."""
    config, writer = begin(directory, path, "mimo2")
    count = config["num_hidden_layers"]
    has_window = [kind == "sliding_attention" for kind in config["layer_types"]] + [True] * drafts
    heads, rope = config["num_key_value_heads"], config["rope_parameters"]
    for key, add, value in (
        ("block_count", writer.add_block_count, count + drafts),
        ("attention.head_count_kv", writer.add_head_count_kv, [heads * (1 + flag) for flag in has_window]),
    ):
        del writer.kv_data[0][f"mimo2.{key}"]
        add(value)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["v_head_dim"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(has_window)
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    writer.add_rope_dimension_count(int(config["head_dim"] * rope["full_attention"]["partial_rotary_factor"]))
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    if drafts:
        writer.add_nextn_predict_layers(drafts)
        if config["attention_value_scale"] is not None:
            writer.add_float32("mimo2.attention.value_scale", config["attention_value_scale"])
    names = get_tensor_name_map(MODEL_ARCH.MIMO2, count)
    for name, value in stacked(load_file(directory / "model.safetensors")).items():
        full = f"{name}.weight" if "sink" in name else name
        renamed = names.get_name(full, try_suffixes=(".weight", ".bias"))
        if full.endswith("e_score_correction_bias"):
            renamed = f"blk.{full.split('.')[2]}.exp_probs_b.bias"
        assert renamed is not None, full
        content = value.float().contiguous().numpy()
        writer.add_tensor(renamed, content)
        if f"blk.{count - 1}." in renamed:
            for number in range(count, count + drafts):
                writer.add_tensor(renamed.replace(f"blk.{count - 1}.", f"blk.{number}."), content)
    for number in range(count, count + drafts):
        writer.add_tensor(f"blk.{number}.nextn.enorm.weight", np.ones(config["hidden_size"], dtype=np.float32))
    end(writer)
    return path


def stacked(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """With the matrices of all experts as one tensor each."""
    found: dict[str, torch.Tensor] = {}
    stacks: dict[str, dict[int, torch.Tensor]] = {}
    for name, value in tensors.items():
        match = re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name)
        if match:
            stacks.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = value
        else:
            found[name] = value
    return found | {
        name: torch.stack([parts[number] for number in range(len(parts))]) for name, parts in stacks.items()
    }


SAME_SHARES = {kind: {**rope, "partial_rotary_factor": 0.5} for kind, rope in MIMO_ROPES.items()}


@pytest.mark.parametrize("factor", [0.707, 1.0])
@pytest.mark.parametrize("drafts", [0, 2])
def test_mimo_gives_the_same_logits(drafts, factor, tmp_path):
    if not drafts and factor != 0.707:
        pytest.skip("the first files don't state it")
    scale = {} if factor == 0.707 else {"attention_value_scale": None}
    config = tiny_config("mimo_v2_flash", {**MIMO, "rope_parameters": SAME_SHARES, **scale})
    directory, oracle = make_checkpoint(config, tmp_path)
    assert_matches_oracle(load_gguf(convert_mimo(directory, tmp_path / "model.gguf", drafts=drafts)), oracle)


def convert_dbrx(directory: Path, path: Path, kind: str = "F32") -> Path:
    """Write a DBRX, whose experts are stacks of outputs by inputs."""
    config = json.loads((directory / "config.json").read_text())
    attention, experts = config["attn_config"], config["ffn_config"]
    writer = GGUFWriter(path, "dbrx")
    writer.add_block_count(config["n_layers"])
    writer.add_context_length(config["max_seq_len"])
    writer.add_embedding_length(config["d_model"])
    writer.add_feed_forward_length(experts["ffn_hidden_size"])
    writer.add_head_count(config["n_heads"])
    writer.add_head_count_kv(attention["kv_n_heads"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_clamp_kqv(attention["clip_qkv"])
    writer.add_expert_count(experts["moe_num_experts"])
    writer.add_expert_used_count(experts["moe_top_k"])
    writer.add_layer_norm_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{number}" for number in range(config["vocab_size"])])
    names = get_tensor_name_map(MODEL_ARCH.DBRX, config["n_layers"])
    for name, value in load_file(directory / "model.safetensors").items():
        part = value.float()
        if ".experts." in name:
            part = part.view(experts["moe_num_experts"], experts["ffn_hidden_size"], config["d_model"])
            part = part.transpose(1, 2) if name.endswith("w2") else part
        renamed = names.get_name(f"{name}.weight" if ".experts." in name else name, try_suffixes=(".weight",))
        assert renamed is not None, name
        number = GGMLQuantizationType[kind if ".experts." in name else "F32"]
        writer.add_tensor(renamed, quants.quantize(part.contiguous().numpy(), number), raw_dtype=number)
    end(writer)
    return path


def test_dbrx_gives_the_same_logits(tmp_path):
    directory, oracle = make_checkpoint(tiny_config(*DENSE["dbrx"]), tmp_path)
    assert_matches_oracle(load_gguf(convert_dbrx(directory, tmp_path / "model.gguf")), oracle)


def test_experts_of_dbrx_stay_in_their_codes(tmp_path):
    model_type, values = DENSE["dbrx"]
    values = values | {"ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2}}
    directory, _ = make_checkpoint(tiny_config(model_type, values), tmp_path)
    spec = inspect_checkpoint(convert_dbrx(directory, tmp_path / "model.gguf", "Q8_0")).spec
    assert sum(".experts." in name for name in coded_parameters(spec, "auto")) == 2 * values["n_layers"]


@pytest.mark.parametrize("name", ["deepseek_v32", "glm_moe_dsa", "glm_moe_dsa-each-its-own"])
def test_layers_that_choose_keys_give_the_same_logits(name, tmp_path):
    model_type, values = LARGE[name]
    equal = {"rope_parameters": {**YARN64, "mscale": 0.7, "mscale_all_dim": 0.7}} if "rope_parameters" in values else {}
    config = tiny_config(model_type, {**values, "attention_bias": False, **equal})
    directory, oracle = make_checkpoint(config, tmp_path)
    assert_matches_oracle(load_gguf(convert(directory, tmp_path / "model.gguf")), oracle)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 4, 32), (2, 6, 32)), r"shapes \[2, 4, 32\] and \[2, 6, 32\]"),
        (((4, 32), (4, 32)), "biases in codes"),
    ],
)
def test_gates_and_ups_that_do_not_fit_are_refused(shapes, message, tmp_path):
    number, _, size = TYPES["Q8_0"]
    leaf = "weight" if len(shapes[0]) == 3 else "bias"
    tensors = [
        Tensor(f"blk.0.ffn_{part}_exps.{leaf}", shape, bytes(int(np.prod(shape)) // 32 * size), number)
        for part, shape in zip(("gate", "up"), shapes, strict=True)
    ]
    with pytest.raises(TensorShapeMismatch, match=message):
        read(tmp_path, "gpt-oss", {"block_count": 1, "embedding_length": 32, "attention.head_count": 4}, *tensors)
