"""X-LoRAs against PEFT: whole, in chunks, token by token, beside rows with other adapters and with none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, PretrainedConfig

from tests.inference.modelling.adapters.harness import TOLERANCE, load_adapted, make_adapter, make_xlora
from tests.inference.modelling.adapters.test_network import ALL, LLAMA, linear
from tests.inference.modelling.huggingface import make_checkpoint

SOME = [
    {"target_modules": ALL, "r": 4, "lora_alpha": 6},
    {"target_modules": ["q_proj", "down_proj"], "r": 3, "use_rslora": True},
    {"target_modules": ALL, "r": 2},
]


def assert_parity(config: PretrainedConfig, directory: Path, adapters: list[dict[str, Any]], **options: Any) -> None:
    base, oracle = make_checkpoint(config, directory / "base")
    mixed_oracle = make_xlora(base, directory / "x", adapters, **options)
    lora_oracle = make_adapter(base, directory / "lora", target_modules=adapters[0]["target_modules"], r=4)
    tokens = torch.randint(0, config.vocab_size, (23,), generator=torch.Generator().manual_seed(3))
    wanted = mixed_oracle(tokens), oracle(tokens), lora_oracle(tokens), mixed_oracle(tokens[:9])
    assert (wanted[0] - wanted[1]).abs().max() > 20 * TOLERANCE, "the X-LoRA changes too little to be seen"
    runner = load_adapted(base, {1: directory / "x", 2: directory / "lora"})
    for chunk in (64, 1, 5):
        prompts = [tokens.tolist()] * 3 + [tokens[:9].tolist()]
        for found, expected in zip(runner.run((1, 0, 2, 1), prompts, chunk), wanted, strict=True):
            torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layerwise_scalings": True, "softmax_temperature": 0.5},
        {"xlora_depth": 3, "xlora_size": 24, "layerwise_scalings": True},
        {"scaling_pass_value": 1 / 3, "global_scaling_weight": 1.5},
        {"top_k_lora": 2},
        {"top_k_lora": 2, "enable_softmax_topk": True, "enable_softmax": False, "scaling_pass_value": 0.4},
        {"enable_softmax": False, "layerwise_scalings": True, "xlora_depth": 2, "xlora_size": 8},
    ],
    ids=["plain", "layerwise", "deep", "pass", "top_k", "top_k_softmax", "no_softmax"],
)
def test_llama_gives_pefts_logits(tmp_path: Path, options: dict[str, Any]) -> None:
    # Rounding grows with the scalings.
    adapters = [{**adapter, "amount": 0.2} if "global_scaling_weight" in options else adapter for adapter in SOME]
    assert_parity(LlamaConfig(**LLAMA, tie_word_embeddings=False), tmp_path, adapters, **options)


def test_tables_of_the_native_operator_do_not_grow(tmp_path: Path) -> None:
    """It adds no adapter of an X-LoRA, and would go through their empty terms for every other row."""
    base, _ = make_checkpoint(LlamaConfig(**LLAMA, tie_word_embeddings=False), tmp_path / "base")
    make_xlora(base, tmp_path / "x", SOME)
    make_adapter(base, tmp_path / "lora", target_modules=["o_proj"], r=4)
    network = load_adapted(base, {1: tmp_path / "x", 2: tmp_path / "lora"}).network
    tables = {name: module.deltas for name, module in network.named_modules() if hasattr(module, "deltas")}
    assert len(tables["layers.0.token_mixer.o_proj"].deltas) == 2
    assert {table.num_terms for name, table in tables.items() if "o_proj" in name} == {1}
    assert {table.num_terms for table in tables.values()} == {1}


def test_the_embedding_is_scaled(tmp_path: Path) -> None:
    adapters = [{"target_modules": ["embed_tokens", "q_proj"], "r": 4}, {"target_modules": ALL, "r": 2}]
    config = LlamaConfig(**LLAMA, tie_word_embeddings=False)
    assert_parity(config, tmp_path, adapters, layerwise_scalings=True)


def test_recurrent_states_are_those_of_each_pass(tmp_path: Path) -> None:
    # Smaller changes than elsewhere: both passes choose experts, and rounding grows with what the adapters add.
    targets = ["q_proj", "o_proj", "out_proj"]
    adapters = [{"target_modules": targets, "r": 4, "amount": 0.2}, {"target_modules": ["q_proj"], "r": 2}]
    assert_parity(linear("qwen3_next"), tmp_path, adapters, scaling_pass_value=0.5)
