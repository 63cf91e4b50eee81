"""The attention families against transformers 5, float32: full, chunked, step by step, and mixed batches."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tests.inference.modelling.harness import assert_matches_oracle, load_directory, read_view
from tests.inference.modelling.huggingface import make_checkpoint, make_wrapped_checkpoint, old_naming, read_config

BASE = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
MLA = {
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "num_hidden_layers": 3,
}
GEMMA3 = {
    "num_hidden_layers": 3, "head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 16,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def longrope(half: int, original: int) -> dict:
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.1 * i for i in range(half)],
        "long_factor": [2.0 + 0.5 * i for i in range(half)],
        "original_max_position_embeddings": original,
    }


CASES = {
    "llama": LlamaConfig(**BASE),
    "llama-mha-bias": LlamaConfig(**BASE | {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}),
    "llama-mqa-tied-head-dim": LlamaConfig(
        **BASE | {"num_key_value_heads": 1, "head_dim": 16, "tie_word_embeddings": True}
    ),
    "llama-rope-llama3": LlamaConfig(**BASE | {"rope_parameters": LLAMA3}),
    "llama-rope-linear": LlamaConfig(
        **BASE | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}}
    ),
    "llama-rope-dynamic-within-context": LlamaConfig(
        **BASE | {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 500.0}}
    ),
    "llama-rope-yarn": LlamaConfig(**BASE | {"rope_parameters": YARN}),
    "llama-rope-yarn-not-truncated": LlamaConfig(
        **BASE | {"rope_parameters": YARN | {"truncate": False, "attention_factor": 1.3}}
    ),
    "llama-gelu": LlamaConfig(**BASE | {"hidden_act": "gelu_pytorch_tanh"}),
    "mistral-window-shorter-than-prompt": MistralConfig(**BASE | {"sliding_window": 7}),
    "mistral-no-window": MistralConfig(**BASE | {"sliding_window": None}),
    "qwen2": Qwen2Config(**BASE),
    "qwen2-window-in-last-layers": Qwen2Config(
        **BASE | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
    ),
    "qwen3": Qwen3Config(**BASE | {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-window-by-type": Qwen3Config(
        **BASE
        | {
            "head_dim": 8,
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
        }
    ),
    "qwen2_moe": Qwen2MoeConfig(
        **BASE | MOE | {"num_experts": 6, "shared_expert_intermediate_size": 20, "mlp_only_layers": [0]}
    ),
    "qwen2_moe-window-normalised": Qwen2MoeConfig(
        **BASE
        | MOE
        | {
            "num_experts": 6,
            "shared_expert_intermediate_size": 20,
            "norm_topk_prob": True,
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 2,
        }
    ),
    "qwen3_moe": Qwen3MoeConfig(
        **BASE | MOE | {"num_experts": 8, "head_dim": 16, "decoder_sparse_step": 2, "norm_topk_prob": True}
    ),
    "qwen3_moe-window": Qwen3MoeConfig(
        **BASE | MOE | {"num_experts": 8, "head_dim": 16, "use_sliding_window": True, "sliding_window": 6}
    ),
    "mixtral": MixtralConfig(**BASE | {"num_local_experts": 4}),
    "mixtral-window": MixtralConfig(**BASE | {"num_local_experts": 4, "sliding_window": 8, "num_experts_per_tok": 3}),
    "phi3": Phi3Config(**BASE),
    "phi3-partial-window": Phi3Config(
        **BASE
        | {
            "sliding_window": 11,
            "hidden_size": 64,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
        }
    ),
    "phi3-longrope-short": Phi3Config(
        **BASE | {"original_max_position_embeddings": 128, "rope_parameters": longrope(4, 128)}
    ),
    "gemma2": Gemma2Config(**BASE | {"head_dim": 16, "sliding_window": 6, "tie_word_embeddings": True}),
    "gemma2-strong-caps": Gemma2Config(
        **BASE
        | {
            "head_dim": 8,
            "sliding_window": 9,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 2.0,
            "query_pre_attn_scalar": 16,
            "layer_types": ["full_attention", "sliding_attention"],
        }
    ),
    "gemma2-no-caps": Gemma2Config(
        **BASE | {"head_dim": 8, "attn_logit_softcapping": None, "final_logit_softcapping": None}
    ),
    "gemma3_text": Gemma3TextConfig(**BASE | GEMMA3 | {"tie_word_embeddings": True}),
    "gemma3_text-stretched-capped": Gemma3TextConfig(
        **BASE
        | GEMMA3
        | {
            "final_logit_softcapping": 2.0,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            },
        }
    ),
    "deepseek_v2": DeepseekV2Config(**BASE | MLA),
    "deepseek_v2-q-lora-groups-yarn": DeepseekV2Config(
        **BASE
        | MLA
        | {
            "q_lora_rank": 20,
            "topk_method": "group_limited_greedy",
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 3.0,
            "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.7},
        }
    ),
    "deepseek_v3": DeepseekV3Config(**BASE | MLA | {"q_lora_rank": 20, "n_group": 4, "topk_group": 2}),
    "deepseek_v3-bias-yarn": DeepseekV3Config(
        **BASE
        | MLA
        | {
            "q_lora_rank": 20,
            "n_group": 2,
            "topk_group": 1,
            "attention_bias": True,
            "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5},
        }
    ),
    "deepseek_v3-halves-one-group": DeepseekV3Config(
        **BASE | MLA | {"n_group": 1, "topk_group": 1, "rope_interleave": False, "norm_topk_prob": False}
    ),
    "deepseek_v3-wide-values": DeepseekV3Config(
        **BASE | MLA | {"n_group": 1, "topk_group": 1, "v_head_dim": 24, "q_lora_rank": 20}
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_family_matches_transformers(name, tmp_path):
    directory, oracle = make_checkpoint(CASES[name], tmp_path)
    assert_matches_oracle(load_directory(directory), oracle)


@pytest.mark.parametrize("name", CASES)
def test_old_config_naming_gives_the_same_spec(name, tmp_path):
    directory, _ = make_checkpoint(CASES[name], tmp_path)
    new = load_directory(directory).spec
    assert load_directory(directory, old_naming(read_config(directory))).spec == new


def test_the_text_model_of_kimi_k25(tmp_path):
    """In transformers 5's naming: it writes layers as blocks in that of the hub, which the published files don't."""
    text = CASES["deepseek_v3-bias-yarn"].to_dict() | {"vocab_size": 99, "pad_token_id": None}
    vision = {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4,
        "pos_emb_height": 4, "pos_emb_width": 4,
    }  # fmt: skip
    config = AutoConfig.for_model("kimi_k25", text_config=text, vision_config=vision, projection_hidden_size=16)
    oracle = make_wrapped_checkpoint(config, tmp_path, is_of_hub=False)
    assert any("vision_tower" in name for name in read_view(tmp_path).tensors)
    assert_matches_oracle(load_directory(tmp_path), oracle)


@pytest.mark.parametrize("name", [name for name in CASES if "mo" in name or "mixtral" in name or "deepseek" in name])
def test_stacked_experts_are_the_same_as_one_by_one(name, tmp_path):
    apart, _ = make_checkpoint(CASES[name], tmp_path / "apart")
    together, _ = make_checkpoint(CASES[name], tmp_path / "together", stacked=True)
    first, second = load_directory(apart), load_directory(together)
    assert first.spec.parameter_shapes() == second.spec.parameter_shapes()
    if "experts.{e}" not in str(first.spec.parameters):
        pytest.fail("the experts were not saved one by one")
    for (name_a, value), (name_b, other) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        assert name_a == name_b
        assert torch.equal(value, other), name_a
    assert "experts.{e}" not in str(second.spec.parameters)


def test_experts_stacked_in_out_give_the_same_logits(tmp_path):
    directory, oracle = make_checkpoint(CASES["mixtral"], tmp_path, stacked=True)
    tensors = load_file(directory / "model.safetensors")
    for number in range(2):
        old, new = f"model.layers.{number}.mlp.", f"model.layers.{number}.block_sparse_moe."
        gate, up = tensors.pop(f"{old}experts.gate_up_proj").transpose(1, 2).chunk(2, -1)
        tensors[f"{new}gate.weight"] = tensors.pop(f"{old}gate.weight")
        tensors[f"{new}experts.gate_proj.weight"] = gate.contiguous()
        tensors[f"{new}experts.up_proj.weight"] = up.contiguous()
        down = tensors.pop(f"{old}experts.down_proj").transpose(1, 2)
        tensors[f"{new}experts.down_proj.weight"] = down.contiguous()
    save_file(tensors, directory / "model.safetensors")
    assert_matches_oracle(load_directory(directory), oracle)
