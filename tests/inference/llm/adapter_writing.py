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


def write_xlora(
    directory: Path, seed: int = 0, *, count: int = 2, is_old: bool = False, outputs: int | None = None, **config: Any
) -> Path:
    """An X-LoRA of adapters of all matrices, as PEFT lays it out, or as mistral.rs reads it."""
    names = [f"adapter_{number}" for number in range(count)]
    for number, name in enumerate(names):
        write_adapter(directory / "adapters" / name, 10 * seed + number)
    content = {
        "hidden_size": 32,
        "adapters": {name: f"/somewhere/else/{name}" for name in names},
        "xlora_depth": 1,
        **config,
    }
    generator = torch.Generator().manual_seed(seed)
    wide = count * (2 * len(SHAPES) if content.get("layerwise_scalings") else 1)
    matrix = torch.randn(outputs or wide, 32, generator=generator) * 0.3
    if is_old:
        save_file({"last.weight": matrix}, str(directory / "xlora_classifier.safetensors"))
        (directory / "xlora_config.json").write_text(json.dumps(content))
    else:
        name = "base_model.internal_xlora_classifier.layers.0"
        tensors = {f"{name}.weight": matrix, f"{name}.bias": torch.randn(len(matrix), generator=generator)}
        save_file(tensors, str(directory / "adapter_model.safetensors"))
        (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "XLORA", **content}))
    return directory
