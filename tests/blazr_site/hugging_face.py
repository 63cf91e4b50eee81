"""A tiny Llama with a tokenizer, as HuggingFace's trainer saves it; transformers is its reference."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from inference.demo.paths import PREBUILT_DIRECTORY

VOCAB_SIZE = 4096
"""More than the demo's tokenizer has, which the checkpoint borrows."""


def llama(place: Path, **config: Any) -> Path:
    """Write the checkpoint; returns its directory."""
    import transformers

    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    }  # fmt: skip
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes | config))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0)  # so that predictions differ
    model.save_pretrained(place)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(PREBUILT_DIRECTORY / name, place / name)
    return place
