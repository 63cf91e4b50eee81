"""AFMoE (Trinity): gated attention, norms around each mixer, sigmoid scores; only windowed layers have positions.

Source: https://www.arcee.ai/blog/the-trinity-manifesto, and transformers' ``afmoe``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder, ChannelMixer, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import EXPERTS, WITH_ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import activation, number_with_evidence, rms_norm
from inference.modelling.families.grouped_moe import expert_sizes
from inference.modelling.families.moe_config import check_dense_layers, routed_experts
from inference.modelling.families.windows import TYPES, full_every, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import ModelSpec

NAMES = LayerNames(
    norms={
        "token_norm": "input_layernorm",
        "token_post_norm": "post_attention_layernorm",
        "channel_norm": "pre_mlp_layernorm",
        "channel_post_norm": "post_mlp_layernorm",
    }
)
ROUTER = "mlp.router.gate"
CONFIG_KEYS: Mapping[str, Table] = {
    "afmoe": {
        **WITH_ROPE,
        **EXPERTS,
        **used("moe_intermediate_size", "num_dense_layers", "num_shared_experts", "route_scale", "mup_enabled"),
        **used("global_attn_every_n_layers", "layer_types", "sliding_window"),
        **harmless("training only", "load_balance_coeff", "use_grouped_mm"),
        "score_func": Only(("sigmoid",), "scores are sigmoids"),
        "route_norm": Only((True,), "the chosen scores are divided by their sum"),
        "n_group": Only((1,), "experts have no groups"),
        "topk_group": Only((1,), "experts have no groups"),
        "num_expert_groups": Only((1,), "experts have no groups"),
        "num_limited_groups": Only((1,), "experts have no groups"),
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(view, NAMES, default_max_position_embeddings=16384)
    act, layout = activation(view), decoder.layout
    every = view.config.integer("global_attn_every_n_layers", default=4)
    types = layer_types(view, layout.num_layers, TYPES) or full_every(every, layout.num_layers)
    dense = view.config.integer("num_dense_layers", default=1, low=0)
    check_dense_layers(view, layout, "num_dense_layers", lambda number: number >= dense, router=ROUTER)
    factor = number_with_evidence(view, "moe.routed_scaling_factor", ("route_scale",), 1.0, low=1e-6, high=1e6)

    def experts(layer: str) -> ChannelMixer:
        expert_sizes(view, f"{layer}mlp.", "num_shared_experts", keys=("num_experts", "num_local_experts"))
        return routed_experts(
            view,
            f"{layer}mlp.",
            act,
            top_k=6,
            router="router.gate",
            shared="shared_experts.",
            correction_bias="expert_bias",
            scoring="sigmoid",
            normalise_eps=1e-20,
            routed_scaling_factor=factor,
        )

    rope = decoder.rope()
    has_factor = view.config.boolean("mup_enabled", default=False)
    return decoder.spec(
        "afmoe",
        norm=rms_norm(view, default=1e-5),
        ropes=[rope if kind == TYPES[0] else None for kind in types],
        windows=window_of_each_layer(types, sliding_window(view, default=1024)),
        qk_norm="head",
        attention_options={"output_gate": True},
        act=act,
        experts=experts,
        router=f"{ROUTER}.weight",
        embedding_multiplier=layout.hidden_size**0.5 if has_factor else 1.0,
    )
