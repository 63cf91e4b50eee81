"""Command A+: Command R7B's layers with experts, the first layers excepted, whose mean with a shared one is taken.

Source: transformers' ``cohere2_moe``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder, ChannelMixer, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, EXPERTS, HEADS, QKVO_BIAS, ROPE, Table, used
from inference.modelling.families.config_values import (
    activation,
    check_size,
    layer_norm,
    number_with_evidence,
    rms_norm,
)
from inference.modelling.families.mlp_config import MLPNames
from inference.modelling.families.moe_config import check_dense_layers, check_layer_kinds, has_router, routed_experts
from inference.modelling.families.windows import TYPES, full_every, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import ModelSpec

LOGIT_SCALE = 0.0625
NAMES = LayerNames(
    norms={"token_norm": "input_layernorm"}, mlp_matrices=MLPNames(width_key="prefix_dense_intermediate_size")
)
CONFIG_KEYS: Mapping[str, Table] = {
    "cohere2_moe": {
        **COMMON,
        **HEADS,
        **ROPE,
        **EXPERTS,
        **used("intermediate_size", "hidden_act", "layer_norm_eps", "rms_norm_eps", "logit_scale"),
        **used("layer_types", "mlp_layer_types", "first_k_dense_replace", "prefix_dense_intermediate_size"),
        **used("sliding_window", "sliding_window_pattern", "prefix_dense_sliding_window_pattern"),
        **used("num_shared_experts", "shared_expert_combination_strategy", "expert_selection_fn", "norm_topk_prob"),
        "attention_bias": QKVO_BIAS,
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(view, NAMES, tied_by_default=True, default_max_position_embeddings=8192)
    config, layout, act = view.config, decoder.layout, activation(view)
    dense = config.integer("first_k_dense_replace", default=0, low=0)
    if "first_k_dense_replace" in config and "mlp_layer_types" not in config:
        check_dense_layers(view, layout, "first_k_dense_replace", lambda number: number >= dense)
    check_layer_kinds(view, layout)
    types = layer_types(view, layout.num_layers, TYPES) or _types(
        view, min(dense, layout.num_layers), layout.num_layers
    )
    rope, prefix = decoder.rope(interleaved=True), config.integer("prefix_dense_sliding_window_pattern", default=1)
    layers = [layout.layer(number) for number in range(layout.num_layers)]
    has_rope = [
        kind == TYPES[0] or (prefix == 1 and not has_router(view, layer))
        for kind, layer in zip(types, layers, strict=True)
    ]
    has_rms = config.get("rms_norm_eps") is not None
    return decoder.spec(
        "cohere2_moe",
        norm=rms_norm(view) if has_rms else layer_norm(view, has_bias=False),
        ropes=[rope if rotates else None for rotates in has_rope],
        windows=window_of_each_layer(types, sliding_window(view, default=4096)),
        act=act,
        experts=lambda layer: _experts(view, layer, act),
        is_parallel=True,
        logits_multiplier=number_with_evidence(
            view, "logits_multiplier", ("logit_scale",), LOGIT_SCALE, low=1e-9, high=1e9
        ),
    )


def _types(view: CheckpointView, dense: int, count: int) -> tuple[str, ...]:
    """Where config.json has no ``layer_types``: layers without experts follow a pattern of their own."""
    prefix = view.config.integer("prefix_dense_sliding_window_pattern", default=1)
    return full_every(prefix, dense) + full_every(
        view.config.integer("sliding_window_pattern", default=4), count - dense
    )


def _experts(view: CheckpointView, layer: str, act: str) -> ChannelMixer:
    """Of as many as are chosen, the shared experts get the same share: the mean of both is taken, or the sum.

    Raises:
        CorruptCheckpoint: Another way to combine them, or to score.
    """
    config = view.config
    scoring = config.string("expert_selection_fn", default="softmax", choices=("softmax", "sigmoid"))
    combined = config.string("shared_expert_combination_strategy", default="average", choices=("average", "sum"))
    has_shared = config.integer("num_shared_experts", default=0, low=0) > 0
    share = 0.5 if has_shared and combined == "average" else 1.0
    spec, sources = routed_experts(
        view,
        f"{layer}mlp.",
        act,
        top_k=2,
        width_key="intermediate_size",
        shared="shared_experts." if has_shared else "",
        scoring=scoring,
        # The softmax is over the chosen experts.
        normalise_top_k=scoring == "softmax" or config.boolean("norm_topk_prob", default=True),
        routed_scaling_factor=share,
        shared_multiplier=share,
    )
    check_size(
        view,
        spec.shared_intermediate_size // spec.intermediate_size,
        f"width of {layer}mlp.shared_experts",
        "num_shared_experts",
    )
    return spec, sources
