"""ERNIE 4.5 with experts: softmax scores, and a bias for choosing only.

Source: https://arxiv.org/abs/2511.05482, and transformers' ``ernie4_5_moe``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder, ChannelMixer
from inference.modelling.families.config import MAX_LAYERS, CheckpointView
from inference.modelling.families.config_key_tables import Table, harmless, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import activation, integer_with_evidence, rms_norm
from inference.modelling.families.decoder import drafting_layers
from inference.modelling.families.ernie4_5 import CONFIG_KEYS as DENSE_KEYS
from inference.modelling.families.ernie4_5 import CONTEXT, THETA
from inference.modelling.families.grouped_moe import expert_sizes
from inference.modelling.families.moe_config import check_dense_layers, check_routing, moe_sources
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.layers import MoESpec

CONFIG_KEYS: Mapping[str, Table] = {
    "ernie4_5_moe": {
        **DENSE_KEYS["ernie4_5"],
        **used(
            "moe_intermediate_size", "moe_k", "moe_num_experts", "moe_num_shared_experts", "moe_layer_start_index",
            "moe_layer_end_index", "moe_layer_interval", "num_nextn_predict_layers",
        ),
        **harmless("guards a division by nothing", "moe_norm_min"),
        **harmless("training only", "moe_capacity", "moe_use_aux_free"),
        "moe_gate": Only(("topk",), "the best experts are chosen"),
        "use_rmsnorm": Only((True,), "the norms are RMS norms"),
    }
}  # fmt: skip


def build_spec(view: CheckpointView) -> ModelSpec:
    prediction = view.config.integer("num_nextn_predict_layers", default=0, low=0, high=MAX_LAYERS)
    decoder = AttentionDecoder.read(
        view, tied_by_default=True, default_max_position_embeddings=CONTEXT, prediction_layers=prediction
    )
    act = activation(view)
    _check_dense(decoder)

    def experts(layer: str) -> ChannelMixer:
        base = f"{layer}mlp."
        count, width, shared = expert_sizes(view, base, "moe_num_shared_experts", keys=("moe_num_experts",))
        spec = check_routing(
            MoESpec(
                num_experts=count,
                top_k=integer_with_evidence(view, "moe.top_k", ("moe_k",), 6),
                intermediate_size=width,
                activation=act,
                correction_bias=f"{base}moe_statics.e_score_correction_bias" in view.tensors,
                shared_intermediate_size=shared,
            )
        )
        bias = "moe_statics.e_score_correction_bias"
        return spec, moe_sources(view, spec, base, shared="shared_experts.", correction_bias=bias)

    return decoder.spec(
        "ernie4_5_moe",
        norm=rms_norm(view, default=1e-5),
        ropes=decoder.rope(interleaved=True, default_theta=THETA),
        act=act,
        experts=experts,
        ignored=drafting_layers(decoder.layout),
    )


def _check_dense(decoder: AttentionDecoder) -> None:
    """Compare the layers without experts with those that config.json states."""
    config, count = decoder.view.config, decoder.layout.num_layers
    if "moe_layer_start_index" not in config:
        return
    first = config.integer("moe_layer_start_index", low=0)
    last = config.integer("moe_layer_end_index", default=count - 1, low=-1)
    last = count - 1 if last < 0 else last
    every = config.integer("moe_layer_interval", default=1)
    key = "moe_layer_start_index, moe_layer_end_index, moe_layer_interval"
    check_dense_layers(
        decoder.view, decoder.layout, key, lambda number: (number + 1) % every == 0 and first <= number <= last
    )
