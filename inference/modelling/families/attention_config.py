"""Build the spec of a grouped-query attention layer, and the sources of its parameters."""

from __future__ import annotations

from typing import Any

from inference.modelling.families.config import CheckpointView
from inference.modelling.families.decoder import norm_sources
from inference.modelling.families.head_sizes import HeadSizes
from inference.modelling.layer_parts import RopeSpec, prefixed
from inference.modelling.layer_specs import AttentionSpec
from inference.modelling.spec import Piece, Source, concatenated, tensor


def attention_spec(
    view: CheckpointView,
    layer: str,
    heads: HeadSizes,
    rope: RopeSpec | None,
    *,
    attention: str = "self_attn.",
    output: str = "o_proj",
    scale: float | None = None,
    **options: Any,
) -> AttentionSpec:
    """The spec of one layer; biases are there if their tensors are.

    Args:
        attention: The attention's part of the tensor names.
        output: Name of the projection behind it.
        scale: None: 1 / sqrt(head_dim).
        options: Further attributes of ``AttentionSpec``.
    """
    base = layer + attention
    return AttentionSpec(
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        scale=heads.head_dim**-0.5 if scale is None else scale,
        rope=rope,
        qkv_bias=any(f"{base}{name}.bias" in view.tensors for name in _projections(view, base)),
        o_bias=f"{base}{output}.bias" in view.tensors,
        **options,
    )


def attention_sources(
    view: CheckpointView,
    spec: AttentionSpec,
    layer: str,
    *,
    attention: str = "self_attn.",
    output: str = "o_proj",
    qk_norms: tuple[str, str] = ("q_norm", "k_norm"),
) -> dict[str, Source]:
    """Sources of an ``AttentionSpec``'s parameters: separate or fused projections."""
    base = layer + attention
    names = _projections(view, base)
    sources = {"qkv_proj.weight": concatenated(*(f"{base}{name}.weight" for name in names))}
    if spec.qkv_bias:
        sources["qkv_proj.bias"] = concatenated(*(f"{base}{name}.bias" for name in names))
    sources["o_proj.weight"] = tensor(f"{base}{output}.weight")
    if spec.o_bias:
        sources["o_proj.bias"] = tensor(f"{base}{output}.bias")
    if spec.has_sinks:
        sources["sinks"] = tensor(base + "sinks")
    if spec.qk_norm is not None:
        counts = (spec.num_heads, spec.num_kv_heads)
        for name, stored, count in zip(("q_norm", "k_norm"), qk_norms, counts, strict=True):
            each = f"{base}{stored}.norms.{{e}}.weight"
            if each.replace("{e}", "0") in view.tensors:
                sources[f"{name}.weight"] = Source((Piece(each),), count)
            else:
                sources |= prefixed(name, norm_sources(spec.qk_norm, base + stored))
    return sources


def _projections(view: CheckpointView, base: str) -> tuple[str, ...]:
    """The tensors that make up ``qkv_proj``: one, or three."""
    return ("qkv_proj",) if base + "qkv_proj.weight" in view.tensors else ("q_proj", "k_proj", "v_proj")
