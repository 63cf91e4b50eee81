"""Each kind of module that an adapter changes, against PEFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import LlamaConfig, PretrainedConfig

from inference.modelling.adapters.network import NetworkAdapters
from inference.modelling.weights.loader import load_network
from tests.inference.modelling import test_network_attention as attention
from tests.inference.modelling import test_network_dense as dense_networks
from tests.inference.modelling import test_network_large as large_networks
from tests.inference.modelling import test_network_linear as linear_networks
from tests.inference.modelling import test_network_recurrent as recurrent_networks
from tests.inference.modelling.adapters.harness import (
    AdaptedRunner,
    assert_parity,
    load_adapted,
    make_adapter,
    plan_directory,
)
from tests.inference.modelling.harness import load_directory
from tests.inference.modelling.huggingface import make_checkpoint

LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 128,
}


def dense(name: str) -> PretrainedConfig:
    return dense_networks.tiny_config(*dense_networks.CASES[name])


def large(name: str) -> PretrainedConfig:
    return dense_networks.tiny_config(*large_networks.CASES[name])


def recurrent(name: str) -> PretrainedConfig:
    family, values = recurrent_networks.CASES[name]
    return getattr(transformers, f"{family}Config")(**values)


def linear(name: str) -> PretrainedConfig:
    family, values = linear_networks.CASES[name]
    return getattr(transformers, f"{family}Config")(**values)


ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["q_proj", "v_proj"], "r": 4},
        {"target_modules": ALL, "r": 5, "lora_alpha": 7},
        {"target_modules": ALL, "r": 40, "use_rslora": True},
        {"target_modules": ["q_proj", "down_proj"], "r": 256, "lora_alpha": 16},
        {"target_modules": ALL, "r": 4, "use_dora": True},
        {"target_modules": ["lm_head", "o_proj"], "r": 4},
        {"target_modules": ["embed_tokens", "q_proj"], "r": 4},
        {"target_modules": ALL, "rank_pattern": {"q_proj": 2, "layers.1.mlp.*": 6}, "alpha_pattern": {"v_proj": 3}},
        {"target_modules": r".*\.1\..*(up|down)_proj", "r": 3},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"], "r": 4},
        {"target_modules": ["k_proj"], "lora_bias": True, "r": 4},
    ],
    ids=[
        "qv",
        "all",
        "rslora",
        "rank_256",
        "dora",
        "head",
        "embedding",
        "patterns",
        "expression",
        "saved",
        "lora_bias",
    ],
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


FAMILIES = {
    "joined-qkv": (attention.CASES["phi3"], "all-linear"),
    "in-x-out": (dense("gpt2"), "all-linear"),
    "qkv-head-by-head": (dense("gpt_neox"), "all-linear"),
    "alibi-and-biases": (dense("bloom"), "all-linear"),
    "experts-one-by-one": (attention.CASES["mixtral"], "all-linear"),
    "shared-expert": (attention.CASES["qwen2_moe"], "all-linear"),
    "experts-with-biases-in-x-out": (dense("gpt_oss"), "all-linear"),
    "experts-stacked-in-one-axis": (dense("dbrx"), "all-linear"),
    "experts-that-do-nothing": (large("longcat_flash"), ["gate_proj", "up_proj", "down_proj", "q_a_proj"]),
    "heads-by-layer": (large("step3p5"), "all-linear"),
    "experts-in-a-narrower-space": (large("muse_spark_text"), "all-linear"),
    "latent-attention": (attention.CASES["deepseek_v3"], "all-linear"),
    "shared-latents": (large("mistral_large4_text"), ["q_proj", "o_proj", "kv_a_proj_with_mqa", "lm_head"]),
    "mamba1": (recurrent("mamba"), ["in_proj", "x_proj"]),
    "mamba2": (recurrent("bamba"), "all-linear"),
    "mamba-and-attention-side-by-side": (linear("falcon_h1"), ["in_proj", "q_proj", "o_proj", "down_proj"]),
    "gated-delta": (linear("qwen3_next"), "all-linear"),
    "short-convolution": (linear("lfm2"), "all-linear"),
    "rwkv": (linear("rwkv"), "all-linear"),
    "relative-position-bias": (linear("inkling"), "all-linear"),
    "inputs-of-their-own": (linear("inkling2"), "all-linear"),
    "matrix-memory": (linear("xlstm"), "all-linear"),
    "inputs-of-layers": (large("gemma4_text"), "all-linear"),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_modules_of_a_family_give_pefts_logits(tmp_path: Path, name: str) -> None:
    config, targets = FAMILIES[name]
    assert_parity(config, tmp_path, target_modules=targets, r=3, tolerance=5e-4)


def test_dora_of_latent_attention_and_of_in_x_out(tmp_path: Path) -> None:
    targets = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
    assert_parity(
        attention.CASES["deepseek_v3"], tmp_path / "mla", target_modules=targets, r=3, use_dora=True, tolerance=5e-4
    )
    targets = ["c_attn", "c_proj", "c_fc"]
    assert_parity(
        dense("gpt2"),
        tmp_path / "gpt2",
        target_modules=targets,
        r=3,
        use_dora=True,
        fan_in_fan_out=True,
        tolerance=5e-4,
    )


@pytest.mark.parametrize("name", ["experts-one-by-one", "latent-attention", "mamba2"])
def test_plain_pytorch_gives_the_same(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.modelling.adapters.network.library.is_available", lambda: False)
    config, targets = FAMILIES[name]
    assert_parity(config, tmp_path, target_modules=targets, r=3, tolerance=5e-4)


def test_adapters_come_and_go(tmp_path: Path) -> None:
    base, oracle = make_checkpoint(attention.CASES["mixtral"], tmp_path / "base")
    oracles = [
        make_adapter(base, tmp_path / str(number), seed=number, target_modules="all-linear", r=2 + number)
        for number in range(3)
    ]
    runner = load_adapted(base, {})
    tokens = torch.arange(5, 20)
    for turn in ((0, 1), (2, 0), (1, 2)):
        for slot, number in enumerate(turn, 1):
            found = plan_directory(runner.network, base, tmp_path / str(number))
            runner.adapters.install(slot, runner.adapters.load(*found))
        results = runner.run((1, 2, 0), [tokens.tolist()] * 3, 4)
        for number, result in zip(turn, results, strict=False):
            torch.testing.assert_close(result, oracles[number](tokens), atol=5e-4, rtol=5e-4)
        torch.testing.assert_close(results[2], oracle(tokens), atol=5e-4, rtol=5e-4)
        for slot in (1, 2):
            runner.adapters.remove(slot)


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_deltas_beside_quantised_products(tmp_path: Path, quant: str) -> None:
    base, _ = make_checkpoint(LlamaConfig(**LLAMA, tie_word_embeddings=False), tmp_path / "base")
    make_adapter(base, tmp_path / "adapter", target_modules=ALL, r=4, use_dora=True)
    spec = load_directory(base).spec
    network = load_network(spec, sorted(base.glob("*.safetensors")), dtype=torch.float32, quant=quant, pack=True)
    plain = load_network(spec, sorted(base.glob("*.safetensors")), dtype=torch.float32)
    for name, module in network.named_modules():
        if getattr(module, "packed", None) is not None and name != "embed_tokens":
            dense_weight = module.packed.dense(torch.float32).clone()
            plain.get_submodule(name).weight = torch.nn.Parameter(dense_weight, requires_grad=False)
    runners = [AdaptedRunner(one, NetworkAdapters(one, 1)) for one in (network, plain)]
    tokens = torch.arange(5, 28).tolist()
    changes = []
    for runner in runners:
        plan = plan_directory(runner.network, base, tmp_path / "adapter")
        runner.adapters.install(1, runner.adapters.load(*plan))
        adapted, unchanged = runner.run((1, 0), [tokens] * 2, 64)
        changes.append(adapted - unchanged)
    assert (changes[0] - changes[1]).abs().max() < 0.1 * changes[1].abs().max()
