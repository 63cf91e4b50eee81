"""Laguna: gates on the heads, whose number differs between layers, two rotations, sigmoid scores.

Source: https://huggingface.co/poolside/laguna-XS.2, and transformers' ``laguna``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from inference.errors import CorruptCheckpoint
from inference.modelling.families.attention_decoder import AttentionDecoder, ChannelMixer, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import EXPERTS, WITH_ROPE, Table, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import activation, number_with_evidence, rms_norm
from inference.modelling.families.head_sizes import HeadSizes, read_heads
from inference.modelling.families.moe_config import check_layer_kinds, routed_experts
from inference.modelling.families.rope_by_type import ropes_by_type
from inference.modelling.families.windows import TYPES, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import ModelSpec

NAMES = LayerNames(gate="g_proj")
COUNTS = "num_attention_heads_per_layer"
CONFIG_KEYS: Mapping[str, Table] = {
    "laguna": {
        **WITH_ROPE,
        **EXPERTS,
        **used(
            "moe_intermediate_size", "shared_expert_intermediate_size", "moe_routed_scaling_factor", "gating", COUNTS
        ),
        **used("sliding_window", "layer_types", "mlp_layer_types"),
        "moe_apply_router_weight_on_input": Only((False,), "what experts give is weighted"),
        "moe_router_logit_softcapping": Only((0,), "the router's logits have no cap"),
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(_with_heads(view, 0), NAMES, default_max_position_embeddings=131072)
    layout, act, width = decoder.layout, activation(view), decoder.heads.head_dim
    types = layer_types(view, layout.num_layers, TYPES) or (TYPES[1],) * layout.num_layers
    ropes = ropes_by_type(view, partial(decoder.rope, default_partial=0.5), theta=500_000.0, local_theta=10_000.0)
    ropes = {**ropes, TYPES[0]: replace(ropes[TYPES[0]], rotary_dim=width)}
    check_layer_kinds(view, layout)
    factor = number_with_evidence(
        view, "moe.routed_scaling_factor", ("moe_routed_scaling_factor",), 1.0, low=1e-6, high=1e6
    )

    def experts(layer: str) -> ChannelMixer:
        base = f"{layer}mlp."
        is_renamed = f"{base}shared_experts.down_proj.weight" in view.tensors
        return routed_experts(
            view,
            base,
            act,
            top_k=8,
            shared="shared_experts." if is_renamed else "shared_expert.",
            correction_bias=("gate" if is_renamed else "experts") + ".e_score_correction_bias",
            scoring="sigmoid",
            routed_scaling_factor=factor,
        )

    return decoder.spec(
        "laguna",
        norm=rms_norm(view),
        ropes=[ropes[kind] for kind in types],
        windows=window_of_each_layer(types, sliding_window(view, default=512)),
        heads=_heads(view, decoder),
        qk_norm="head",
        attention_options={
            "output_gate": True,
            "gate_activation": "softplus",
            "gate_per_head": _has_gates_of_heads(view),
        },
        act=act,
        experts=experts,
    )


def _with_heads(view: CheckpointView, number: int) -> CheckpointView:
    """The view, with the layer's number of heads as that of all."""
    counts = view.config.integers(COUNTS)
    if number >= len(counts):
        return view
    return view.changed(num_attention_heads=counts[number])


def _heads(view: CheckpointView, decoder: AttentionDecoder) -> list[HeadSizes]:
    """The heads of each layer.

    Raises:
        CorruptCheckpoint: config.json states them for another number of layers.
    """
    count, stated = decoder.layout.num_layers, len(view.config.integers(COUNTS))
    if stated not in (0, count):
        raise CorruptCheckpoint(f"config.json: {COUNTS} has {stated} entries for {count} layers.", param=COUNTS)
    return [read_heads(_with_heads(view, number), decoder.layout.layer(number)) for number in range(count)]


def _has_gates_of_heads(view: CheckpointView) -> bool:
    """Whether a gate has one value for each head, by ``gating``: true, ``per-head`` or ``per-element``."""
    if view.config.get("gating", default=True) is True:
        return True
    return view.config.string("gating", choices=("per-head", "per-element")) == "per-head"
