"""Quantised checkpoints, from files to logits: those of the twin that holds the same values in float32."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import transformers

from inference.modelling.network import HybridForCausalLM
from inference.modelling.quantisation import Quant
from inference.modelling.weights.loader import load_network
from models_registry.detection.inspection import Inspection, inspect_checkpoint
from tests.inference.modelling.encodings.checkpoints import write_pair
from tests.inference.modelling.encodings.formats import FORMATS, Format, gptq
from tests.inference.modelling.harness import SequenceRunner

PROMPT = [5, 9, 2, 17, 30, 8, 8, 1, 44, 23, 11, 3]
SIZES = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 96, "tie_word_embeddings": False,
}  # fmt: skip
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
CONFIGS = {
    "llama": transformers.LlamaConfig(**SIZES),
    "qwen2": transformers.Qwen2Config(**{name: size for name, size in SIZES.items() if name != "head_dim"}),
    "qwen3_moe": transformers.Qwen3MoeConfig(**SIZES | MOE),
    "mixtral": transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
    "deepseek_v4": transformers.DeepseekV4Config(
        **SIZES | {"num_key_value_heads": 1},
        q_lora_rank=32,
        moe_intermediate_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        o_groups=2,
        o_lora_rank=16,
        index_n_heads=12,
        index_head_dim=8,
        index_topk=2,
        partial_rotary_factor=0.5,
        mlp_layer_types=["hash_moe", "moe"],
        sliding_window=6,
        layer_types=["compressed_sparse_attention", "heavily_compressed_attention"],
        compress_rates={"compressed_sparse_attention": 2, "heavily_compressed_attention": 5},
    ),
}
ROUNDING = 2e-4
"""Of logits around 10: the decoded values may differ in float32's last bit."""


def load(found: Inspection, quant: Quant = "none", dtype: torch.dtype = torch.float32) -> HybridForCausalLM:
    return load_network(found.spec, found.weight_paths, dtype=dtype, quant=quant, pack=True)


def logits(network: HybridForCausalLM) -> torch.Tensor:
    with torch.inference_mode():
        return SequenceRunner(network).step([("a", PROMPT)])["a"].float()


def check(name: str, form: Format, directory: Path, **options: object) -> Inspection:
    quantised, twin = write_pair(CONFIGS[name], directory, form, **options)  # type: ignore[arg-type]
    found = inspect_checkpoint(quantised)
    expected = logits(load(inspect_checkpoint(twin)))
    assert float(expected.std()) > 0.3, "weights so small that no mistake would show"
    torch.testing.assert_close(logits(load(found)), expected, rtol=0, atol=ROUNDING)
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_llama_in_every_format(name: str, tmp_path: Path) -> None:
    found = check("llama", FORMATS[name], tmp_path)
    (fact,) = [fact for fact in found.facts if fact.name == "quantisation"]
    assert "14 of 21 weights" in fact.evidence
    assert Inspection.from_dict(found.to_dict()) == found


@pytest.mark.parametrize("name", ["gptq-act-order", "fp8-blocks", "compressed-w4a16", "nf4-nested"])
@pytest.mark.parametrize("model", ["qwen2", "qwen3_moe", "mixtral"])
def test_other_families(model: str, name: str, tmp_path: Path) -> None:
    form = FORMATS[name]
    if name == "fp8-blocks":
        form = Format(partial(form.make, block=(32, 32)), {**form.config, "weight_block_size": [32, 32]})
    check(model, form, tmp_path)


@pytest.mark.parametrize("name", ["fp8-blocks-deepseek-v4", "mxfp4-deepseek-v4"])
def test_the_forms_of_deepseek_v4(name: str, tmp_path: Path) -> None:
    found = check("deepseek_v4", FORMATS[name], tmp_path)
    assert {item.coding for item in found.spec.encoded} == {"fp4" if "fp4" in name else "scaled"}


@pytest.mark.parametrize(
    ("side_file", "name"),
    [
        ("quantize_config.json", "gptq-8"), ("quant_config.json", "awq"), ("hf_quant_config.json", "modelopt-nvfp4"),
    ],
)  # fmt: skip
def test_the_config_may_lie_beside(side_file: str, name: str, tmp_path: Path) -> None:
    found = check("llama", FORMATS[name], tmp_path, side_file=side_file)
    assert any(side_file in fact.evidence for fact in found.facts)


@pytest.mark.parametrize("quant", ["int8", "int4"])
@pytest.mark.parametrize("name", ["gptq-4", "fp8-blocks", "hqq-4"])
def test_re_encoded_weights_are_those_of_the_twin(quant: Quant, name: str, tmp_path: Path) -> None:
    quantised, twin = write_pair(CONFIGS["llama"], tmp_path, FORMATS[name])
    found = logits(load(inspect_checkpoint(quantised), quant))
    torch.testing.assert_close(found, logits(load(inspect_checkpoint(twin), quant)), rtol=0, atol=0.1)


def test_bfloat16_rounds_once(tmp_path: Path) -> None:
    quantised, twin = write_pair(CONFIGS["llama"], tmp_path, Format(partial(gptq, bits=4), FORMATS["gptq-4"].config))
    found, expected = (logits(load(inspect_checkpoint(path), dtype=torch.bfloat16)) for path in (quantised, twin))
    assert torch.equal(found, expected)
