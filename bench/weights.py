"""Random, seeded checkpoints of known shapes in HuggingFace form, so that peers load the very same files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

SEED = 20


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes of a llama-shaped model with a tied head."""

    name: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    vocab_size: int

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden_size // self.num_heads


LLAMA_135M = LlamaShape("llama-135m", 576, 30, 9, 3, 1536, 49152)
LLAMA_TINY = LlamaShape("llama-tiny", 64, 2, 4, 2, 128, 512)
SHAPES = {shape.name: shape for shape in (LLAMA_135M, LLAMA_TINY)}


def make_llama(shape: LlamaShape, directory: Path, max_len: int = 8192) -> Path:
    """Write the checkpoint in bfloat16 if it isn't there yet, and return its directory."""
    target = directory / shape.name
    if (target / "config.json").exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(SEED)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * columns**-0.5).to(torch.bfloat16)

    width, kv_width = shape.hidden_size, shape.num_kv_heads * shape.head_dim
    tensors = {
        "model.embed_tokens.weight": matrix(shape.vocab_size, width),
        "model.norm.weight": torch.ones(width, dtype=torch.bfloat16),
    }
    for number in range(shape.num_layers):
        prefix = f"model.layers.{number}."
        tensors |= {
            f"{prefix}input_layernorm.weight": torch.ones(width, dtype=torch.bfloat16),
            f"{prefix}post_attention_layernorm.weight": torch.ones(width, dtype=torch.bfloat16),
            f"{prefix}self_attn.q_proj.weight": matrix(width, width),
            f"{prefix}self_attn.k_proj.weight": matrix(kv_width, width),
            f"{prefix}self_attn.v_proj.weight": matrix(kv_width, width),
            f"{prefix}self_attn.o_proj.weight": matrix(width, width),
            f"{prefix}mlp.gate_proj.weight": matrix(shape.intermediate_size, width),
            f"{prefix}mlp.up_proj.weight": matrix(shape.intermediate_size, width),
            f"{prefix}mlp.down_proj.weight": matrix(width, shape.intermediate_size),
        }
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": max_len,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": None,
    }
    (target / "config.json").write_text(json.dumps(config, indent=2))
    return target
