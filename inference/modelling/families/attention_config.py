"""Build the spec of a grouped-query attention layer, and the sources of its parameters."""

from __future__ import annotations

from inference.modelling.families.config import CheckpointView
from inference.modelling.families.head_sizes import HeadSizes
from inference.modelling.layer_parts import NormSpec, RopeSpec
from inference.modelling.layer_specs import AttentionSpec
from inference.modelling.spec import Source, concatenated, tensor


def attention_spec(
    view: CheckpointView,
    layer: str,
    heads: HeadSizes,
    rope: RopeSpec | None,
    *,
    attention: str = "self_attn.",
    scale: float | None = None,
    qk_norm: NormSpec | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
) -> AttentionSpec:
    """The spec of one layer; biases are there if their tensors are. ``scale`` None: 1 / sqrt(head_dim)."""
    base = layer + attention
    return AttentionSpec(
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        scale=heads.head_dim**-0.5 if scale is None else scale,
        rope=rope,
        qkv_bias=any(f"{base}{name}.bias" in view.tensors for name in _projections(view, base)),
        o_bias=f"{base}o_proj.bias" in view.tensors,
        qk_norm=qk_norm,
        sliding_window=sliding_window,
        softcap=softcap,
    )


def attention_sources(
    view: CheckpointView, spec: AttentionSpec, layer: str, *, attention: str = "self_attn."
) -> dict[str, Source]:
    """Sources of an ``AttentionSpec``'s parameters: separate or fused projections."""
    base = layer + attention
    names = _projections(view, base)
    sources = {"qkv_proj.weight": concatenated(*(f"{base}{name}.weight" for name in names))}
    if spec.qkv_bias:
        sources["qkv_proj.bias"] = concatenated(*(f"{base}{name}.bias" for name in names))
    sources["o_proj.weight"] = tensor(base + "o_proj.weight")
    if spec.o_bias:
        sources["o_proj.bias"] = tensor(base + "o_proj.bias")
    if spec.qk_norm is not None and not spec.qk_norm.weightless:
        sources["q_norm.weight"] = tensor(base + "q_norm.weight")
        sources["k_norm.weight"] = tensor(base + "k_norm.weight")
    return sources


def _projections(view: CheckpointView, base: str) -> tuple[str, ...]:
    """The tensors that make up ``qkv_proj``: one, or three."""
    return ("qkv_proj",) if base + "qkv_proj.weight" in view.tensors else ("q_proj", "k_proj", "v_proj")
