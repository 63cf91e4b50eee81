"""Flint: Qwen3-MoE with sinks, sigmoid scores and a shared expert; full layers have no positions.

Source: transformers' ``flint``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import EXPERTS, WITH_ROPE, Table, used
from inference.modelling.families.config_values import activation, rms_norm
from inference.modelling.families.moe_config import check_sparse_steps, routed_experts
from inference.modelling.families.windows import TYPES, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import ModelSpec

CONFIG_KEYS: Mapping[str, Table] = {
    "flint": {
        **WITH_ROPE,
        **EXPERTS,
        **used("moe_intermediate_size", "shared_expert_intermediate_size", "norm_topk_prob", "sliding_window"),
        **used("layer_types", "mlp_only_layers", "decoder_sparse_step"),
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    names = LayerNames(sinks="softmax_offset")
    if "model.layers.0.self_attn.sinks" in view.tensors:
        names = LayerNames()
    decoder = AttentionDecoder.read(view, names)
    act, count = activation(view), decoder.layout.num_layers
    types = layer_types(view, count, TYPES)
    if types is None:
        types = tuple(TYPES[number < 2 or number % 4 == 1 or number == count - 1] for number in range(count))
    normalises = view.config.boolean("norm_topk_prob", default=True)
    check_sparse_steps(view, decoder.layout)
    rope = decoder.rope()
    return decoder.spec(
        "flint",
        norm=rms_norm(view),
        ropes=[rope if kind == TYPES[0] else None for kind in types],
        windows=window_of_each_layer(types, sliding_window(view, default=513)),
        qk_norm="head",
        attention_options={"has_sinks": True},
        act=act,
        experts=lambda layer: routed_experts(
            view,
            f"{layer}mlp.",
            act,
            top_k=6,
            shared="shared_expert.",
            scoring="sigmoid",
            normalise_top_k=normalises,
        ),
    )
