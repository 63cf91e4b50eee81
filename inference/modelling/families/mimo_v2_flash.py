"""MiMo-V2-Flash: values narrower than keys, windowed layers with sinks and twice the key/value heads, grouped experts.

The published config.json has other keys than transformers writes: the same bases and widths, and lists of numbers in
place of types.

Source: transformers' ``mimo_v2_flash``, also for what config.json may leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inference.errors import CorruptCheckpoint, TensorShapeMismatch
from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import MAX_LAYERS, CheckpointView
from inference.modelling.families.config_key_tables import (
    COMMON,
    HEADS,
    QKV_BIAS,
    ROPE_MEMBERS,
    Table,
    aliases,
    harmless,
    used,
)
from inference.modelling.families.config_keys import Members, Only
from inference.modelling.families.config_values import activation, check_size, number_with_evidence, rms_norm
from inference.modelling.families.decoder import decoder_spec, drafting_layers, llama_layer, llama_parts, read_layers
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.grouped_moe import GROUPED_MOE, grouped_moe
from inference.modelling.families.head_sizes import HeadSizes
from inference.modelling.families.headers import matrix_shape
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.moe_config import check_dense_layers, has_router, moe_sources
from inference.modelling.families.rope_by_type import rope_of_type
from inference.modelling.families.windows import TYPES, layer_types, sliding_window
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import AttentionSpec, ChannelMixerSpec
from inference.modelling.specs.sources import Source, tensor

# transformers' defaults.
CONTEXT = 131072
WINDOW = 129
PATTERN = 6
"""The first layer and the last of every so many see all positions."""
SHARE = 0.334
THETA, LOCAL_THETA = 5_000_000.0, 10_000.0
ROPES = {
    "full_attention": {"rope_type": "default", "rope_theta": THETA, "partial_rotary_factor": SHARE},
    "sliding_attention": {"rope_type": "default", "rope_theta": LOCAL_THETA, "partial_rotary_factor": SHARE},
}
CONFIG_KEYS: Mapping[str, Table] = {
    "mimo_v2_flash": {
        **COMMON,
        **{key: rule for key, rule in HEADS.items() if key not in ("num_heads", "num_kv_heads")},
        **{key: rule for key, rule in GROUPED_MOE.items() if key not in ("n_shared_experts", "first_k_dense_replace")},
        **used(
            "intermediate_size", "hidden_act", "rms_norm_eps", "v_head_dim", "sliding_window", "sliding_window_size",
            "layer_types", "mlp_layer_types", "attention_value_scale", "num_nextn_predict_layers",
            "hybrid_layer_pattern", "moe_layer_freq",
        ),
        **aliases("rms_norm_eps", "layernorm_epsilon"),
        **harmless("the shapes say it", "swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim",
                   "swa_v_head_dim"),
        **harmless("no code reads it", "attention_chunk_size"),
        "rope_theta": Only((THETA,), "rope_parameters says it, where it is another"),
        "swa_rope_theta": Only((LOCAL_THETA,), "rope_parameters says it, where it is another"),
        "partial_rotary_factor": Only((SHARE,), "rope_parameters says it, where it is another"),
        "add_swa_attention_sink_bias": Only((True,), "windowed layers have sinks"),
        "add_full_attention_sink_bias": Only((False,), "full layers have no sinks"),
        "scoring_func": Only(("sigmoid",), "scores are sigmoids"),
        "topk_method": Only(("noaux_tc",), "experts are chosen with a bias"),
        "rope_parameters": Members(ROPE_MEMBERS),
        "attention_bias": QKV_BIAS,
    }
}  # fmt: skip


def build_spec(view: CheckpointView) -> ModelSpec:
    prediction = view.config.integer("num_nextn_predict_layers", default=0, low=0, high=MAX_LAYERS)
    layout = read_layout(view, default_max_position_embeddings=CONTEXT, prediction_layers=prediction)
    norm, act = rms_norm(view, "rms_norm_eps", "layernorm_epsilon", default=1e-5), activation(view)
    types = _types(view, layout.num_layers)
    _check_dense(view, layout)

    def read_layer(number: int) -> tuple[LayerSpec, dict[str, Source]]:
        layer = layout.layer(number)
        attention = _attention(view, layer, types[number], layout.max_position_embeddings)
        channel: ChannelMixerSpec
        if has_router(view, layer):
            channel = grouped_moe(view, layer, act)
            own = moe_sources(view, channel, f"{layer}mlp.")
        else:
            channel = mlp_spec(view, layer, act)
            own = mlp_sources(view, channel, layer)
        return llama_layer(attention, channel, norm), llama_parts(
            layer, _attention_sources(view, attention, layer), own
        )

    layers, sources = read_layers(layout.num_layers, read_layer)
    return decoder_spec(
        view, layout, "mimo_v2_flash", layers, sources, norm, ignored=(ROTARY_BUFFERS, *drafting_layers(layout))
    )


def _types(view: CheckpointView, count: int) -> tuple[str, ...]:
    """The type of each layer: by ``layer_types``, or by a list that has 1 for a windowed layer and 0 for a full one."""
    types = layer_types(view, count, TYPES)
    if types is not None:
        return types
    flags = _flags(view, "hybrid_layer_pattern", count)
    if flags is not None:
        return tuple(TYPES[not flag] for flag in flags)
    return tuple(TYPES[number == 0 or not (number + 1) % PATTERN] for number in range(count))


def _flags(view: CheckpointView, key: str, count: int) -> tuple[int, ...] | None:
    """A list of 0 or 1 for each layer; None: config.json has none.

    Raises:
        CorruptCheckpoint: It has other numbers, or another number of them.
    """
    flags = view.config.integers(key)
    if not flags:
        return None
    if len(flags) != count or not {0, 1}.issuperset(flags):
        raise CorruptCheckpoint(
            f"config.json: {key} has {len(flags)} entries; it must have 0 or 1 for each of {count} layers.", param=key
        )
    return flags


def _attention(view: CheckpointView, layer: str, kind: str, context: int) -> AttentionSpec:
    """Attention of a layer: heads by config.json, the width of keys and values by the shapes.

    Raises:
        TensorShapeMismatch: The projections don't have these heads.
    """
    is_windowed, base = kind == TYPES[0], f"{layer}self_attn."
    num_heads = view.config.integer("num_attention_heads", high=1 << 16)
    kv_heads = view.config.integer("num_key_value_heads", high=1 << 15) * (2 if is_windowed else 1)
    rows = {name: matrix_shape(view.tensors, f"{base}{name}_proj.weight")[0] for name in "qkv"}
    head_dim, value_dim = rows["q"] // num_heads, rows["v"] // kv_heads
    if rows != {"q": num_heads * head_dim, "k": kv_heads * head_dim, "v": kv_heads * value_dim} or num_heads % kv_heads:
        raise TensorShapeMismatch(
            f"{base[:-1]}: {rows['q']}, {rows['k']} and {rows['v']} rows of q, k and v don't fit {num_heads} heads and "
            f"{kv_heads} of keys and values ({kind}).",
            param=f"{base}q_proj.weight",
        )
    evidence = f"rows of {base}q_proj and v_proj"
    check_size(view, head_dim, evidence, "head_dim")
    check_size(view, value_dim, evidence, "v_head_dim")
    factor = number_with_evidence(view, "attention.value_scale", ("attention_value_scale",), 0.707, low=1e-6, high=1e6)
    if "attention_value_scale" in view.config.values and view.config.get("attention_value_scale") is None:
        factor = 1.0
    rope = rope_of_type(view, kind, head_dim, ROPES, max_position_embeddings=context, default_partial=SHARE)
    spec = attention_spec(view, layer, HeadSizes(num_heads, kv_heads, head_dim), rope)
    return replace(
        spec,
        v_head_dim=None if value_dim == head_dim else value_dim,
        output_multiplier=factor,
        sliding_window=_window(view) if is_windowed else None,
        has_sinks=is_windowed,
    )


def _window(view: CheckpointView) -> int | None:
    """The window with the query's own position, which ``sliding_window_size`` doesn't count."""
    before = view.config.optional_integer("sliding_window_size", low=0)
    return sliding_window(view, default=WINDOW) if before is None else before + 1


def _attention_sources(view: CheckpointView, spec: AttentionSpec, layer: str) -> dict[str, Source]:
    sources = attention_sources(view, spec, layer)
    early = f"{layer}self_attn.attention_sink_bias"
    return sources | ({"sinks": tensor(early)} if early in view.tensors else {})


def _check_dense(view: CheckpointView, layout: DecoderLayout) -> None:
    count = layout.num_layers
    flags = _flags(view, "moe_layer_freq", count) or (0, *(1,) * (count - 1))
    kinds = view.config.strings("mlp_layer_types") or tuple("sparse" if flag else "dense" for flag in flags)
    if len(kinds) == count:
        check_dense_layers(view, layout, "mlp_layer_types", lambda number: kinds[number] == "sparse")
