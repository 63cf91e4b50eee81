"""Write LoRA adapters for the tiny checkpoint as PEFT does, without PEFT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SHAPES = {
    "self_attn.q_proj": (32, 32),
    "self_attn.k_proj": (16, 32),
    "self_attn.v_proj": (16, 32),
    "self_attn.o_proj": (32, 32),
    "mlp.gate_proj": (48, 32),
    "mlp.up_proj": (48, 32),
    "mlp.down_proj": (32, 48),
}


def factors(seed: int, *, rank: int = 4, layers: int = 2, amount: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(layers):
        for name, (outputs, inputs) in SHAPES.items():
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator) * inputs**-0.5
            tensors[f"{prefix}.lora_B.weight"] = amount * torch.randn(outputs, rank, generator=generator) * rank**-0.5
    return tensors


def write_adapter(
    directory: Path, seed: int = 0, *, tensors: dict[str, torch.Tensor] | None = None, rank: int = 4, **config: Any
) -> Path:
    """An adapter of all matrices of the layers."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file(factors(seed, rank=rank) if tensors is None else tensors, str(directory / "adapter_model.safetensors"))
    targets = [name.rpartition(".")[2] for name in SHAPES]
    content = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": targets, **config}
    (directory / "adapter_config.json").write_text(json.dumps(content))
    return directory
