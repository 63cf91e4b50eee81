"""Jamba: Mamba-1 layers with inner norms, attention without positions, every other MLP a mixture of experts.

Source: Lieber et al. 2024, https://arxiv.org/abs/2403.19887; transformers' ``jamba``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.errors import TensorShapeMismatch
from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import (
    DECODER,
    EXPERTS,
    HYBRID_MAMBA,
    NO_ROPE,
    NO_WINDOW,
    Table,
    used,
)
from inference.modelling.families.config_keys import Harmless, Only
from inference.modelling.families.config_values import activation, integer_with_evidence, rms_norm
from inference.modelling.families.decoder import decoder_spec, llama_layer, llama_layer_sources
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.moe_config import check_experts, check_routing, count_experts, moe_sources
from inference.modelling.families.state_space import (
    check_layer_kinds,
    mamba1_sources,
    mamba1_spec,
    unknown_layer,
)
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import ChannelMixerSpec, MoESpec, TokenMixerSpec
from inference.modelling.specs.sources import Source

CONFIG_KEYS: Mapping[str, Table] = {
    "jamba": {
        **DECODER,
        **NO_ROPE,
        **EXPERTS,
        **HYBRID_MAMBA,
        **used(
            "mamba_dt_rank", "attn_layer_period", "attn_layer_offset", "expert_layer_period", "expert_layer_offset"
        ),
        "layer_types": Harmless("attn_layer_period and attn_layer_offset say it"),
        "layers_block_type": Harmless("attn_layer_period and attn_layer_offset say it"),
        "mamba_inner_layernorms": Only((True,), "the inner norms belong to the layer"),
        "n_ctx": Harmless("an early name beside max_position_embeddings"),
        "sliding_window": NO_WINDOW,
    },
}  # fmt: skip


def build_spec(view: CheckpointView) -> ModelSpec:
    """config.json and tensor table to the spec; each layer's kinds are read from its own tensor names."""
    layout = read_layout(view, default_max_position_embeddings=262144)
    norm = rms_norm(view)
    act = activation(view)
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(layout.num_layers):
        layer = layout.layer(number)
        base = f"{layer}mamba."
        mixer: TokenMixerSpec
        if f"{base}A_log" in view.tensors:
            mixer = mamba1_spec(
                view,
                base,
                activation=act,
                inner_norm=norm if f"{base}dt_layernorm.weight" in view.tensors else None,
                state_size=("mamba_d_state",),
                conv_kernel=("mamba_d_conv",),
                dt_rank=("mamba_dt_rank",),
            )
            mixer_sources = mamba1_sources(mixer, base, layout.hidden_size)
        elif f"{layer}self_attn.q_proj.weight" in view.tensors:
            mixer = attention_spec(view, layer, read_heads(view, layer), None)
            mixer_sources = attention_sources(view, mixer, layer)
        else:
            raise unknown_layer(layer, "mamba.A_log, self_attn.q_proj.weight")
        channel, channel_sources = _channel_mixer(view, layer, act)
        layers.append(llama_layer(mixer, channel, norm))
        sources |= llama_layer_sources(number, layer, mixer_sources, channel_sources, channel_norm="pre_ff_layernorm")
    _check_periods(view, layers)
    return decoder_spec(view, layout, "jamba", layers, sources, norm, final_norm_name="final_layernorm")


def _channel_mixer(view: CheckpointView, layer: str, act: str) -> tuple[ChannelMixerSpec, dict[str, Source]]:
    base = f"{layer}feed_forward."
    if f"{base}router.weight" not in view.tensors:
        mlp = mlp_spec(view, layer, act, mlp="feed_forward.")
        return mlp, mlp_sources(view, mlp, layer, mlp="feed_forward.")
    count, width = count_experts(view, f"{base}experts.")
    check_experts(view, f"{base}experts.", count, width, ("num_experts", "num_local_experts"), "intermediate_size")
    moe = check_routing(
        MoESpec(
            num_experts=count,
            top_k=integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), 2),
            intermediate_size=width,
            activation=act,
            normalise_top_k=False,
        )
    )
    return moe, moe_sources(view, moe, base, router="router")


def _check_periods(view: CheckpointView, layers: list[LayerSpec]) -> None:
    """Compare the periods and offsets of config.json with the tensors.

    Raises:
        TensorShapeMismatch: A layer is of another kind than they say.
    """
    config = view.config
    if "attn_layer_period" in config and "attn_layer_offset" in config:
        period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset", low=0)
        kinds = ["attention" if number % period == offset else "mamba" for number in range(len(layers))]
        check_layer_kinds("attn_layer_period", kinds, layers)
    keys = ("expert_layer_period", "expert_layer_offset", "num_experts")
    if all(key in config for key in keys):
        period, offset = config.integer(keys[0]), config.integer(keys[1], low=0)
        has_experts = config.integer(keys[2]) > 1
        for number, layer in enumerate(layers):
            stated = "moe" if has_experts and number % period == offset else "mlp"
            found = layer.channel_mixer.kind if layer.channel_mixer is not None else "none"
            if stated != found:
                raise TensorShapeMismatch(
                    f"config.json gives layer {number} the channel mixer {stated} ({', '.join(keys)}), but its tensors "
                    f"are of {found}; correct config.json.",
                    param=keys[0],
                )
