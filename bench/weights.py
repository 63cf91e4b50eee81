"""Random, seeded checkpoints of known shapes in the form that peers load as well: config, safetensors, tokenizer.

Llama shapes and oxidizr's ``nano`` are written tensor by tensor; Mamba-2 and the hybrid come from transformers'
own classes, whose start values of decay and step size are sensible ones.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bench.published_shapes import PUBLISHED
from bench.tokenizer_files import write_tokenizer

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
        return self.hidden_size // self.num_heads


LLAMA_1B = LlamaShape("llama-1b", 2048, 16, 32, 8, 8192, 128256)
LLAMA_135M = LlamaShape("llama-135m", 576, 30, 9, 3, 1536, 49152)
LLAMA_TINY = LlamaShape("llama-tiny", 64, 2, 4, 2, 128, 512)
SHAPES = {shape.name: shape for shape in (LLAMA_1B, LLAMA_135M, LLAMA_TINY)}


def make_llama(shape: LlamaShape, directory: Path) -> Path:
    """Write the checkpoint in bfloat16 if it isn't there yet, and return its directory."""
    return _make_once(directory / shape.name, lambda target: _write_llama(shape, target))


def make_checkpoint(name: str, directory: Path) -> Path:
    """Write the named checkpoint (``CHECKPOINTS``) if it isn't there yet, and return its directory."""
    return _make_once(directory / name, CHECKPOINTS[name])


def _make_once(target: Path, write: Callable[[Path], None]) -> Path:
    """A directory that exists is complete: it gets its name once everything is in it."""
    if (target / "tokenizer_config.json").exists() or (target / "oxidizr").exists():
        return target
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    partial.mkdir(parents=True)
    write(partial)
    partial.rename(target)
    return target


def _matrix(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    return (torch.randn(rows, columns, generator=generator) * columns**-0.5).to(torch.bfloat16)


def _write_llama(shape: LlamaShape, target: Path) -> None:
    generator = torch.Generator().manual_seed(SEED)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return _matrix(rows, columns, generator)

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
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": shape.vocab_size - 1,
    }
    (target / "config.json").write_text(json.dumps(config, indent=2))
    write_tokenizer(target, shape.vocab_size)


def _write_transformers(config: Any, target: Path) -> None:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.dim() >= 2 and "conv1d" not in name:
                value.copy_(torch.randn(value.shape, generator=generator) * value.shape[-1] ** -0.5)
    model.to(torch.bfloat16).save_pretrained(target, save_original_format=True)
    content = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(_as_published(content), indent=2))
    write_tokenizer(target, config.vocab_size)


def _as_published(config: dict[str, Any]) -> dict[str, Any]:
    """The names that the files on the hub have, which peers know; transformers renames them as it reads them."""
    published = dict(config)
    published["torch_dtype"] = published.pop("dtype", "bfloat16")
    published.pop("time_step_limit", None)  # none, which JSON has no number for
    if published["model_type"] == "granitemoehybrid":
        kinds = {"linear_attention": "mamba", "full_attention": "attention"}
        published["layer_types"] = [kinds[kind] for kind in published["layer_types"]]
    if published["model_type"] != "qwen3_5_text":  # whose files say it as transformers does
        rope = published.pop("rope_parameters", None) or {}
        if "sliding_attention" in rope:
            published["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
            rope = rope["full_attention"]
        if "rope_theta" in rope:
            published["rope_theta"] = rope["rope_theta"]
    return published


def _write_mamba2(target: Path) -> None:
    """The sizes of the published mamba2-130m."""
    from transformers import Mamba2Config

    vocab_size = 50288
    config = Mamba2Config(
        hidden_size=768,
        num_hidden_layers=24,
        num_heads=24,
        head_dim=64,
        state_size=128,
        expand=2,
        n_groups=1,
        conv_kernel=4,
        chunk_size=256,
        vocab_size=vocab_size,
        tie_word_embeddings=True,
        rms_norm=True,
        residual_in_fp32=True,
        bos_token_id=None,
        eos_token_id=vocab_size - 1,
        pad_token_id=vocab_size - 1,
    )
    config.architectures = ["Mamba2ForCausalLM"]
    _write_transformers(config, target)


def _write_hybrid(target: Path) -> None:
    """A small GraniteMoeHybrid: 9 Mamba-2 and 3 attention layers, each with 8 routed experts and a shared one."""
    from transformers import GraniteMoeHybridConfig

    vocab_size = 50304
    kinds = ["attention" if number % 4 == 3 else "mamba" for number in range(12)]
    config = GraniteMoeHybridConfig(
        vocab_size=vocab_size,
        hidden_size=768,
        intermediate_size=384,
        shared_intermediate_size=768,
        num_hidden_layers=12,
        layer_types=kinds,
        num_attention_heads=12,
        num_key_value_heads=4,
        num_local_experts=8,
        num_experts_per_tok=2,
        mamba_n_heads=24,
        mamba_d_head=64,
        mamba_d_state=128,
        mamba_n_groups=1,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_chunk_size=256,
        position_embedding_type="nope",
        embedding_multiplier=12.0,
        attention_multiplier=0.015625,
        residual_multiplier=0.22,
        logits_scaling=8.0,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=vocab_size - 1,
        pad_token_id=vocab_size - 1,
    )
    config.architectures = ["GraniteMoeHybridForCausalLM"]
    _write_transformers(config, target)


def _write_published(make_config: Callable[[], Any], target: Path) -> None:
    config = make_config()
    config.bos_token_id = None
    config.eos_token_id = config.pad_token_id = config.vocab_size - 1
    _write_transformers(config, target)


def _write_nano(target: Path) -> None:
    """oxidizr's example ``nano``: Mamba-2 in layers 0, 1, 2, 4, 5, 6, latent attention with experts in 3 and 7."""
    generator = torch.Generator().manual_seed(SEED)
    hidden, layers, heads, vocab_size, latent, rope = 384, 8, 6, 128354, 192, 16
    ssm_heads, ssm_dim, state, experts, wide = 48, 16, 64, 4, 1536
    inner = ssm_heads * ssm_dim
    channels = inner + 2 * state

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return _matrix(rows, columns, generator)

    def ones(count: int) -> torch.Tensor:
        return torch.ones(count, dtype=torch.bfloat16)

    def zeros(count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.bfloat16)

    tensors = {"embed_tokens.weight": matrix(vocab_size, hidden), "lm_head.weight": matrix(vocab_size, hidden)}
    tensors["norm.weight"] = ones(hidden)
    mamba_layers = [number for number in range(layers) if number % 4 != 3]
    for number in range(layers):
        prefix = f"layers.{number}."
        if number in mamba_layers:
            mixer = f"{prefix}mamba2.mixer."
            tensors |= {
                f"{prefix}mamba2.norm.weight": ones(hidden),
                f"{prefix}mamba2.norm.bias": zeros(hidden),
                f"{mixer}in_proj.weight": matrix(inner + channels + ssm_heads, hidden),
                f"{mixer}in_proj.bias": zeros(inner + channels + ssm_heads),
                f"{mixer}conv1d.weight": (torch.randn(channels, 1, 4, generator=generator) / 2).to(torch.bfloat16),
                f"{mixer}conv1d.bias": zeros(channels),
                f"{mixer}dt_bias": torch.linspace(-4.6, -2.2, ssm_heads).to(torch.bfloat16),
                f"{mixer}A_log": torch.linspace(0.0, 2.7, ssm_heads).to(torch.bfloat16),
                f"{mixer}D": ones(ssm_heads),
                f"{mixer}norm.weight": ones(inner),
                f"{mixer}out_proj.weight": matrix(hidden, inner),
                f"{mixer}out_proj.bias": zeros(hidden),
            }
            continue
        attention = f"{prefix}self_attn."
        tensors |= {
            f"{prefix}input_layernorm.weight": ones(hidden),
            f"{prefix}post_attention_layernorm.weight": ones(hidden),
            f"{attention}w_dkv.weight": matrix(latent, hidden),
            f"{attention}w_dq.weight": matrix(latent, hidden),
            f"{attention}w_uq.weight": matrix(hidden, latent),
            f"{attention}w_uk.weight": matrix(hidden, latent),
            f"{attention}w_uv.weight": matrix(hidden, latent),
            f"{attention}w_qr.weight": matrix(heads * rope, hidden),
            f"{attention}w_kr.weight": matrix(rope, hidden),
            f"{attention}o_proj.weight": matrix(hidden, hidden),
            f"{prefix}moe.router.gate.weight": matrix(experts, hidden),
        }
        for part in [*(f"experts.{expert}" for expert in range(experts)), "shared_expert"]:
            tensors |= {
                f"{prefix}moe.{part}.gate_proj.weight": matrix(wide, hidden),
                f"{prefix}moe.{part}.up_proj.weight": matrix(wide, hidden),
                f"{prefix}moe.{part}.down_proj.weight": matrix(hidden, wide),
            }
    save_file(tensors, target / "model.safetensors")
    config = {
        "hidden_size": hidden,
        "num_layers": layers,
        "vocab_size": vocab_size,
        "mamba2_num_heads": ssm_heads,
        "mamba2_head_dim": ssm_dim,
        "mamba2_state_size": state,
        "mamba2_chunk_size": 64,
        "mamba2_expand": 2,
        "mamba2_conv_kernel": 4,
        "num_attention_heads": heads,
        "kv_latent_dim": latent,
        "q_latent_dim": latent,
        "d_rope": rope,
        "num_experts": experts,
        "experts_per_tok": 2,
        "shared_expert_enabled": True,
        "intermediate_size": wide,
        "mamba_layers": mamba_layers,
        "rms_norm_eps": 1e-5,
        "max_seq_len": 8192,  # the example has 512; no tensor depends on it
    }
    (target / "config.json").write_text(json.dumps(config, indent=2))
    (target / "oxidizr").write_text("complete\n")


CHECKPOINTS: dict[str, Callable[[Path], None]] = {
    **{name: (lambda target, shape=shape: _write_llama(shape, target)) for name, shape in SHAPES.items()},
    "mamba2": _write_mamba2,
    "hybrid": _write_hybrid,
    "nano": _write_nano,
    **{name: (lambda target, make=make: _write_published(make, target)) for name, make in PUBLISHED.items()},
}
"""What each name of ``--models`` writes."""
