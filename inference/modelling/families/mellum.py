"""Mellum 2: Qwen3-MoE whose windowed layers rotate by a base of their own.

Source: transformers' ``mellum``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import EXPERTS, WITH_ROPE, Table, harmless, used
from inference.modelling.families.config_values import activation, rms_norm
from inference.modelling.families.moe_config import check_layer_kinds, routed_experts
from inference.modelling.families.rope_by_type import ropes_by_type
from inference.modelling.families.windows import TYPES, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import ModelSpec

CONFIG_KEYS: Mapping[str, Table] = {
    "mellum": {
        **WITH_ROPE,
        **EXPERTS,
        **used("moe_intermediate_size", "norm_topk_prob", "sliding_window", "layer_types", "mlp_layer_types"),
        **harmless("of the layers that draft", "num_mtp_layers", "num_nextn_predict_layers", "mtp_layer_types"),
        **harmless("of the layers that draft", "mtp_mlp_layer_types"),
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(view, default_max_position_embeddings=131072)
    act, count = activation(view), decoder.layout.num_layers
    types = layer_types(view, count, TYPES) or (TYPES[1],) * count
    ropes = ropes_by_type(view, decoder.rope, theta=500_000.0, local_theta=10_000.0)
    normalises = view.config.boolean("norm_topk_prob", default=True)
    check_layer_kinds(view, decoder.layout)
    return decoder.spec(
        "mellum",
        norm=rms_norm(view),
        ropes=[ropes[kind] for kind in types],
        windows=window_of_each_layer(types, sliding_window(view, default=1024)),
        qk_norm="head",
        act=act,
        experts=lambda layer: routed_experts(view, f"{layer}mlp.", act, top_k=8, normalise_top_k=normalises),
    )
