"""DeepSeek V2 and V3, Kimi K2 to K2.6, Youtu-LLM, MiniCPM 3: latent attention, fine-grained experts with shared ones.

Sources: https://arxiv.org/abs/2405.04434 (V2), https://arxiv.org/abs/2412.19437 (V3); the config keys
are those of the published files and of transformers' ``deepseek_v2`` and ``deepseek_v3``; Kimi K2 is DeepSeek V3
under another name (its card: https://huggingface.co/moonshotai/Kimi-K2-Instruct). Kimi K2.5 and Kimi-VL see
pictures; their text model, which is one of DeepSeek V3, is read (transformers' ``kimi_k25``). Youtu-LLM and
MiniCPM 3 have the attention without experts (transformers' ``youtu`` and ``minicpm3``); GLM-4.7-Flash has both
(``glm4_moe_lite``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.checks import ROTARY_BUFFERS, IgnoredTensors
from inference.modelling.families.config import MAX_LAYERS, CheckpointView
from inference.modelling.families.config_key_tables import (
    COMMON,
    COUNTED_EXPERTS,
    MLP_BIAS,
    ROPE,
    Table,
    harmless,
    used,
)
from inference.modelling.families.config_keys import Biases, Harmless, Only
from inference.modelling.families.config_values import (
    activation,
    integer_with_evidence,
    number_with_evidence,
    rms_norm,
)
from inference.modelling.families.decoder import decoder_spec, drafting_layers, llama_layer, llama_parts, read_layers
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.grouped_moe import expert_sizes, grouped_moe, scaling_factor
from inference.modelling.families.latent_attention import indexer_spec, mla_sources, mla_spec, query_name
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.moe_config import (
    check_dense_layers,
    check_routing,
    has_router,
    moe_sources,
)
from inference.modelling.families.prediction_head import HeadLayer, names_behind_layers, prediction_head
from inference.modelling.families.text_part import around, text_part
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.gated_streams import GatedStreamsSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import ChannelMixerSpec, MoESpec
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.sources import Source

DENSE: Table = {
    **COMMON,
    **ROPE,
    **used(
        "num_attention_heads", "intermediate_size", "hidden_act", "rms_norm_eps", "q_lora_rank", "kv_lora_rank",
        "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim",
    ),
    "num_key_value_heads": Harmless("latent attention has no key/value heads"),
    "head_dim": Harmless("qk_rope_head_dim, qk_nope_head_dim and v_head_dim say it"),
    "embedding_initializer_range": Harmless("training only"),
    "attention_bias": Biases(r"self_attn\.(?:q_a_proj|kv_a_proj_with_mqa|o_proj)"),
    "mlp_bias": MLP_BIAS,
}  # fmt: skip
DEEPSEEK: Table = {
    **DENSE,
    **COUNTED_EXPERTS,
    **used(
        "n_shared_experts", "moe_intermediate_size", "first_k_dense_replace", "moe_layer_freq", "n_group", "topk_group",
        "topk_method", "scoring_func", "routed_scaling_factor", "num_nextn_predict_layers",
    ),
}  # fmt: skip
THIRD: Table = {
    **DEEPSEEK,
    **used("norm_topk_prob", "rope_interleave", "num_mtp_layers"),
}
SPARSE: Table = {
    **DEEPSEEK,
    **used("norm_topk_prob", "mlp_layer_types", "index_topk", "index_head_dim", "index_n_heads"),
    "layer_types": Only(("indexed_attention", "deepseek_sparse_attention"), "every layer chooses its keys"),
}
KIMI_VISION: Table = {
    **around(THIRD),
    **harmless(
        "pictures aren't read",
        "media_placeholder_token_id", "use_unified_vision_chunk", "video_placeholder", "projection_hidden_size",
        "projection_layer_norm_eps", "ignore_index",
    ),
}  # fmt: skip

CONFIG_KEYS: Mapping[str, Table] = {
    "deepseek_v2": {
        **DEEPSEEK,
        "norm_topk_prob": Only((False,), "the published code and transformers differ in what it does"),
        "rope_interleave": Only((True,), "adjacent pairs are rotated"),
    },
    "deepseek_v3": THIRD,
    "kimi_k2": THIRD,
    "kimi_k25": KIMI_VISION,
    "kimi_vl": KIMI_VISION,
    "deepseek_v32": SPARSE,
    "glm4_moe_lite": {**DEEPSEEK, **used("norm_topk_prob", "rope_interleave", "mlp_layer_types")},
    "youtu": {**DENSE, **used("rope_interleave")},
    "minicpm3": {**DENSE, **used("scale_emb", "scale_depth", "dim_model_base")},
}  # fmt: skip

INDEXED = ("deepseek_v32", "axk2", "glm_moe_dsa", "hy_v4")
"""Types whose layers choose the keys that they see."""

DRAFTING = ("deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa")
"""Types whose files have a layer for drafting, unless config.json says otherwise."""
LARGE_EPS = ("minicpm3", "glm4_moe_lite", "glm_moe_dsa", "hy_v4")
ROUTING: Mapping[str, Mapping[str, Any]] = {
    "glm4_moe_lite": {"top_k": 4, "factor": 1.8},
    "axk2": {"factor": 2.5},
    "glm_moe_dsa": {"factor": 2.5},
    "hy_v4": {"factor": 2.827},
    "mistral4": {"top_k": 4, "scoring": "softmax"},
    "mistral_large4": {"top_k": 4, "scoring": "softmax"},
}
GROUPS: Mapping[str, Any] = {"groups": 8, "top_k_groups": 4, "factor": 2.5}
"""What config.json may leave out of the experts' routing, by type; of types that aren't in ``ROUTING``: ``GROUPS``."""


def build_spec(view: CheckpointView) -> ModelSpec:
    view = text_part(view)
    return latent_decoder(view, view.config.string("model_type", default="deepseek_v3"))


@dataclass(frozen=True, slots=True)
class Variant:
    """How a type differs from DeepSeek's layers.

    Attributes:
        attention: The attention of a layer, by its number, from the one that the sizes of layer 0 give.
        layer: A layer and its sources, from DeepSeek's and the start of its tensor names.
        ignored: Tensors that are left out.
        streams, outer: Several residual streams, and the sources of their end; None: there is one.
    """

    attention: Callable[[int, MLASpec], MLASpec] = lambda number, spec: spec
    layer: Callable[[str, HeadLayer], HeadLayer] = lambda base, layer: layer
    ignored: tuple[IgnoredTensors, ...] = ()
    streams: GatedStreamsSpec | None = None
    outer: Mapping[str, Source] = field(default_factory=dict)


PLAIN = Variant()


def latent_decoder(
    view: CheckpointView,
    model_type: str,
    make_variant: Callable[[DecoderLayout, NormSpec], Variant] = lambda layout, norm: PLAIN,
) -> ModelSpec:
    """A decoder of latent attention; ``make_variant`` says how it differs from DeepSeek's."""
    prediction = view.config.integer(
        "num_nextn_predict_layers",
        "num_mtp_layers",
        default=1 if model_type in DRAFTING else 0,
        low=0,
        high=MAX_LAYERS,
    )
    layout = read_layout(view, prediction_layers=prediction, tied_by_default=model_type in ("youtu", "minicpm3"))
    norm = rms_norm(view, default=1e-5 if model_type in LARGE_EPS else 1e-6)
    variant = make_variant(layout, norm)
    multipliers = _multipliers(view, model_type, layout)
    act = activation(view)
    mla = _attention(view, model_type, layout)
    check_expert_layers(view, layout)

    def read_layer(number: int) -> HeadLayer:
        layer = layout.layer(number)
        mixer, channel = channel_mixer(view, model_type, layer, act)
        own = variant.attention(number, mla)
        spec = replace(llama_layer(own, mixer, norm), residual_multiplier=multipliers["residual"])
        token = mla_sources(own, f"{layer}self_attn.", query=query_name(view, layer))
        return variant.layer(layer, (spec, llama_parts(layer, token, channel)))

    layers, sources = read_layers(layout.num_layers, read_layer)
    head = prediction_head(
        view,
        layout,
        names_behind_layers(layout),
        norm,
        lambda: [read_layer(layout.num_layers)],
        feeds_normed_rows=False,
    )
    ignored = (ROTARY_BUFFERS, *drafting_layers(layout), *variant.ignored)
    return decoder_spec(
        view,
        layout,
        model_type,
        layers,
        {**sources, **variant.outer},
        norm,
        ignored=ignored,
        streams=variant.streams,
        embedding_multiplier=multipliers["embedding"],
        logits_multiplier=multipliers["logits"],
        prediction_head=head,
    )


def _attention(view: CheckpointView, model_type: str, layout: DecoderLayout) -> MLASpec:
    """The attention of layer 0."""
    interleaved = model_type not in ("minicpm3", "hy_v4") and (
        model_type == "deepseek_v2" or view.config.boolean("rope_interleave", default=True)
    )
    base = f"{layout.layer(0)}self_attn."
    spec = mla_spec(
        view,
        base,
        layout.max_position_embeddings,
        interleaved=interleaved,
        query=query_name(view, layout.layer(0)),
        joins_latents=model_type == "axk2",
    )
    return replace(spec, indexer=indexer_spec(view, base, spec)) if model_type in INDEXED else spec


def _multipliers(view: CheckpointView, model_type: str, layout: DecoderLayout) -> Mapping[str, float]:
    """MiniCPM's factors of the embedding, the residual stream and the logits; 1 for the others."""
    if model_type != "minicpm3":
        return {"embedding": 1.0, "residual": 1.0, "logits": 1.0}
    embedding = number_with_evidence(view, "embedding_multiplier", ("scale_emb",), 12.0, low=1e-6, high=1e6)
    depth = number_with_evidence(view, "scale_depth", ("scale_depth",), 1.4, low=1e-6, high=1e6)
    base = integer_with_evidence(view, "dim_model_base", ("dim_model_base",), 256)
    return {
        "embedding": embedding,
        "residual": depth / math.sqrt(layout.num_layers),
        "logits": base / layout.hidden_size,
    }


def channel_mixer(
    view: CheckpointView, model_type: str, layer: str, act: str
) -> tuple[ChannelMixerSpec, dict[str, Source]]:
    """A layer's experts or MLP, and the sources of its parameters."""
    if not has_router(view, layer):
        mlp = mlp_spec(view, layer, act)
        return mlp, mlp_sources(view, mlp, layer)
    moe = _moe_spec(view, model_type, layer, act)
    return moe, moe_sources(view, moe, f"{layer}mlp.", shared="shared_experts.")


def _moe_spec(view: CheckpointView, model_type: str, layer: str, act: str) -> MoESpec:
    if model_type == "deepseek_v2":
        return softmax_experts(view, f"{layer}mlp.", act)
    _expect(view, "scoring_func", "sigmoid", ("sigmoid",))
    _expect(view, "topk_method", "noaux_tc", ("noaux_tc",))
    return grouped_moe(view, layer, act, **ROUTING.get(model_type, GROUPS))


def softmax_experts(view: CheckpointView, base: str, act: str) -> MoESpec:
    """DeepSeek V2's experts under ``base``, whose scores aren't divided by their sum."""
    config = view.config
    count, width, width_of_shared = expert_sizes(view, base, "n_shared_experts")
    _expect(view, "scoring_func", "softmax", ("softmax",))
    method = _expect(view, "topk_method", "greedy", ("greedy", "group_limited_greedy"))
    grouped = method == "group_limited_greedy"
    return check_routing(
        MoESpec(
            num_experts=count,
            top_k=integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), 6),
            intermediate_size=width,
            activation=act,
            normalise_top_k=False,
            routed_scaling_factor=scaling_factor(view, 1.0),
            num_expert_groups=config.integer("n_group", default=1) if grouped else 1,
            top_k_groups=config.integer("topk_group", default=1) if grouped else 1,
            shared_intermediate_size=width_of_shared,
        )
    )


def _expect(view: CheckpointView, key: str, default: str, known: tuple[str, ...]) -> str:
    """A routing rule by name.

    Raises:
        UnsupportedArchitecture: Not one that this version of the family has.
    """
    value = view.config.string(key, default=default)
    if value not in known:
        raise UnsupportedArchitecture(
            f"config.json: {key} {value[:60]!r} is not supported here; supported are {', '.join(known)}.", param=key
        )
    return value


def check_expert_layers(view: CheckpointView, layout: DecoderLayout) -> None:
    """Compare the layers with experts that config.json states with those of the tensors."""
    config = view.config
    kinds = config.strings("mlp_layer_types")
    if len(kinds) == layout.num_layers:
        check_dense_layers(view, layout, "mlp_layer_types", lambda number: kinds[number] == "sparse")
    elif "first_k_dense_replace" in config:
        first = config.integer("first_k_dense_replace", low=0)
        step = config.integer("moe_layer_freq", default=1)
        key = "first_k_dense_replace, moe_layer_freq"
        check_dense_layers(view, layout, key, lambda number: number >= first and number % step == 0)
