"""MiniMax-M3, its text model: layers that see chosen blocks of keys, gates that are cut, a shared expert.

Source: transformers' ``minimax_m3_vl_text``, also for what config.json may leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inference.errors import TensorShapeMismatch
from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.checks import OTHER_PARTS, ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, HEADS, ROPE, Table, used
from inference.modelling.families.config_keys import Alias, Harmless, Members, Only
from inference.modelling.families.config_values import check_size, integer_with_evidence, number_with_evidence, rms_norm
from inference.modelling.families.decoder import decoder_spec, llama_layer, llama_parts, norm_sources, read_layers
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.grouped_moe import scaling_factor
from inference.modelling.families.head_sizes import HeadSizes, read_heads
from inference.modelling.families.headers import matrix_shape, vector_length
from inference.modelling.families.mixtral import EXPERT_NAMES
from inference.modelling.families.mlp_config import MLPNames, mlp_sources, mlp_spec
from inference.modelling.families.moe_config import (
    check_dense_layers,
    check_experts,
    check_routing,
    count_experts,
    moe_sources,
    shared_width,
)
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.text_part import around, text_part
from inference.modelling.families.windows import layer_types
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.indexer import BlockIndexerSpec
from inference.modelling.specs.layers import AttentionSpec, ChannelMixerSpec, MoESpec
from inference.modelling.specs.parts import NormSpec, RopeSpec, prefixed
from inference.modelling.specs.sources import Source, tensor

EARLY_KEYS = {
    "index_n_heads": "sparse_num_index_heads",
    "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size",
    "index_topk_blocks": "sparse_topk_blocks",
    "index_local_blocks": "sparse_local_block",
}
"""Keys to what early files call them, within ``sparse_attention_config``."""
MINIMAX_M3: Table = {
    **COMMON,
    **ROPE,
    **{key: rule for key, rule in HEADS.items() if key not in ("num_heads", "num_kv_heads")},
    **used(
        "intermediate_size", "rms_norm_eps", "num_local_experts", "num_experts_per_tok", "dense_intermediate_size",
        "shared_intermediate_size", "routed_scaling_factor", "swiglu_alpha", "swiglu_limit", "mlp_layer_types",
        "layer_types",
    ),
    **{key: Alias((f"sparse_attention_config.{early}",)) for key, early in EARLY_KEYS.items()},
    "sparse_attention_config": Members(used("sparse_attention_freq", *EARLY_KEYS.values())),
    "rotary_dim": Harmless("partial_rotary_factor says it"),
    "hidden_act": Only(("silu", "swigluoai"), "the gate is cut, with a slope of its own"),
}  # fmt: skip
CONFIG_KEYS: Mapping[str, Table] = {"minimax_m3_vl_text": MINIMAX_M3, "minimax_m3_vl": around(MINIMAX_M3)}

CONTEXT = 524288
THETA = 5_000_000.0
TYPES = ("minimax_m3_sparse", "full_attention")


def build_spec(view: CheckpointView) -> ModelSpec:
    view = text_part(view)
    layout = read_layout(view, default_max_position_embeddings=CONTEXT)
    norm = rms_norm(view, offset=1.0)
    heads = read_heads(view, layout.layer(0), default_head_dim=128)
    rope = read_rope(
        view,
        heads.head_dim,
        max_position_embeddings=layout.max_position_embeddings,
        default_theta=THETA,
        default_partial=1.0,
    )
    _check_types(view, layout)
    clamp = (
        number_with_evidence(view, "mlp.gate_alpha", ("swiglu_alpha",), 1.702, low=1e-6, high=1e6),
        number_with_evidence(view, "mlp.gate_limit", ("swiglu_limit",), 7.0, low=1e-6, high=1e6),
    )

    def read_layer(number: int) -> tuple[LayerSpec, dict[str, Source]]:
        layer = layout.layer(number)
        attention = _attention(view, layer, heads, rope, norm)
        channel, own = _channel(view, layer, clamp)
        return llama_layer(attention, channel, norm), llama_parts(
            layer, _attention_sources(view, attention, layer), own
        )

    layers, sources = read_layers(layout.num_layers, read_layer)
    ignored = (ROTARY_BUFFERS, OTHER_PARTS)
    return decoder_spec(view, layout, "minimax_m3_vl_text", layers, sources, norm, ignored=ignored)


def _check_types(view: CheckpointView, layout: DecoderLayout) -> None:
    """Compare the layers that choose blocks, and those with experts, with what config.json states.

    Raises:
        TensorShapeMismatch: They differ in a layer.
    """
    flags = view.config.integers("sparse_attention_config.sparse_attention_freq")
    early = tuple(TYPES[not flag] for flag in flags) if len(flags) == layout.num_layers else None
    types = layer_types(view, layout.num_layers, TYPES) or early
    for number, kind in enumerate(types or ()):
        name = _index_name(view, layout.layer(number), "q_proj.weight")
        if (kind == TYPES[0]) != (name in view.tensors):
            raise TensorShapeMismatch(
                f"config.json says layer {number} is {kind}, but {name} is "
                f"{'there' if name in view.tensors else 'missing'}; correct config.json.",
                param="layer_types",
            )
    kinds = view.config.strings("mlp_layer_types") or ("sparse",) * layout.num_layers
    if len(kinds) == layout.num_layers:
        router = f"{_moe_name(view, layout.layer(0), layout)}gate"
        check_dense_layers(view, layout, "mlp_layer_types", lambda at: kinds[at] == "sparse", router=router)


def _moe_name(view: CheckpointView, layer: str, layout: DecoderLayout | None = None) -> str:
    """How the files call a layer's experts; ``layout``: look for them in all layers."""
    layers = [layer] if layout is None else [layout.layer(number) for number in range(layout.num_layers)]
    is_early = any(f"{name}block_sparse_moe.gate.weight" in view.tensors for name in layers)
    return "block_sparse_moe." if is_early else "mlp."


def _index_name(view: CheckpointView, layer: str, leaf: str) -> str:
    """The file's name of a parameter of the indexer."""
    early = f"{layer}self_attn.index_{leaf}"
    return early if early in view.tensors else f"{layer}self_attn.indexer.{leaf}"


def _attention(view: CheckpointView, layer: str, heads: HeadSizes, rope: RopeSpec, norm: NormSpec) -> AttentionSpec:
    spec = attention_spec(view, layer, heads, rope, qk_norm=norm)
    name = _index_name(view, layer, "k_norm.weight")
    if name not in view.tensors:
        return spec
    width, query = vector_length(view.tensors, name), _index_name(view, layer, "q_proj.weight")
    count = matrix_shape(view.tensors, query)[0] // width
    sizes: dict[str, Any] = {"index_head_dim": width, "index_n_heads": count}
    for key, found in sizes.items():
        check_size(view, found, f"shape of {query}", key, f"sparse_attention_config.{EARLY_KEYS[key]}")
    if count != heads.num_kv_heads:
        raise TensorShapeMismatch(
            f"{query} has {count} heads, but there are {heads.num_kv_heads} key/value heads; each needs one.",
            param="index_n_heads",
        )
    indexer = BlockIndexerSpec(
        head_dim=width,
        block_size=_index_number(view, "index_block_size", 128),
        top_k=_index_number(view, "index_topk_blocks", 16),
        local_blocks=_index_number(view, "index_local_blocks", 1, low=0),
        norm=norm,
    )
    return replace(spec, block_indexer=indexer)


def _index_number(view: CheckpointView, key: str, default: int, *, low: int = 1) -> int:
    keys = (f"sparse_attention_config.{EARLY_KEYS[key]}", key)
    return integer_with_evidence(view, f"attention.{key}", keys, default, low=low)


def _attention_sources(view: CheckpointView, spec: AttentionSpec, layer: str) -> dict[str, Source]:
    sources = attention_sources(view, spec, layer)
    if spec.block_indexer is not None:
        own = {f"{name}.weight": tensor(_index_name(view, layer, f"{name}.weight")) for name in ("q_proj", "k_proj")}
        for name in ("q_norm", "k_norm"):
            stem = _index_name(view, layer, f"{name}.weight").removesuffix(".weight")
            own |= prefixed(name, norm_sources(spec.block_indexer.norm, stem))
        sources |= prefixed("indexer", own)
    return sources


def _channel(
    view: CheckpointView, layer: str, clamp: tuple[float, float]
) -> tuple[ChannelMixerSpec, dict[str, Source]]:
    """A layer's MLP or experts, and the sources of its parameters."""
    name = _moe_name(view, layer)
    base = layer + name
    if f"{base}gate.weight" not in view.tensors:
        mlp = replace(
            mlp_spec(view, layer, "silu", names=MLPNames(width_key="dense_intermediate_size")), gate_clamp=clamp
        )
        return mlp, mlp_sources(view, mlp, layer)
    down = "down_proj" if name == "mlp." else EXPERT_NAMES.down
    count, width = count_experts(view, f"{base}experts.", down=down)
    check_experts(view, f"{base}experts.", count, width, ("num_local_experts",), "intermediate_size")
    shared = shared_width(view, f"{base}shared_experts.")
    check_size(view, shared, f"width of {base}shared_experts", "shared_intermediate_size")
    moe = check_routing(
        MoESpec(
            num_experts=count,
            top_k=integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), 4),
            intermediate_size=width,
            scoring="sigmoid",
            routed_scaling_factor=scaling_factor(view, 2.0),
            correction_bias=True,
            gate_clamp=clamp,
            shared_intermediate_size=shared,
        )
    )
    at_router = f"{base}gate.e_score_correction_bias" in view.tensors
    bias = None if at_router else "e_score_correction_bias"
    own = moe_sources(view, moe, base, shared="shared_experts.", names=EXPERT_NAMES, correction_bias=bias)
    return moe, own
