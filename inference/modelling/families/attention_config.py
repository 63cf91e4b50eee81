"""Build the spec of a grouped-query attention layer, and the sources of its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from inference.modelling.families.config import CheckpointView
from inference.modelling.families.decoder import norm_sources
from inference.modelling.families.head_sizes import HeadSizes
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.specs.parts import RopeSpec, prefixed
from inference.modelling.specs.sources import Piece, Source, concatenated, tensor


@dataclass(frozen=True, slots=True)
class Fused:
    """How a family's files hold q, k and v in one tensor.

    Attributes:
        name: Of the tensor, within the attention.
        by_head: One key/value head after the other, each with its queries before it (GPT-NeoX, Falcon); else all of
            q, then k, then v.
        groups: So many groups of heads, one after the other; 0: as ``by_head`` says.
        order: Of the parts in a group.
        is_transposed: Inputs first, as in GPT-2; so is the projection behind the attention.
    """

    name: str
    by_head: bool = False
    groups: int = 0
    order: Literal["qkv", "qvk"] = "qkv"
    is_transposed: bool = False

    def source(self, name: str, spec: AttentionSpec) -> Source:
        """The rows of the tensor ``name``, in our order."""
        groups = self.groups or (spec.num_kv_heads if self.by_head else 0)
        if groups:
            queries, keys = (count * spec.head_dim // groups for count in (spec.num_heads, spec.num_kv_heads))
            ends = (0, queries, queries + keys, queries + 2 * keys)
            parts = dict(zip(self.order, pairwise(ends), strict=True))
            return Source(tuple(Piece(name, per_group=(ends[3], *parts[part])) for part in "qkv"))
        return Source((Piece(name, transpose=self.is_transposed and name.endswith(".weight")),))


def attention_spec(
    view: CheckpointView,
    layer: str,
    heads: HeadSizes,
    rope: RopeSpec | None,
    *,
    attention: str = "self_attn.",
    output: str = "o_proj",
    fused: Fused | None = None,
    scale: float | None = None,
    **options: Any,
) -> AttentionSpec:
    """The spec of one layer; biases are there if their tensors are.

    Args:
        attention: The attention's part of the tensor names.
        output: Name of the projection behind it.
        fused: How q, k and v lie in one tensor, where they do in a family's own way.
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
        qkv_bias=any(f"{base}{name}.bias" in view.tensors for name in _projections(view, base, fused)),
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
    fused: Fused | None = None,
    qk_norms: tuple[str, str] = ("q_norm", "k_norm"),
    sinks: str = "sinks",
    gate: str = "gate_proj",
) -> dict[str, Source]:
    """Sources of an ``AttentionSpec``'s parameters: separate or fused projections."""
    base = layer + attention
    sources: dict[str, Source] = {}
    names = _projections(view, base, fused) if spec.kv_source is None else ("q_proj",)
    leaves = ("weight", "bias") if spec.qkv_bias else ("weight",)
    for leaf in leaves:
        stored = [f"{base}{name}.{leaf}" for name in names]
        sources[f"qkv_proj.{leaf}"] = concatenated(*stored) if fused is None else fused.source(stored[0], spec)
    is_transposed = fused is not None and fused.is_transposed
    sources["o_proj.weight"] = Source((Piece(f"{base}{output}.weight", transpose=is_transposed),))
    if spec.o_bias:
        sources["o_proj.bias"] = tensor(f"{base}{output}.bias")
    if spec.has_sinks:
        sources["sinks"] = tensor(base + sinks)
    if spec.output_gate:
        sources["gate_proj.weight"] = tensor(f"{base}{gate}.weight")
    if spec.qk_norm is not None:
        for (name, count), own in zip(spec.normed_heads(), qk_norms, strict=False):
            each = f"{base}{own}.norms.{{e}}.weight"
            if each.replace("{e}", "0") in view.tensors:
                sources[f"{name}.weight"] = Source((Piece(each),), count)
            else:
                sources |= prefixed(name, norm_sources(spec.qk_norm, base + own))
    return sources


def _projections(view: CheckpointView, base: str, fused: Fused | None) -> tuple[str, ...]:
    """The tensors that make up ``qkv_proj``: one, or three."""
    if fused is not None:
        return (fused.name,)
    return ("qkv_proj",) if base + "qkv_proj.weight" in view.tensors else ("q_proj", "k_proj", "v_proj")
