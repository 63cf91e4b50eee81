"""Checkpoints as names and shapes of tensors, without files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.modelling.families.config import (
    CheckpointConfig,
    CheckpointView,
    Confidence,
    Facts,
    TensorInfo,
    TensorTable,
)

HIDDEN, VOCAB, WIDTH = 16, 40, 24
Shapes = dict[str, tuple[int, ...]]


def view_of(
    shapes: Mapping[str, tuple[int, ...]],
    config: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    dtype: str = "F32",
) -> CheckpointView:
    """The view that a family reads."""
    tensors = {name: TensorInfo(dtype, shape) for name, shape in shapes.items()}
    return CheckpointView(CheckpointConfig(config or {}), TensorTable(tensors), Facts(overrides or {}))


def fact(view: CheckpointView, name: str) -> tuple[Any, Confidence]:
    """Value and confidence of a fact."""
    found = next(item for item in view.facts.facts if item.name == name)
    return found.value, found.confidence


def outer(final_norm: str = "norm", prefix: str = "model.", embedding: str = "embed_tokens") -> Shapes:
    """Embedding, final norm and head."""
    return {
        f"{prefix}{embedding}.weight": (VOCAB, HIDDEN),
        f"{prefix}{final_norm}.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
    }


def attention(base: str, *, q_rows: int = HIDDEN, kv_rows: int = 8) -> Shapes:
    """Separate projections."""
    return {
        f"{base}q_proj.weight": (q_rows, HIDDEN),
        f"{base}k_proj.weight": (kv_rows, HIDDEN),
        f"{base}v_proj.weight": (kv_rows, HIDDEN),
        f"{base}o_proj.weight": (HIDDEN, q_rows),
    }


def mlp(base: str, width: int = WIDTH, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> Shapes:
    """A gated MLP."""
    gate, up, down = names
    return {
        f"{base}{gate}.weight": (width, HIDDEN),
        f"{base}{up}.weight": (width, HIDDEN),
        f"{base}{down}.weight": (HIDDEN, width),
    }


def experts(base: str, count: int = 4, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> Shapes:
    """Experts one by one."""
    return {name: shape for number in range(count) for name, shape in mlp(f"{base}{number}.", 8, names).items()}


def norms(layer: str, *names: str) -> Shapes:
    """Vectors of the hidden size."""
    return {f"{layer}{name}.weight": (HIDDEN,) for name in names or ("input_layernorm", "post_attention_layernorm")}


def mamba1(base: str) -> Shapes:
    """A Mamba-1 mixer with the inner norms of Jamba: I 32, S 4, K 4, rank 2."""
    return {
        f"{base}in_proj.weight": (64, HIDDEN),
        f"{base}conv1d.weight": (32, 1, 4),
        f"{base}conv1d.bias": (32,),
        f"{base}x_proj.weight": (2 + 2 * 4, 32),
        f"{base}dt_proj.weight": (32, 2),
        f"{base}dt_proj.bias": (32,),
        f"{base}A_log": (32, 4),
        f"{base}D": (32,),
        f"{base}out_proj.weight": (HIDDEN, 32),
        f"{base}dt_layernorm.weight": (2,),
        f"{base}b_layernorm.weight": (4,),
        f"{base}c_layernorm.weight": (4,),
    }


def mamba2(base: str) -> Shapes:
    """A Mamba-2 mixer: I 32, H 4, one group of S 8, K 4."""
    return {
        f"{base}in_proj.weight": (2 * 32 + 2 * 8 + 4, HIDDEN),
        f"{base}conv1d.weight": (32 + 2 * 8, 1, 4),
        f"{base}conv1d.bias": (32 + 2 * 8,),
        f"{base}A_log": (4,),
        f"{base}D": (4,),
        f"{base}dt_bias": (4,),
        f"{base}norm.weight": (32,),
        f"{base}out_proj.weight": (HIDDEN, 32),
    }


def llama(num_layers: int = 2) -> Shapes:
    """A llama of four heads of width 4 and two key/value heads."""
    shapes = outer()
    for number in range(num_layers):
        layer = f"model.layers.{number}."
        shapes |= norms(layer) | attention(f"{layer}self_attn.") | mlp(f"{layer}mlp.")
    return shapes
