"""Tiny checkpoints: raw headers byte by byte, and oxidizr models with every tensor that the trainer writes."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.modelling.families.config import CheckpointConfig, Confidence, Facts
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import NormSpec
from inference.values.tokenizer_spec import TokenizerSpec
from models_registry.detection.directory import resolve
from models_registry.detection.inspection import Inspection
from models_registry.detection.vocabulary import choose_tokenizer

Shapes = dict[str, tuple[int, ...]]


def framed(header: bytes | str, data: bytes = b"") -> bytes:
    """A safetensors file with this header."""
    raw = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(raw)) + raw + data


def entry(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    """One tensor's object in a header."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def write_tensors(path: Path, shapes: Mapping[str, tuple[int, ...]], *, dtype: str = "float32", seed: int = 0) -> None:
    """A file of random tensors."""
    generator = np.random.default_rng(seed)
    save_file(
        {name: generator.standard_normal(shape).astype(dtype) for name, shape in shapes.items()},
        path,
        metadata={"format": "pt"},
    )


def copy_bare_demo(place: Path) -> Path:
    """The demo model without its tokenizer."""
    place.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(PREBUILT_DIRECTORY / name, place / name)
    return place


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


# --- oxidizr -----------------------------------------------------------------------------------


def gqa_mlp(n: int, h: int, *, heads: int, kv: int, f: int) -> Shapes:
    base, d = f"layers.{n}.", h // heads
    return (
        norms(n, h)
        | {
            f"{base}self_attn.q_proj.weight": (h, h),
            f"{base}self_attn.k_proj.weight": (kv * d, h),
            f"{base}self_attn.v_proj.weight": (kv * d, h),
            f"{base}self_attn.o_proj.weight": (h, h),
        }
        | mlp(base + "mlp.", h, f)
    )


def mla(n: int, h: int, *, heads: int, kv_latent: int, q_latent: int, d_rope: int) -> Shapes:
    base, width = f"layers.{n}.self_attn.", h // heads * heads
    return norms(n, h) | {
        base + "w_dkv.weight": (kv_latent, h),
        base + "w_dq.weight": (q_latent, h),
        base + "w_uq.weight": (width, q_latent),
        base + "w_uk.weight": (width, kv_latent),
        base + "w_uv.weight": (width, kv_latent),
        base + "w_qr.weight": (heads * d_rope, h),
        base + "w_kr.weight": (d_rope, h),
        base + "o_proj.weight": (h, h),
    }


def moe(n: int, h: int, *, experts: int, f: int, shared: bool = True) -> Shapes:
    base = f"layers.{n}.moe."
    shapes: Shapes = {base + "router.gate.weight": (experts, h)}
    for expert in range(experts):
        shapes |= mlp(f"{base}experts.{expert}.", h, f)
    return shapes | (mlp(base + "shared_expert.", h, f) if shared else {})


def mamba2(n: int, h: int, *, H: int, P: int, S: int, G: int = 1, K: int = 4) -> Shapes:
    base, inner = f"layers.{n}.mamba2.", H * P
    conv = inner + 2 * G * S
    return {
        base + "norm.weight": (h,),
        base + "norm.bias": (h,),
        base + "mixer.in_proj.weight": (inner + conv + H, h),
        base + "mixer.in_proj.bias": (inner + conv + H,),
        base + "mixer.conv1d.weight": (conv, 1, K),
        base + "mixer.conv1d.bias": (conv,),
        base + "mixer.dt_bias": (H,),
        base + "mixer.A_log": (H,),
        base + "mixer.D": (H,),
        base + "mixer.norm.weight": (inner,),
        base + "mixer.out_proj.weight": (h, inner),
        base + "mixer.out_proj.bias": (h,),
    }


def mamba3(
    n: int, h: int, *, H: int, P: int, S: int, G: int = 1, complex_rope: bool = True, conv: bool = False, R: int = 0
) -> Shapes:
    base, inner = f"layers.{n}.mamba3.", H * P
    mixer, width = base + "mixer.", H * P + 2 * G * S
    shapes: Shapes = {
        base + "norm.weight": (h,),
        base + "norm.bias": (h,),
        mixer + "in_proj.weight": (inner + width + H, h),
        mixer + "in_proj.bias": (inner + width + H,),
        mixer + "out_proj.weight": (h, inner),
        mixer + "out_proj.bias": (h,),
        mixer + "lambda_proj.weight": (H, h),
        mixer + "lambda_proj.bias": (H,),
        mixer + "b_bias": (H, S),
        mixer + "c_bias": (H, S),
        mixer + "dt_bias": (H,),
        mixer + "A_log": (H,),
        mixer + "D": (H,),
        mixer + "bc_norm.weight": (S,),
        mixer + "norm.weight": (inner,),
    }
    if complex_rope:
        shapes |= {mixer + "theta_proj.weight": (H * S // 2, h), mixer + "theta_proj.bias": (H * S // 2,)}
    if conv:
        shapes |= {mixer + "conv1d.weight": (width, 1, 4), mixer + "conv1d.bias": (width,)}
    if R:
        shapes |= {
            mixer + "mimo_x_up.weight": (P * R, P),
            mixer + "mimo_x_up.bias": (P * R,),
            mixer + "mimo_x_down.weight": (P, P * R),
            mixer + "mimo_x_down.bias": (P,),
        }
    return shapes


def mamba1(n: int, h: int) -> Shapes:
    base = f"layers.{n}."
    return {
        base + "norm.weight": (h,),
        base + "mamba.in_proj.weight": (4 * h, h),
        base + "mamba.conv1d.weight": (2 * h, 1, 4),
        base + "mamba.conv1d.bias": (2 * h,),
        base + "mamba.x_proj.weight": (2 * h + 32, 2 * h),
        base + "mamba.dt_proj.weight": (2 * h, 2 * h),
        base + "mamba.dt_proj.bias": (2 * h,),
        base + "mamba.a_log": (2 * h, 16),
        base + "mamba.d": (2 * h,),
        base + "mamba.out_proj.weight": (h, 2 * h),
    }


def norms(n: int, h: int) -> Shapes:
    return {f"layers.{n}.input_layernorm.weight": (h,), f"layers.{n}.post_attention_layernorm.weight": (h,)}


def mlp(base: str, h: int, f: int) -> Shapes:
    return {base + "gate_proj.weight": (f, h), base + "up_proj.weight": (f, h), base + "down_proj.weight": (h, f)}


def model(h: int, rows: int, *layers: Shapes) -> Shapes:
    """Layers with embedding, final norm and head around them."""
    shapes: Shapes = {"embed_tokens.weight": (rows, h)}
    for layer in layers:
        shapes |= layer
    return shapes | {"norm.weight": (h,), "lm_head.weight": (rows, h)}


EXAMPLES: dict[str, dict[str, Any]] = {
    name: {"hidden_size": h, "num_layers": layers, "num_attention_heads": heads, "vocab_size": rows, "max_seq_len": seq,
           "rms_norm_eps": 1e-5, **rest}
    for name, h, layers, heads, rows, seq, rest in (
        ("nano", 384, 8, 6, 128354, 512,
         {"mamba_layers": [0, 1, 2, 4, 5, 6], "mamba2_num_heads": 48, "mamba2_head_dim": 16, "mamba2_state_size": 64,
          "kv_latent_dim": 192, "q_latent_dim": 192, "d_rope": 16, "num_experts": 4, "experts_per_tok": 2,
          "intermediate_size": 1536}),
        ("nano-start", 128, 4, 4, 100315, 64,
         {"mamba_layers": [0, 1, 2], "mamba2_num_heads": 16, "mamba2_head_dim": 16, "mamba2_state_size": 32,
          "kv_latent_dim": 64, "q_latent_dim": 64, "d_rope": 8, "num_experts": 2, "experts_per_tok": 1,
          "intermediate_size": 512}),
        ("nano_mamba2", 384, 8, 6, 128354, 512,
         {"mamba_layers": list(range(8)), "mamba2_num_heads": 48, "mamba2_head_dim": 16, "mamba2_state_size": 64}),
        ("nano_mamba3", 384, 8, 6, 128354, 512,
         {"mamba_layers": list(range(8)), "mamba2_num_heads": 48, "mamba2_head_dim": 16, "mamba2_state_size": 64,
          "mamba3_enabled": True, "mamba3_complex_rope": True}),
        ("nano_mamba3_mimo", 384, 8, 6, 128354, 512,
         {"mamba_layers": list(range(8)), "mamba2_num_heads": 48, "mamba2_head_dim": 16, "mamba2_state_size": 64,
          "mamba3_enabled": True, "mamba3_complex_rope": True, "mamba3_mimo_rank": 4}),
        ("nano_mamba3_hybrid", 384, 8, 6, 128354, 512,
         {"mamba_layers": [0, 1, 2, 4, 5, 6], "mamba2_num_heads": 48, "mamba2_head_dim": 16, "mamba2_state_size": 64,
          "mamba3_enabled": True, "kv_latent_dim": 192, "q_latent_dim": 192, "d_rope": 16, "num_experts": 4,
          "experts_per_tok": 2, "intermediate_size": 1536}),
    )
}  # fmt: skip
"""config.json of the trainer's shipped example configurations (checkpoint sheet, section 1.3)."""


def shapes_of(config: Mapping[str, Any], *, kv: int = 2) -> Shapes:
    """Every tensor that the trainer writes for a config."""
    h, heads = config["hidden_size"], config["num_attention_heads"]
    f = config.get("intermediate_size", 4 * h)
    layers = []
    for n in range(config["num_layers"]):
        if n in config.get("mamba_layers", ()):
            if "mamba2_num_heads" not in config:
                layers.append(mamba1(n, h))
                continue
            sizes = {"H": config["mamba2_num_heads"], "P": config["mamba2_head_dim"], "S": config["mamba2_state_size"]}
            if config.get("mamba3_enabled"):
                layers.append(mamba3(n, h, R=config.get("mamba3_mimo_rank", 0), **sizes))
            else:
                layers.append(mamba2(n, h, **sizes))
        elif "kv_latent_dim" in config:
            latent = mla(
                n, h, heads=heads, kv_latent=config["kv_latent_dim"], q_latent=config["q_latent_dim"],
                d_rope=config["d_rope"],
            )  # fmt: skip
            layers.append(latent | moe(n, h, experts=config["num_experts"], f=f))
        else:
            layers.append(gqa_mlp(n, h, heads=heads, kv=kv, f=f))
    return model(h, config["vocab_size"], *layers)


def write_header_only(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str = "F32") -> None:
    """A legal file with a hole for its data: real sizes at no cost."""
    bits = {"F32": 32, "BF16": 16, "F16": 16}[dtype]
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + int(np.prod(shape, dtype=np.int64)) * bits // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    raw = framed(json.dumps(header))
    with path.open("wb") as file:
        file.write(raw)
        file.truncate(len(raw) + end)


def write_checkpoint(
    directory: Path, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any] | None = None, **options: Any
) -> Path:
    """A directory with ``model.safetensors`` and, if given, ``config.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    write_tensors(directory / "model.safetensors", shapes, **options)
    if config is not None:
        write_json(directory / "config.json", config)
    return directory


def small_hybrid() -> tuple[Shapes, dict[str, Any]]:
    """All attention and Mamba-2 kinds at toy size, with a matching config."""
    h = 16
    shapes = model(
        h,
        64,
        mamba2(0, h, H=4, P=8, S=4),
        mla(1, h, heads=2, kv_latent=8, q_latent=6, d_rope=4) | moe(1, h, experts=3, f=8),
        gqa_mlp(2, h, heads=2, kv=1, f=24),
    )
    config = {
        "hidden_size": h, "num_layers": 3, "vocab_size": 64, "num_attention_heads": 2, "mamba_layers": [0],
        "mamba2_num_heads": 4, "mamba2_state_size": 4, "experts_per_tok": 2, "max_seq_len": 128, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    return shapes, config


LLAMA_CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24, "vocab_size": 64,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip

UNKNOWN_TYPE = LLAMA_CONFIG | {"model_type": "brandnew", "architectures": ["BrandnewForCausalLM"]}
"""A type and class that no family has."""


def llama_shapes() -> Shapes:
    shapes = model(16, 64, *(gqa_mlp(n, 16, heads=4, kv=2, f=24) for n in range(2)))
    return {name if name.startswith("lm_head") else f"model.{name}": shape for name, shape in shapes.items()}


def fact(found: Inspection, name: str) -> Any:
    return next(item for item in found.facts if item.name == name)


def choose(
    directory: Path,
    rows: int,
    *,
    config: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
    format_: str = "oxidizr",
) -> tuple[TokenizerSpec, Facts]:
    """The tokenizer of a checkpoint with an embedding of ``rows`` rows, and the facts found on the way."""
    directory.mkdir(exist_ok=True)
    (directory / "model.safetensors").touch()
    spec = ModelSpec(format_, "oxidizr", 8, rows, 64, (), NormSpec())  # type: ignore[arg-type]
    facts = Facts(overrides or {})
    return choose_tokenizer(resolve(directory), spec, CheckpointConfig(config or {}), facts), facts


def confidence(facts: Facts) -> Confidence:
    """How sure the choice of the vocabulary is."""
    return next(fact.confidence for fact in facts.facts if fact.name == "vocabulary")
