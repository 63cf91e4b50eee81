"""gpt-oss as it is published: experts in MXFP4, which stay in their codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, GptOssForCausalLM

from inference.modelling.layers.moe import Experts
from inference.modelling.quantisation import Quant, coded_parameters
from inference.modelling.weights.loader import load_network
from models_registry.detection.inspection import inspect_checkpoint
from tests.inference.modelling.encodings.formats import mxfp4_experts
from tests.inference.modelling.harness import assert_matches_oracle
from tests.inference.modelling.huggingface import make_checkpoint

CONFIG = GptOssConfig(
    vocab_size=99, hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=6,
    layer_types=["sliding_attention", "full_attention"], max_position_embeddings=256,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, pad_token_id=None,
)  # fmt: skip


@pytest.fixture
def published(tmp_path: Path) -> tuple[Path, GptOssForCausalLM]:
    return published_checkpoint(CONFIG, tmp_path / "gpt-oss")


def published_checkpoint(model_config: GptOssConfig, directory: Path) -> tuple[Path, GptOssForCausalLM]:
    """A checkpoint with its experts in MXFP4, and transformers' model of the decoded values."""
    make_checkpoint(model_config, directory)
    path = directory / "model.safetensors"
    tensors, rng = load_file(path), np.random.default_rng(0)
    decoded = dict(tensors)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        made, values = mxfp4_experts(rng, experts, outputs, inputs)
        tensors |= {name + leaf: tensor for leaf, tensor in made.items()}
        decoded[name] = torch.from_numpy(values).transpose(1, 2).contiguous()
    save_file(tensors, path)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (directory / "config.json").write_text(json.dumps(config))
    model = GptOssForCausalLM._from_config(model_config, attn_implementation="eager").float().eval()
    model.load_state_dict(decoded)
    return directory, model


@pytest.mark.parametrize("quant", ["none", "auto"])
def test_the_published_files_give_the_logits_of_their_values(published: tuple, quant: Quant) -> None:
    directory, model = published
    found = inspect_checkpoint(directory)
    coded = coded_parameters(found.spec, quant)
    assert len(coded) == (4 if quant == "auto" else 0), coded.keys()
    network = load_network(found.spec, found.weight_paths, dtype=torch.float32, quant=quant, pack=True)
    stacks = [module.packed for module in network.modules() if isinstance(module, Experts)]
    assert all(all(packed.is_quantised for packed in stack.values()) == (quant == "auto") for stack in stacks if stack)
    assert all(stack.keys() == {"gate_up_proj", "down_proj"} for stack in stacks if quant == "auto")

    def oracle(tokens: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return model(tokens.unsqueeze(0), use_cache=False).logits[0].float()

    # Products in codes round their inputs to bfloat16.
    assert_matches_oracle(network, oracle, tolerance=1e-4 if quant == "none" else 0.1)
