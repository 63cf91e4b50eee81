"""Reading an X-LoRA: what can't be scaled token by token is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from inference.errors import UnsupportedFormat
from inference.modelling.adapters.network import NetworkAdapters
from tests.inference.modelling.adapters.harness import make_xlora, plan_directory
from tests.inference.modelling.adapters.test_network import LLAMA
from tests.inference.modelling.harness import load_directory
from tests.inference.modelling.huggingface import make_checkpoint

MODULE = "model.layers.0.self_attn.o_proj"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("leaf", "what"), [("bias", "the bias of layers.0"), ("weight", "replaces layers.0")])
def test_a_changed_tensor_of_the_base_is_refused(tmp_path: Path, dtype: torch.dtype, leaf: str, what: str) -> None:
    config = LlamaConfig(**LLAMA, attention_bias=True, tie_word_embeddings=False)
    base, _ = make_checkpoint(config, tmp_path / "base")
    make_xlora(base, tmp_path / "x", [{"target_modules": ["o_proj"], "r": 2}])
    with torch.inference_mode():
        network = load_directory(base).to(dtype)
    adapters = NetworkAdapters(network, 1)
    (stored,) = base.glob("*.safetensors")
    value = load_file(stored)[f"{MODULE}.{leaf}"].float()
    (path,) = (tmp_path / "x" / "0").glob("*.safetensors")
    tensors = load_file(path)
    for change, is_refused in ((0.0, False), (1.0, True)):
        save_file({**tensors, f"base_model.model.{MODULE}.base_layer.{leaf}": value + change}, str(path))
        plan = plan_directory(network, base, tmp_path / "x")
        if not is_refused:
            adapters.load(*plan)
            continue
        with pytest.raises(UnsupportedFormat, match=what):
            adapters.load(*plan)
