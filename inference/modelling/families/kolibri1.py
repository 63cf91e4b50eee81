"""Kolibri 1: experts in each layer that are chosen by logits with a bias, norms around each mixer.

Full layers, every fifth, have no positions. Source: transformers' ``kolibri1``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inference.modelling.families.attention_decoder import AttentionDecoder, ChannelMixer, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import EXPERTS, WITH_ROPE, Table, harmless, used
from inference.modelling.families.config_values import activation, rms_norm
from inference.modelling.families.moe_config import routed_experts
from inference.modelling.families.windows import TYPES, full_every, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.sources import tensor

BIAS = "moe.router.expert_bias"
"""Of a layer in published files; transformers 5 has it beside the router."""
BIAS_NAME = "router.correction_bias"
CONFIG_KEYS: Mapping[str, Table] = {
    "kolibri1": {
        **{key: rule for key, rule in WITH_ROPE.items() if key != "attention_bias"},
        **EXPERTS,
        **used("moe_intermediate_size", "shared_expert_intermediate_size", "norm_topk_prob"),
        **used("sliding_window", "layer_types"),
        **harmless("all layers have experts", "intermediate_size"),
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    is_renamed = "model.layers.0.post_self_attn_layernorm.weight" in view.tensors
    behind = ("post_self_attn_layernorm", "post_mlp_layernorm") if is_renamed else ("post_attn_norm", "post_ffn_norm")
    names = LayerNames(
        norms={
            "token_norm": "input_layernorm",
            "token_post_norm": behind[0],
            "channel_norm": "post_attention_layernorm",
            "channel_post_norm": behind[1],
        }
    )
    decoder = AttentionDecoder.read(view, names)
    act, count = activation(view), decoder.layout.num_layers
    types = layer_types(view, count, TYPES) or full_every(5, count)
    window = sliding_window(view, default=513)
    rope = decoder.rope()
    normalises = view.config.boolean("norm_topk_prob", default=False)

    def experts(layer: str) -> ChannelMixer:
        spec, sources = routed_experts(
            view,
            f"{layer}mlp.",
            act,
            top_k=6,
            shared="shared_experts.",
            correction_bias="gate.e_score_correction_bias",
            scoring="sigmoid",
            ranks_logits=True,
            normalise_top_k=normalises,
        )
        if layer + BIAS in view.tensors:
            spec, sources = replace(spec, correction_bias=True), {**sources, BIAS_NAME: tensor(layer + BIAS)}
        return spec, sources

    return decoder.spec(
        "kolibri1",
        norm=rms_norm(view),
        ropes=[rope if window is None or kind == TYPES[0] else None for kind in types],
        windows=window_of_each_layer(types, window),
        qk_norm="head",
        act=act,
        experts=experts,
        router="",
    )
