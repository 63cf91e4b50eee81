"""Gemma 3n as GGUF: the same logits as of HuggingFace's files, by the steps and names of llama.cpp's converter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from gguf import MODEL_ARCH, GGUFWriter, get_tensor_name_map
from safetensors.torch import load_file

from tests.inference.modelling.gguf.test_architectures import load_gguf
from tests.inference.modelling.harness import assert_matches_oracle
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_network_dense import tiny_config
from tests.inference.modelling.test_network_large import GEMMA3N

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
