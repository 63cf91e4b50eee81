"""OLMoE and FlexOlmo: experts in each layer; FlexOlmo has OLMo 2's norms.

Source: https://arxiv.org/abs/2409.02060, https://arxiv.org/abs/2507.07024, and transformers' ``olmoe`` and
``flex_olmo``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import POST_NORMS, AttentionDecoder, ChannelMixer, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import EXPERTS, WITH_ROPE, Table, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import activation, rms_norm
from inference.modelling.families.moe_config import routed_experts
from inference.modelling.spec import ModelSpec

KEYS: Table = {**WITH_ROPE, **EXPERTS, **used("norm_topk_prob")}
CONFIG_KEYS: Mapping[str, Table] = {
    "olmoe": {**KEYS, "clip_qkv": Only((), "no published model cuts what its norms give")},
    "flex_olmo": KEYS,
}


def build_spec(view: CheckpointView) -> ModelSpec:
    model_type = view.config.string("model_type", default="olmoe")
    is_flex = model_type == "flex_olmo"
    decoder = AttentionDecoder.read(view, LayerNames(norms=POST_NORMS) if is_flex else LayerNames())
    act = activation(view)

    def experts(layer: str) -> ChannelMixer:
        normalises = view.config.boolean("norm_topk_prob", default=False)
        return routed_experts(
            view,
            f"{layer}mlp.",
            act,
            top_k=5 if is_flex else 8,
            width_key="intermediate_size",
            normalise_top_k=normalises,
        )

    return decoder.spec(
        model_type,
        norm=rms_norm(view, default=1e-6 if is_flex else 1e-5),
        ropes=decoder.rope(default_theta=500_000.0 if is_flex else 10_000.0),
        qk_norm="row",
        act=act,
        experts=experts,
    )
