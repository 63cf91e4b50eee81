"""Decoders with experts that differ from Llama in names and options: a checkpoint written as GGUF gives its logits."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
from gguf import MODEL_ARCH, GGUFWriter, get_tensor_name_map
from safetensors.torch import load_file, save_file

from inference.errors import CorruptCheckpoint, UnsupportedArchitecture
from inference.modelling.gguf.architectures import read_checkpoint
from tests.inference.modelling.gguf.dense_converter import convert_dense
from tests.inference.modelling.gguf.test_architectures import load_gguf
from tests.inference.modelling.gguf.test_dense_configs import SIZES, checkpoint, read
from tests.inference.modelling.gguf.writer import Tensor
from tests.inference.modelling.gguf.writer import value as typed
from tests.inference.modelling.harness import assert_matches_oracle
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_network_dense import tiny_config
from tests.inference.modelling.test_network_large import LLAMA4

HALF = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}
MSCALED = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 128, "factor": 2.0,
    "short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [2.0, 3.0, 4.0, 6.0],
    **dict.fromkeys(("short_mscale", "long_mscale"), math.sqrt(1 + math.log(2) / math.log(128))),
}  # fmt: skip
CHANGES = {
    "afmoe": {"num_hidden_layers": 5, "layer_types": None, "global_attn_every_n_layers": 4},
    "phimoe": {},
    "phimoe-near-choices-longrope": {"rope_parameters": MSCALED, "router_jitter_noise": 0.01},
    "dots1": {"layer_types": ["full_attention"] * 3},
    "ernie4_5_moe": {},
    "exaone_moe": {},
    "glm4_moe": {},
    "glm4_moe-plain": {"rope_parameters": HALF},
    "granitemoe": {},
    "granitemoeshared": {},
    "hunyuan_v1_moe": {"moe_topk": [2, 2]},
    "minimax_m2": {},
    "olmoe": {},
    "solar_open": {},
}
"""What a GGUF file can't state, as llama.cpp has it."""


@pytest.mark.parametrize("name", CHANGES)
def test_decoders_with_experts_give_the_same_logits(name, tmp_path):
    directory, oracle = checkpoint(name, tmp_path, **CHANGES[name])
    assert_matches_oracle(load_gguf(convert_dense(directory, tmp_path / "model.gguf")), oracle)


@pytest.mark.parametrize("name", ["glm4_moe", "exaone_moe"])
def test_layers_that_draft_arent_the_models(name, tmp_path):
    directory, oracle = checkpoint(name, tmp_path)
    tensors = load_file(directory / "model.safetensors")
    copies = {re.sub(r"layers\.1\.", "layers.3.", key): given.clone() for key, given in tensors.items()}
    for part, size in (("eh_proj", (32, 64)), ("enorm", (32,)), ("hnorm", (32,)), ("shared_head.norm", (32,))):
        copies[f"model.layers.3.{part}.weight"] = torch.rand(size)
    save_file(copies | tensors, directory / "model.safetensors")
    path = convert_dense(directory, tmp_path / "model.gguf", drafts=1)
    assert "blk.3.nextn.eh_proj.weight" in read_checkpoint([path]).parts.tensors
    network = load_gguf(path)
    assert_matches_oracle(network, oracle)
    assert (network.spec.prediction_head is not None) == (name == "glm4_moe")


@pytest.mark.parametrize("arch", ["glm4moe", "exaone-moe", "dots1", "minimax-m2"])
def test_another_function_of_the_scores_is_refused(arch, tmp_path):
    with pytest.raises(UnsupportedArchitecture, match=r"expert_gating_func is 1; 2 \(sigmoid\) is read"):
        read(tmp_path, arch, SIZES | {"expert_gating_func": 1})


def test_a_number_of_each_layer_has_to_be_there(tmp_path):
    with pytest.raises(CorruptCheckpoint, match=r"xielu\.alpha_p must be an array of 4 float32"):
        read(tmp_path, "apertus", SIZES)


def test_granite_with_a_shared_expert_is_a_type_of_its_own(tmp_path):
    assert read(tmp_path, "granitemoe", SIZES).config["model_type"] == "granitemoe"
    keys = SIZES | {"expert_shared_feed_forward_length": 8}
    assert read(tmp_path, "granitemoe", keys).config["model_type"] == "granitemoeshared"


def test_glm_5_states_which_layers_choose_keys(tmp_path):
    indexers = [Tensor(f"blk.{number}.indexer.attn_k.weight", (8, 64), bytes(2048)) for number in range(4)]
    assert read(tmp_path, "glm-dsa", SIZES, *indexers).config["indexer_types"] == ["full"] * 4
    stated = {"attention.indexer.types": typed([True, False, False, True], "bool")}
    found = read(tmp_path, "glm-dsa", SIZES | stated, *indexers).config
    assert found["indexer_types"] == ["full", "shared", "shared", "full"]


def convert_llama4(directory: Path, path: Path) -> None:
    """Write a Llama 4 as GGUF, by the steps and names of llama.cpp's converter."""
    config = json.loads((directory / "config.json").read_text())
    writer = GGUFWriter(path, "llama4")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size_mlp"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{number}" for number in range(config["vocab_size"])])
    names = get_tensor_name_map(MODEL_ARCH.LLAMA4, config["num_hidden_layers"])
    for name, value in load_file(directory / "model.safetensors").items():
        parts = {name: value}
        if name.endswith("gate_up_proj"):
            gate, up = value.transpose(1, 2).chunk(2, 1)
            stem = name.removesuffix("gate_up_proj")
            parts = {f"{stem}gate_proj.weight": gate, f"{stem}up_proj.weight": up}
        elif name.endswith("down_proj"):
            parts = {f"{name}.weight": value.transpose(1, 2)}
        for full, part in parts.items():
            renamed = names.get_name(full, try_suffixes=(".weight",))
            assert renamed is not None, full
            writer.add_tensor(renamed, part.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("step", [1, 2])
def test_llama4_gives_the_same_logits(step, tmp_path):
    fixed = {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1, "interleave_moe_layer_step": step}
    directory, oracle = make_checkpoint(tiny_config("llama4_text", {**LLAMA4, **fixed}), tmp_path)
    convert_llama4(directory, tmp_path / "model.gguf")
    assert_matches_oracle(load_gguf(tmp_path / "model.gguf"), oracle)


def test_mobile_llm_is_refused(tmp_path):
    with pytest.raises(UnsupportedArchitecture, match="sliding_window is 0"):
        read(tmp_path, "llama4", SIZES | {"attention.sliding_window": 0})
