"""Phi-3.5-MoE: LayerNorms and biases, a LongRoPE with one factor, two experts that are chosen one after the other.

Source: https://arxiv.org/abs/2404.14219, https://arxiv.org/abs/2409.12136, and transformers' ``phimoe``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.attention_decoder import AttentionDecoder, ChannelMixer
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import EXPERTS, ROPE_MEMBERS, WITH_ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Biases, Members, Only
from inference.modelling.families.config_values import activation, layer_norm
from inference.modelling.families.moe_config import (
    ExpertNames,
    check_experts,
    check_routing,
    count_experts,
    moe_sources,
)
from inference.modelling.families.windows import sliding_window
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.layers import MoESpec
from inference.modelling.specs.parts import RopeSpec

EXPERT_NAMES = ExpertNames("w1", "w3", "w2")
MEMBERS = Members({**ROPE_MEMBERS, **used("short_mscale", "long_mscale")})
CONFIG_KEYS: Mapping[str, Table] = {
    "phimoe": {
        **WITH_ROPE,
        **EXPERTS,
        **used("sliding_window", "router_jitter_noise"),
        **harmless("training only", "input_jitter_noise", "expert_dropout"),
        "rope_parameters": MEMBERS,
        "rope_scaling": MEMBERS,
        "lm_head_bias": Biases("lm_head"),
        "num_experts_per_tok": Only((2,), "its router chooses two"),
    }
}  # fmt: skip


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(view)
    act, config = activation(view), view.config
    width = 2 * config.number("router_jitter_noise", default=0.01, low=0.0, high=1e6)

    def experts(layer: str) -> ChannelMixer:
        is_stacked = f"{layer}mlp.experts.down_proj" in view.tensors
        base, router = (f"{layer}mlp.", "router") if is_stacked else (f"{layer}block_sparse_moe.", "gate")
        count, inner = count_experts(view, base + "experts.", down="w2")
        check_experts(view, base + "experts.", count, inner, ("num_local_experts", "num_experts"), "intermediate_size")
        spec = check_routing(MoESpec(count, 2, inner, act, scoring="sparse_mixer", mixer_width=width))
        return spec, moe_sources(view, spec, base, router=router, names=EXPERT_NAMES)

    return decoder.spec(
        "phimoe",
        norm=layer_norm(view, "rms_norm_eps"),
        ropes=_rope(view, decoder),
        windows=(sliding_window(view),) * decoder.layout.num_layers,
        experts=experts,
        router="",
        act=act,
        can_have_head_bias=True,
    )


def _rope(view: CheckpointView, decoder: AttentionDecoder) -> RopeSpec:
    """The rotation, whose cosines are multiplied by what config.json says.

    Raises:
        UnsupportedArchitecture: It says two different numbers, for short and for long sequences.
    """
    rope = decoder.rope(default_theta=1_000_000.0)
    if rope.scaling is None:
        return rope
    short, long = (
        view.config.number(f"rope_scaling.{key}", f"rope_parameters.{key}", low=1e-6, high=1e6)
        for key in ("short_mscale", "long_mscale")
    )
    if short != long:
        raise UnsupportedArchitecture(
            f"config.json: short_mscale {short:g} and long_mscale {long:g} differ; they are served if they are equal.",
            param="long_mscale",
        )
    return replace(rope, scaling=replace(rope.scaling, attention_factor=short))
