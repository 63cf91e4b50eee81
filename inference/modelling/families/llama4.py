"""Llama 4, its text model: attention within chunks, every fourth layer without positions, experts with scaled inputs.

Source: transformers' ``llama4_text``, also for what config.json may leave out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inference.errors import CorruptCheckpoint
from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.attention_decoder import PRE_NORMS
from inference.modelling.families.checks import OTHER_PARTS, ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import WITH_ROPE, Table, used
from inference.modelling.families.config_values import (
    activation,
    check_size,
    integer_with_evidence,
    number_with_evidence,
    rms_norm,
)
from inference.modelling.families.decoder import decoder_spec, norm_sources, read_layers
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.headers import stack_shape
from inference.modelling.families.mlp_config import MLPNames, mlp_sources, mlp_spec
from inference.modelling.families.moe_config import (
    check_dense_layers,
    check_routing,
    count_experts,
    has_router,
    moe_sources,
    shared_width,
)
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.text_part import around, text_part
from inference.modelling.families.windows import layer_types
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import ChannelMixerSpec, MoESpec
from inference.modelling.specs.parts import NormSpec, RopeSpec, prefixed
from inference.modelling.specs.sources import Piece, Source

LLAMA4: Table = {
    **WITH_ROPE,
    **used(
        "intermediate_size_mlp", "moe_layers", "interleave_moe_layer_step", "use_qk_norm", "no_rope_layers",
        "no_rope_layer_interval", "attention_chunk_size", "layer_types", "attn_temperature_tuning", "floor_scale",
        "attn_scale", "num_local_experts", "num_experts_per_tok",
    ),
}  # fmt: skip
CONFIG_KEYS: Mapping[str, Table] = {"llama4_text": LLAMA4, "llama4": around(LLAMA4)}

TYPES = ("chunked_attention", "full_attention")
CONTEXT = 131072
CHUNK = 8192
THETA = 500_000.0
ROUTER = "feed_forward.router"


def build_spec(view: CheckpointView) -> ModelSpec:
    view = text_part(view)
    layout = read_layout(view, default_max_position_embeddings=CONTEXT)
    norm = rms_norm(view, default=1e-5)
    heads = read_heads(view, layout.layer(0), default_head_dim=128)
    rope = read_rope(
        view,
        heads.head_dim,
        max_position_embeddings=layout.max_position_embeddings,
        default_theta=THETA,
        interleaved=True,
    )
    act = activation(view)
    rotates = rotating_layers(view, layout.num_layers)
    types = layer_types(view, layout.num_layers, TYPES) or tuple(TYPES[not flag] for flag in rotates)
    chunk = _chunk_size(view)
    _check_experts(view, layout)

    def read_layer(number: int) -> tuple[LayerSpec, dict[str, Source]]:
        layer = layout.layer(number)
        options = _rotating_options(view, norm, rope) if rotates[number] else _growth(view)
        attention = attention_spec(
            view,
            layer,
            heads,
            rope if rotates[number] else None,
            chunk_size=chunk if types[number] == TYPES[0] else None,
            **options,
        )
        channel, own = _channel(view, layer, act)
        own = prefixed("channel_mixer", own) | prefixed("token_mixer", attention_sources(view, attention, layer))
        for ours, theirs in PRE_NORMS.items():
            own |= prefixed(ours, norm_sources(norm, layer + theirs))
        return LayerSpec(token_mixer=attention, token_norm=norm, channel_mixer=channel, channel_norm=norm), own

    layers, sources = read_layers(layout.num_layers, read_layer)
    ignored = (ROTARY_BUFFERS, OTHER_PARTS)
    return decoder_spec(view, layout, "llama4_text", layers, sources, norm, ignored=ignored)


def rotating_layers(view: CheckpointView, count: int) -> Sequence[bool]:
    """Whether each layer has positions: by ``no_rope_layers``, whose 1 says that it has, or all but every so many.

    Raises:
        CorruptCheckpoint: ``no_rope_layers`` has fewer entries than there are layers.
    """
    flags = view.config.integers("no_rope_layers")
    if not flags:
        interval = view.config.integer("no_rope_layer_interval", default=4)
        return [(number + 1) % interval != 0 for number in range(count)]
    if len(flags) < count:
        raise CorruptCheckpoint(
            f"config.json: no_rope_layers has {len(flags)} entries for {count} layers.", param="no_rope_layers"
        )
    return [bool(flag) for flag in flags[:count]]


def _chunk_size(view: CheckpointView) -> int | None:
    """Positions in a chunk; null: there are no chunks."""
    if view.config.values.get("attention_chunk_size", CHUNK) is None:
        return None
    return integer_with_evidence(view, "attention.chunk_size", ("attention_chunk_size",), CHUNK)


def _rotating_options(view: CheckpointView, norm: NormSpec, rope: RopeSpec) -> dict[str, Any]:
    """The norm of queries and keys in layers with positions.

    transformers norms them behind the rotation. A rotation keeps the length of a head, so that it can be done before,
    unless cosines and sines have a factor.
    """
    if not view.config.boolean("use_qk_norm", default=True):
        return {}
    scaling = rope.scaling
    has_factor = scaling is not None and scaling.kind in ("yarn", "longrope") and scaling.attention_factor != 1.0
    return {"qk_norm": NormSpec(eps=norm.eps, weightless=True), "qk_norm_after_rope": has_factor}


def _growth(view: CheckpointView) -> dict[str, Any]:
    """How queries grow in layers without positions."""
    if not view.config.boolean("attn_temperature_tuning", default=True):
        return {}
    slope = number_with_evidence(view, "attention.query_growth", ("attn_scale",), 0.1, low=0.0, high=1e6)
    length = integer_with_evidence(view, "attention.query_growth_length", ("floor_scale",), 8192)
    return {"query_growth": (slope, length), "query_growth_start": 1}


def _check_experts(view: CheckpointView, layout: DecoderLayout) -> None:
    """Compare config.json's layers with experts with those that have a router."""
    listed = view.config.get("moe_layers")
    step = view.config.integer("interleave_moe_layer_step", default=1, low=0)
    stated = set(view.config.integers("moe_layers"))
    if listed is None and step:
        stated = set(range(step - 1, layout.num_layers, step))
    check_dense_layers(view, layout, "moe_layers, interleave_moe_layer_step", stated.__contains__, router=ROUTER)


def _channel(view: CheckpointView, layer: str, act: str) -> tuple[ChannelMixerSpec, dict[str, Source]]:
    """A layer's MLP or experts, and the sources of its parameters."""
    base = f"{layer}feed_forward."
    if not has_router(view, layer, ROUTER):
        mlp = mlp_spec(view, layer, act, mlp="feed_forward.", names=MLPNames(width_key="intermediate_size_mlp"))
        return mlp, mlp_sources(view, mlp, layer, mlp="feed_forward.")
    is_stacked = f"{base}experts.down_proj" in view.tensors
    if is_stacked:
        count, width, _ = stack_shape(view.tensors, f"{base}experts.down_proj")  # inputs first, unlike elsewhere
    else:
        count, width = count_experts(view, f"{base}experts.")
    check_size(view, count, f"experts under {base[:-1]}", "num_local_experts")
    check_size(view, width, f"width of an expert under {base[:-1]}", "intermediate_size")
    moe = check_routing(
        MoESpec(
            num_experts=count,
            top_k=integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), 1),
            intermediate_size=width,
            activation=act,
            scoring="sigmoid",
            normalise_top_k=False,
            scales_input=True,
            shared_intermediate_size=shared_width(view, f"{base}shared_expert."),
        )
    )
    sources = moe_sources(view, moe, base, router="router", shared="shared_expert.")
    if is_stacked:
        for leaf in ("gate_up_proj", "down_proj"):
            sources[f"experts.{leaf}"] = Source((Piece(f"{base}experts.{leaf}", transpose=True),))
    return moe, sources
