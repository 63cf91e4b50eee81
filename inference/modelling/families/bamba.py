"""Bamba: Mamba-2 layers with some attention layers, an MLP after each; half of a head is rotated.

Source: the published ibm-ai-platform/Bamba-9B files and transformers' ``bamba``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import HYBRID_MAMBA2, WITH_ROPE, Table, used
from inference.modelling.families.config_keys import Biases
from inference.modelling.families.config_values import activation, check_size, rms_norm
from inference.modelling.families.decoder import decoder_spec, llama_layer, llama_layer_sources
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.state_space import (
    HYBRID_KEYS,
    check_layer_kinds,
    mamba2_sources,
    mamba2_spec,
    stated_layer_types,
    time_step_limits,
    unknown_layer,
)
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import TokenMixerSpec
from inference.modelling.specs.sources import Source

CONFIG_KEYS: Mapping[str, Table] = {
    "bamba": {
        **WITH_ROPE,
        **HYBRID_MAMBA2,
        **used("attn_layer_indices", "attn_rotary_emb"),
        "mlp_bias": Biases(r"feed_forward\.(?:gate|up|down)_proj"),
    },
}  # fmt: skip


def build_spec(view: CheckpointView) -> ModelSpec:
    """config.json and tensor table to the spec; each layer's kind is read from its own tensor names."""
    layout = read_layout(view, default_max_position_embeddings=262144)
    norm = rms_norm(view, default=1e-5)
    act = activation(view)
    limits = time_step_limits(view, "time_step_limit")
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(layout.num_layers):
        layer = layout.layer(number)
        mixer: TokenMixerSpec
        if f"{layer}mamba.A_log" in view.tensors:
            mixer = mamba2_spec(view, f"{layer}mamba.", HYBRID_KEYS, activation=act, norm_eps=norm.eps, limits=limits)
            mixer_sources = mamba2_sources(mixer, f"{layer}mamba.", layout.hidden_size)
        elif f"{layer}self_attn.q_proj.weight" in view.tensors:
            heads = read_heads(view, layer)
            rope = read_rope(
                view, heads.head_dim, max_position_embeddings=layout.max_position_embeddings, default_partial=0.5
            )
            check_size(view, rope.rotary_dim, "rotated values of a head", "attn_rotary_emb")
            mixer = attention_spec(view, layer, heads, rope)
            mixer_sources = attention_sources(view, mixer, layer)
        else:
            raise unknown_layer(layer, "mamba.A_log, self_attn.q_proj.weight")
        mlp = mlp_spec(view, layer, act, mlp="feed_forward.")
        layers.append(llama_layer(mixer, mlp, norm))
        channel = mlp_sources(view, mlp, layer, mlp="feed_forward.")
        sources |= llama_layer_sources(number, layer, mixer_sources, channel, channel_norm="pre_ff_layernorm")
    stated = stated_layer_types(view, "layers_block_type", "layer_types")
    check_layer_kinds("layers_block_type", stated, layers)
    if "attn_layer_indices" in view.config:
        attention = set(view.config.integers("attn_layer_indices"))
        kinds = ["attention" if number in attention else "mamba" for number in range(layout.num_layers)]
        check_layer_kinds("attn_layer_indices", kinds, layers)
    return decoder_spec(
        view, layout, "bamba", layers, sources, norm, ignored=(ROTARY_BUFFERS,), final_norm_name="final_layernorm"
    )
