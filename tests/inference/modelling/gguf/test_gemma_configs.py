"""Gemma 3n and 4 as GGUF: the logits of HuggingFace's files, by the steps and names of llama.cpp's converter."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quants
from safetensors.torch import load_file

from inference.errors import UnsupportedArchitecture
from inference.modelling.quantisation import coded_parameters
from models_registry.detection.inspection import inspect_checkpoint
from tests.inference.modelling.gguf.test_architectures import load_gguf
from tests.inference.modelling.gguf.test_dense_configs import read
from tests.inference.modelling.gguf.writer import Tensor
from tests.inference.modelling.harness import assert_matches_oracle
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_network_dense import tiny_config
from tests.inference.modelling.test_network_large import CASES as LARGE
from tests.inference.modelling.test_network_large import FULL, GEMMA3N, SLIDING

CASES = {
    "cut-gates": {"activation_sparsity_pattern": [0.9, 0.0, 0.5, 0.0], "intermediate_size": [48, 40, 48, 32]},
    "no-shared-layers": {"num_kv_shared_layers": 0},
}


def convert(directory: Path, path: Path) -> None:
    """Write the checkpoint as GGUF."""
    config = json.loads((directory / "config.json").read_text())
    writer = GGUFWriter(path, "gemma3n")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["full_attention"]["rope_theta"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    writer.add_altup_active_idx(config["altup_active_idx"])
    writer.add_altup_num_inputs(config["altup_num_inputs"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    shares = torch.tensor(config["activation_sparsity_pattern"], dtype=torch.float32)
    writer.add_activation_sparsity_scale(torch.distributions.normal.Normal(0, 1).icdf(shares).tolist())
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{number}" for number in range(config["vocab_size"])])
    names = get_tensor_name_map(MODEL_ARCH.GEMMA3N, config["num_hidden_layers"])
    tensors = load_file(directory / "model.safetensors")
    for kind in ("altup_projections", "altup_unembed_projections"):
        parts = [tensors.pop(f"model.{kind}.{number}.weight") for number in range(3)]
        tensors[f"model.{kind}.weight"] = torch.stack(parts)
    rows = config["vocab_size"] - tensors["model.embed_tokens_per_layer.weight"].shape[0]
    table = tensors["model.embed_tokens_per_layer.weight"]
    # The converter fills the table up with zeros; what the tokens behind it get is theirs alone.
    tensors["model.embed_tokens_per_layer.weight"] = torch.cat((table, table.new_zeros(rows, table.shape[1])))
    for name, value in tensors.items():
        full = f"{name}.weight" if name.endswith("_scale") else name
        renamed = names.get_name(full, try_suffixes=(".weight",))
        assert renamed is not None, name
        writer.add_tensor(renamed, value.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", CASES)
def test_a_file_gives_the_logits_of_its_checkpoint(name, tmp_path):
    values = {**GEMMA3N, **CASES[name], "final_logit_softcapping": 30.0, "vocab_size_per_layer_input": 99}
    directory, oracle = make_checkpoint(tiny_config("gemma3n_text", values), tmp_path)
    convert(directory, tmp_path / "model.gguf")
    assert_matches_oracle(load_gguf(tmp_path / "model.gguf"), oracle)


GEMMA4 = {
    "gemma4_text": {},
    "gemma4_text-values-of-their-own": {"attention_bias": False},
    "gemma4_unified_text": {},
    "gemma4_text-without-inputs": {
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 300.0},
            FULL: {"rope_type": "proportional", "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
        }
    },
}
"""Changes to cases of the network's tests: a file states neither biases nor a factor of the positions."""


def convert_gemma4(directory: Path, path: Path, values: dict, *, kind: str = "F32", is_split: bool = False) -> Path:
    """Write a Gemma 4.

    Args:
        values: config.json's, where transformers writes them layer by layer.
        kind: Type of the experts.
        is_split: Gates and ups of the experts are two tensors.
    """
    config = json.loads((directory / "config.json").read_text())
    count, shared = config["num_hidden_layers"], config["num_kv_shared_layers"]
    writer = GGUFWriter(path, "gemma4")
    writer.add_block_count(count)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    width = config["intermediate_size"]
    doubled = [width if number < count - shared else 2 * width for number in range(count)]
    writer.add_feed_forward_length(doubled if config.get("use_double_wide_mlp") else width)
    writer.add_head_count(config["num_attention_heads"])
    has_window = [given == SLIDING for given in config["layer_types"]]
    wide, narrow = values.get("num_global_key_value_heads"), config["num_key_value_heads"]
    writer.add_head_count_kv([narrow if flag else wide for flag in has_window] if wide else narrow)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(values["global_head_dim"])
    for add in (writer.add_key_length_swa, writer.add_value_length_swa, writer.add_rope_dimension_count_swa):
        add(values["head_dim"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope[FULL]["rope_theta"])
    writer.add_rope_freq_base_swa(rope[SLIDING]["rope_theta"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(has_window)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config.get("hidden_size_per_layer_input") or 0)
    if config["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config.get("num_experts"):
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list([f"t{number}" for number in range(config["vocab_size"])])
    turned = int(values["global_head_dim"] * rope[FULL]["partial_rotary_factor"] / 2)
    divisors = [1.0] * turned + [1e30] * (values["global_head_dim"] // 2 - turned)
    writer.add_tensor("rope_freqs.weight", np.array(divisors, dtype=np.float32))
    names = get_tensor_name_map(MODEL_ARCH.GEMMA4, count)
    own = {
        "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
        "experts.gate_proj": "ffn_gate_exps.weight", "experts.up_proj": "ffn_up_exps.weight",
    }  # fmt: skip
    for name, value in load_file(directory / "model.safetensors").items():
        parts = {name: value}
        if is_split and name.endswith("gate_up_proj"):
            stem = name.removesuffix("gate_up_proj")
            parts = dict(zip((f"{stem}gate_proj", f"{stem}up_proj"), value.chunk(2, 1), strict=True))
        for key, part in parts.items():
            end = next((end for end in own if key.endswith(end)), None)
            full = f"{key}.weight" if key.endswith("layer_scalar") or ".experts." in key else key
            renamed = names.get_name(full, try_suffixes=(".weight",)) if end is None else f"blk.{key[13]}.{own[end]}"
            assert renamed is not None, key
            number = GGMLQuantizationType[kind if ".experts." in key else "F32"]
            content = quants.quantize(part.float().contiguous().numpy(), number)
            writer.add_tensor(renamed, content, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("is_split", [False, True], ids=["", "split"])
@pytest.mark.parametrize("name", GEMMA4)
def test_gemma4_gives_the_logits_of_its_checkpoint(name, is_split, tmp_path):
    model_type, values = LARGE[name]
    values = values | GEMMA4[name]
    if is_split and not values.get("num_experts"):
        pytest.skip("no experts")
    directory, oracle = make_checkpoint(tiny_config(model_type, values), tmp_path)
    path = convert_gemma4(directory, tmp_path / "model.gguf", values, is_split=is_split)
    assert_matches_oracle(load_gguf(path), oracle)


def test_experts_of_gemma4_stay_in_their_codes(tmp_path):
    model_type, values = LARGE["gemma4_text"]
    values = values | {"hidden_size": 64, "moe_intermediate_size": 32}
    directory, _ = make_checkpoint(tiny_config(model_type, values), tmp_path)
    path = convert_gemma4(directory, tmp_path / "model.gguf", values, kind="Q8_0")
    spec = inspect_checkpoint(path).spec
    assert sum(".experts." in name for name in coded_parameters(spec, "auto")) == 2 * values["num_hidden_layers"]


def test_other_divisors_of_gemma4_are_refused(tmp_path):
    tensor = Tensor("rope_freqs.weight", (2,), np.array([8.0, 1e30], dtype=np.float32).tobytes())
    with pytest.raises(UnsupportedArchitecture, match="stretches positions"):
        read(tmp_path, "gemma4", {"block_count": 1, "embedding_length": 32, "attention.head_count": 4}, tensor)
