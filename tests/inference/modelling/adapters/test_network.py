"""Each kind of module that an adapter changes, against PEFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from tests.inference.modelling.adapters.harness import assert_parity

LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 128,
}
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["q_proj", "v_proj"], "r": 4},
        {"target_modules": ALL, "r": 5, "lora_alpha": 7},
        {"target_modules": ALL, "r": 40, "use_rslora": True},
        {"target_modules": ALL, "r": 4, "use_dora": True},
        {"target_modules": ["lm_head", "o_proj"], "r": 4},
        {"target_modules": ["embed_tokens", "q_proj"], "r": 4},
        {"target_modules": ALL, "rank_pattern": {"q_proj": 2, "layers.1.mlp.*": 6}, "alpha_pattern": {"v_proj": 3}},
        {"target_modules": r".*\.1\..*(up|down)_proj", "r": 3},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"], "r": 4},
        {"target_modules": ["k_proj"], "lora_bias": True, "r": 4},
    ],
    ids=["qv", "all", "rslora", "dora", "head", "embedding", "patterns", "expression", "saved", "lora_bias"],
)
def test_llama_gives_pefts_logits(tmp_path: Path, options: dict[str, Any]) -> None:
    assert_parity(LlamaConfig(**LLAMA, tie_word_embeddings=False), tmp_path, **options)


@pytest.mark.parametrize("bias", ["all", "lora_only"])
@pytest.mark.parametrize("use_dora", [False, True])
def test_biases_are_replaced(tmp_path: Path, bias: str, use_dora: bool) -> None:
    config = LlamaConfig(**LLAMA, attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
    assert_parity(config, tmp_path, target_modules=ALL, r=4, bias=bias, use_dora=use_dora)


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
@pytest.mark.parametrize("use_dora", [False, True])
def test_tied_embedding_and_head_are_apart(tmp_path: Path, target: str, use_dora: bool) -> None:
    config = LlamaConfig(**LLAMA, tie_word_embeddings=True)
    assert_parity(config, tmp_path, target_modules=[target], r=4, use_dora=use_dora)
