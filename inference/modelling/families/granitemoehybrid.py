"""Granite 4 hybrids: Mamba-2 or attention, then a shared MLP, with or without routed experts.

Four multipliers scale the embedding, every residual addition, the attention scores and (as a divisor)
the logits. Attention has no positions unless ``position_embedding_type`` is ``rope``.

Source: the published ibm-granite/granite-4.0 files and transformers' ``granitemoehybrid``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointView, Confidence
from inference.modelling.families.config_key_tables import HYBRID_MAMBA2, WITH_ROPE, Table, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import (
    activation,
    number_with_evidence,
    rms_norm,
)
from inference.modelling.families.decoder import decoder_spec, llama_layer_sources
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.granite_experts import granite_mixer
from inference.modelling.families.head_sizes import read_heads
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
from inference.modelling.specs.layers import AttentionSpec, TokenMixerSpec
from inference.modelling.specs.sources import Source

CONFIG_KEYS: Mapping[str, Table] = {
    "granitemoehybrid": {
        **WITH_ROPE,
        **used("num_local_experts", "num_experts_per_tok"),
        **HYBRID_MAMBA2,
        **used(
            "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling",
            "shared_intermediate_size", "position_embedding_type",
        ),
        "normalization_function": Only(("rmsnorm",), "the norms are RMS norms"),
    },
}  # fmt: skip


def build_spec(view: CheckpointView) -> ModelSpec:
    """config.json and tensor table to the spec; each layer's kinds are read from its own tensor names."""
    layout = read_layout(view, default_max_position_embeddings=2048)
    norm = rms_norm(view)
    act = activation(view)
    limits = time_step_limits(view, "time_step_limit")
    residual = _multiplier(view, "residual_multiplier")
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(layout.num_layers):
        layer = layout.layer(number)
        mixer: TokenMixerSpec
        if f"{layer}mamba.A_log" in view.tensors:
            mixer = mamba2_spec(view, f"{layer}mamba.", HYBRID_KEYS, activation=act, norm_eps=norm.eps, limits=limits)
            mixer_sources = mamba2_sources(mixer, f"{layer}mamba.", layout.hidden_size)
        elif f"{layer}self_attn.q_proj.weight" in view.tensors:
            mixer = _attention(view, layout, layer)
            mixer_sources = attention_sources(view, mixer, layer)
        else:
            raise unknown_layer(layer, "mamba.A_log, self_attn.q_proj.weight")
        channel, channel_sources = granite_mixer(view, layer, act)
        layers.append(
            LayerSpec(
                token_mixer=mixer,
                token_norm=norm,
                channel_mixer=channel,
                channel_norm=norm,
                residual_multiplier=residual,
            )
        )
        sources |= llama_layer_sources(number, layer, mixer_sources, channel_sources)
    check_layer_kinds("layer_types", stated_layer_types(view, "layer_types", "layers_block_type"), layers)
    return decoder_spec(
        view,
        layout,
        "granitemoehybrid",
        layers,
        sources,
        norm,
        ignored=(ROTARY_BUFFERS,),
        embedding_multiplier=_multiplier(view, "embedding_multiplier"),
        logits_multiplier=1.0 / _multiplier(view, "logits_scaling"),
    )


def _multiplier(view: CheckpointView, key: str) -> float:
    return number_with_evidence(view, key, (key,), 1.0, low=1e-9, high=1e9)


def _attention(view: CheckpointView, layout: DecoderLayout, layer: str) -> AttentionSpec:
    heads = read_heads(view, layer)
    # The published files say "nope"; transformers 5 writes null or leaves the key out.
    kind = view.config.string("position_embedding_type", default="nope", choices=("nope", "rope"))
    stated = "position_embedding_type" in view.config
    confidence = Confidence.CERTAIN if stated else Confidence.HIGH
    view.facts.add("attention.positions", kind, "config.json" if stated else "not in config.json: none", confidence)
    rope = None
    if kind == "rope":
        # Bamba's GGUF files, which are read as this type, rotate half of each head.
        rope = read_rope(
            view, heads.head_dim, max_position_embeddings=layout.max_position_embeddings, default_partial=1.0
        )
    return attention_spec(view, layer, heads, rope, scale=_multiplier(view, "attention_multiplier"))
