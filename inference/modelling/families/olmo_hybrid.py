"""OLMo Hybrid: layers of the gated delta rule, every fourth one attention with its norms behind the mixers.

Source: the published allenai/Olmo-Hybrid-7B files and transformers' ``olmo_hybrid``; Yang et al. 2024 for the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointView, Confidence
from inference.modelling.families.config_key_tables import WITH_ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import activation, rms_norm
from inference.modelling.families.decoder import decoder_spec, llama_layer
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.delta_config import separate_delta_mixer
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.state_space import check_layer_kinds, stated_layer_types, unknown_layer
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec, prefixed
from inference.modelling.specs.sources import Source, tensor

CONFIG_KEYS: Mapping[str, Table] = {
    "olmo_hybrid": {
        **WITH_ROPE,
        **used(
            "layer_types", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
            "linear_value_head_dim", "linear_conv_kernel_dim", "linear_allow_neg_eigval",
        ),
        "hidden_act": Only(("silu",), "the convolutions have SiLU"),
        **harmless(
            "start values of a training",
            "linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor",
        ),
    },
}  # fmt: skip

CONTEXT = 65536
GATED_NORM_EPS = 1e-5
"""Of the outputs of the delta rule, whatever config.json says."""


def build_spec(view: CheckpointView) -> ModelSpec:
    layout = read_layout(view, default_max_position_embeddings=CONTEXT)
    norm, act = rms_norm(view), activation(view)
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(layout.num_layers):
        layer, name = layout.layer(number), f"layers.{number}"
        mlp = mlp_spec(view, layer, act)
        if f"{layer}linear_attn.A_log" in view.tensors:
            delta, token_sources = separate_delta_mixer(view, f"{layer}linear_attn.", GATED_NORM_EPS)
            if view.config.boolean("linear_allow_neg_eigval", default=True):
                delta = replace(delta, beta_scale=2.0)
            layers.append(llama_layer(delta, mlp, norm))
            norms = {"token_norm": "attention_layer_norm", "channel_norm": "feedforward_layer_norm"}
        elif f"{layer}self_attn.q_proj.weight" in view.tensors:
            attention = _attention(view, layout, layer, norm)
            token_sources = attention_sources(view, attention, layer)
            layers.append(LayerSpec(attention, token_post_norm=norm, channel_mixer=mlp, channel_post_norm=norm))
            # transformers 5.23 renames the norm behind attention when it saves, as if the layer were linear.
            saved = f"{layer}feedforward_layer_norm.weight" in view.tensors
            behind = "feedforward_layer_norm" if saved else "post_attention_layernorm"
            norms = {"token_post_norm": behind, "channel_post_norm": "post_feedforward_layernorm"}
        else:
            raise unknown_layer(layer, "linear_attn.A_log, self_attn.q_proj.weight")
        sources |= {
            **{f"{name}.{ours}.weight": tensor(f"{layer}{theirs}.weight") for ours, theirs in norms.items()},
            **prefixed(f"{name}.token_mixer", token_sources),
            **prefixed(f"{name}.channel_mixer", mlp_sources(view, mlp, layer)),
        }
    check_layer_kinds("layer_types", stated_layer_types(view, "layer_types", linear="gated_delta"), layers)
    return decoder_spec(view, layout, "olmo_hybrid", layers, sources, norm, ignored=(ROTARY_BUFFERS,))


def _attention(view: CheckpointView, layout: DecoderLayout, layer: str, norm: NormSpec) -> AttentionSpec:
    """Attention whose norms of queries and keys are over all heads at once."""
    heads = read_heads(view, layer)
    rope: RopeSpec | None = None
    if view.config.get("rope_parameters.rope_theta", "rope_theta") is not None:
        rope = read_rope(view, heads.head_dim, max_position_embeddings=layout.max_position_embeddings)
        view.facts.add("attention.positions", "rope", "config.json")
    else:
        view.facts.add("attention.positions", "none", "no rope_theta in config.json", Confidence.HIGH)
    return replace(attention_spec(view, layer, heads, rope, qk_norm=norm), qk_norm_per_head=False)
