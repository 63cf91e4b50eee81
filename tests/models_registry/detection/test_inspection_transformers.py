"""Checkpoints that transformers saves: the stated type, the type guessed from names, and look-alikes refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from inference.errors import CheckpointError
from inference.modelling.families.config import Confidence
from inference.modelling.spec import ModelSpec
from models_registry.detection.inspection import Inspection, inspect_checkpoint
from tests.inference.modelling import text_models
from tests.inference.modelling.test_network_linear import GLM
from tests.inference.modelling.test_network_recurrent import glm_model

assert text_models  # it tells transformers of models

BASE: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "vocab_size": 96, "max_position_embeddings": 64, "head_dim": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
       "shared_expert_intermediate_size": 16, "decoder_sparse_step": 1}  # fmt: skip
MLA = {"q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
       "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
       "num_key_value_heads": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2}  # fmt: skip
INDEXER = {"index_topk": 8, "index_head_dim": 8, "index_n_heads": 2}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_expand": 2, "mamba_n_groups": 1}
KIMI = {
    "num_experts": 4, "num_experts_per_token": 2, "moe_intermediate_size": 16, "kv_lora_rank": 16, "v_head_dim": 8,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 16, "num_key_value_heads": 4, "model_max_length": 64,
}  # fmt: skip

SUPPORTED: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "qwen2_moe": MOE,
    "qwen3_moe": MOE,
    "mixtral": MOE,
    "phi3": {},
    "gemma2": {},
    "gemma3_text": {"layer_types": None, "sliding_window": 8},
    "deepseek_v2": MLA,
    "deepseek_v3": MLA,
    "axk1": MLA,
    "axk2": MLA | INDEXER | {"gated_norm_rank": 4},
    "deepseek_v32": MLA | INDEXER,
    "hy_v4": MLA | INDEXER,
    "deepseek_v4": INDEXER | {
        "num_key_value_heads": 1, "q_lora_rank": 12, "n_routed_experts": 4, "num_experts_per_tok": 2, "o_groups": 2,
        "moe_intermediate_size": 16, "o_lora_rank": 6, "partial_rotary_factor": 0.5,
        "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention"],
        "mlp_layer_types": ["hash_moe", "moe"],
    },
    "dots3_note_text": MLA | INDEXER | {
        "num_hidden_layers": 3, "sliding_window": 6, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 2,
        "swa_q_lora_rank": 8, "swa_kv_lora_rank": 8, "swa_head_dim": 12, "swa_qk_nope_head_dim": 8,
    },
    "aria_text": {"moe_num_experts": 4, "moe_topk": 2},
    "bitnet": {},
    "diffllama": {},
    "jetmoe": {"num_local_experts": 4, "num_experts_per_tok": 2, "kv_channels": 8},
    "mamba": {"state_size": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1},
    "falcon_mamba": {"state_size": 8},
    "nemotron_h": {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "num_hidden_layers": None,
                   "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1, "chunk_size": 8,
                   "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                   "moe_shared_expert_intermediate_size": 16, "n_group": 1, "topk_group": 1},
    "bamba": MAMBA | {"attn_layer_indices": [1]},
    "falcon_h1": MAMBA | {"mamba_d_ssm": 64},
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention"], "linear_key_head_dim": 8,
                    "linear_value_head_dim": 8},
    "kimi_linear": KIMI | {"linear_head_dim": 8, "linear_num_heads": 4,
                           "layer_types": ["linear_attention", "full_attention"]},
    "bailing_hybrid": KIMI | {"head_dim": 16, "layer_group_size": 2, "first_k_dense_replace": 1,
                              "num_expert_group": 2, "topk_group": 1},
    "minimax": MOE | {"layer_types": ["linear_attention", "full_attention"]},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid", "hybrid"], "num_hidden_layers": 3,
              "mamba_d_state": 8, "mamba_dt_rank": 4,
              "head_dim": None, "attention_head_dim": None, "num_key_value_heads": 4, "tie_word_embeddings": True},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"], "n_mamba_heads": 8, "mamba_d_state": 8,
               "mamba_ngroups": 1, "head_dim": None, "attention_head_dim": None, "adapter_rank": 4,
               "num_key_value_heads": 4},
    "xlstm": {"num_heads": 4},
    "qwen4_exp_text": MOE | {
        "layer_types": ["linear_attention", "full_attention"], "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "hc_lowrank": 8, "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8,
        "indexer_compress_ratio": 4, "ple_layer_ids": [1], "ngram_vocab_size_base": 20, "split_ngram_parts": 2,
    },
    "zaya": {"num_experts": 4, "moe_intermediate_size": 16, "router_hidden_size": 12, "num_experts_per_tok": 1},
    "inkling_text": {"layer_types": ["hybrid_sliding", "hybrid"], "mlp_layer_types": ["dense", "sparse"],
                     "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "swa_head_dim": 8,
                     "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "rel_extent": 8, "d_rel": 4,
                     "sliding_window_size": 6},
    "inkling2_text": {"layer_types": ["hybrid_sliding", "hybrid"], "n_routed_experts": 4, "num_experts_per_tok": 2,
                      "swa_head_dim": 8, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "rel_extent": 8,
                      "d_rel": 4, "sliding_window_size": 6},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "muse_glimmer_text": {"sliding_window": 8},
    "muse_spark_text": MOE | {"sliding_window": 8, "moe_hidden_size": 24, "mlp_layer_types": ["dense", "sparse"]},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "head_dim": None},
    "granitemoehybrid": MAMBA | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 16,
                                 "num_local_experts": 4, "num_experts_per_tok": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
              "num_experts": 2, "use_mamba_kernels": False, "mamba_d_state": 8, "mamba_dt_rank": 4},
}  # fmt: skip

LOOK_ALIKES = ("doge", "gpt_neox_japanese")

# The same names as another type's, another arithmetic: without a model_type only this key tells them apart.
TELLTALE_KEYS = {"mistral": "sliding_window", "falcon_mamba": "mixer_rms_eps"}


def save(model_type: str, extra: dict[str, Any], directory: Path) -> Path:
    torch.manual_seed(0)
    blank = AutoConfig.for_model(model_type)
    known = set(blank.to_dict()) | set(blank.attribute_map)
    values = {key: value for key, value in {**BASE, **extra}.items() if value is not None and key in known}
    config = AutoConfig.for_model(model_type, **values)
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return directory


def check(found: Inspection) -> None:
    assert Inspection.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False))) == found
    assert ModelSpec.from_dict(json.loads(found.spec.to_json())) == found.spec
    assert found.spec.vocab_size == BASE["vocab_size"]


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_saved_checkpoints_are_inspected(tmp_path: Path, model_type: str) -> None:
    path = save(model_type, SUPPORTED[model_type], tmp_path)
    found = inspect_checkpoint(path)
    check(found)
    assert found.spec.model_type == model_type
    assert found.tokenizer.eos_token_ids == (2,)
    assert not [warning for warning in found.warnings if "not used" in warning]

    config = json.loads((path / "config.json").read_text())
    del config["model_type"]
    (path / "config.json").write_text(json.dumps(config))
    by_class = inspect_checkpoint(path)
    assert by_class.spec == found.spec
    assert next(fact for fact in by_class.facts if fact.name == "model_type").confidence is Confidence.HIGH

    del config["architectures"]
    (path / "config.json").write_text(json.dumps(config))
    if model_type in TELLTALE_KEYS:
        with pytest.raises(CheckpointError, match=f"but don't fit: .*{TELLTALE_KEYS[model_type]}"):
            inspect_checkpoint(path)
        return
    guessed = inspect_checkpoint(path)
    assert guessed.spec == found.spec
    assert next(fact for fact in guessed.facts if fact.name == "model_type").confidence is Confidence.LOW
    assert any("no model_type" in warning for warning in guessed.warnings)


@pytest.mark.parametrize("model_type", LOOK_ALIKES)
def test_look_alikes_are_refused(tmp_path: Path, model_type: str) -> None:
    path = save(model_type, {}, tmp_path)
    with pytest.raises(CheckpointError, match=f"{model_type}.*not supported"):
        inspect_checkpoint(path)


def test_a_look_alike_that_is_forced_is_refused_by_its_keys_and_its_tensors(tmp_path: Path) -> None:
    """HyperCLOVA X is a llama with multipliers and norms after the mixers."""
    path = save("hyperclovax", {}, tmp_path)
    with pytest.raises(CheckpointError, match=r"keys that llama isn't known to have.*multiplier") as caught:
        inspect_checkpoint(path, overrides={"model_type": "llama"})
    names = caught.value.message.partition("config.ignored_keys=")[2].partition(", or")[0]
    with pytest.raises(CheckpointError, match=r"4 tensors have no place in llama: .*post_norm1"):
        inspect_checkpoint(path, overrides={"model_type": "llama", "config.ignored_keys": names})


def test_glm_is_read_within_a_model_that_sees_and_known_by_its_names(tmp_path: Path) -> None:
    """transformers has no class of its text model with a head."""
    glm_model(GLM).save_pretrained(tmp_path)
    found = inspect_checkpoint(tmp_path)
    check(found)
    assert found.spec.model_type == "glm5_next_text" and found.spec.layers[0].kind == "kimi_delta+mlp"
    config, path = json.loads((tmp_path / "config.json").read_text())["text_config"], tmp_path / "model.safetensors"
    save_file({name: value for name, value in load_file(path).items() if "visual" not in name}, path)
    del config["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    guessed = inspect_checkpoint(tmp_path)
    assert guessed.spec.layers == found.spec.layers
    assert next(fact for fact in guessed.facts if fact.name == "model_type").confidence is Confidence.LOW
