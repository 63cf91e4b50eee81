"""LFM3: LFM2's short convolutions, attention within a window or over all, gates on heads, norms around each mixer.

Source: transformers' ``lfm3``, also for what config.json may leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.errors import TensorShapeMismatch
from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, HEADS, QKVO_BIAS, ROPE_MEMBERS, Table, used
from inference.modelling.families.config_keys import Biases, Members
from inference.modelling.families.config_values import rms_norm
from inference.modelling.families.decoder import decoder_spec, norm_sources, read_layers
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.lfm2 import CONTEXT, short_conv
from inference.modelling.families.mlp_config import MLPNames, mlp_sources, mlp_spec
from inference.modelling.families.rope_by_type import rope_of_type
from inference.modelling.families.text_part import around, text_part
from inference.modelling.families.windows import TYPES, layer_types, sliding_window
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import AttentionSpec, TokenMixerSpec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.sources import Source

LFM3: Table = {
    **COMMON,
    **{key: rule for key, rule in HEADS.items() if key not in ("num_heads", "num_kv_heads")},
    **used(
        "intermediate_size", "norm_eps", "conv_L_cache", "layer_types", "sliding_window", "use_sandwich_norm",
        "use_attention_gate",
    ),
    "rope_parameters": Members(ROPE_MEMBERS),
    "attention_bias": QKVO_BIAS,
    "conv_bias": Biases(r"conv\.(?:conv|in_proj|out_proj)"),
}  # fmt: skip
CONFIG_KEYS: Mapping[str, Table] = {"lfm3": LFM3, "lfm3_vl": around(LFM3)}

# transformers' defaults.
WINDOW = 256
ROPES: Mapping[str, Mapping[str, Any]] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.5},
}
CONV = "conv"
KINDS = (*TYPES, CONV)
NORMS = {"token_norm": "operator_norm", "channel_norm": "ffn_norm"}
POST_NORMS = {"token_post_norm": "post_operator_norm", "channel_post_norm": "post_ffn_norm"}
"""Our names of a layer's norms, before and behind its mixers, to the file's."""
MLP = "feed_forward."
MLP_NAMES = MLPNames("w1", "w3", "w2")
GATES = ("gate_proj", "g_proj")
"""The projection of the heads' gates, in published files and in transformers' memory."""


def build_spec(view: CheckpointView) -> ModelSpec:
    view = text_part(view)
    layout = read_layout(view, tied_by_default=True, default_max_position_embeddings=CONTEXT)
    norm = rms_norm(view, "norm_eps", default=1e-5)
    types = layer_types(view, layout.num_layers, KINDS) or tuple(map(_usual_kind, range(layout.num_layers)))
    names = NORMS | POST_NORMS if view.config.boolean("use_sandwich_norm", default=True) else NORMS
    norms: dict[str, Any] = dict.fromkeys(names, norm)

    def read_layer(number: int) -> tuple[LayerSpec, dict[str, Source]]:
        layer = layout.layer(number)
        token, sources = _token_mixer(view, layout, layer, types[number], norm)
        channel = mlp_spec(view, layer, "silu", mlp=MLP, names=MLP_NAMES)
        sources = prefixed("token_mixer", sources)
        sources |= prefixed("channel_mixer", mlp_sources(view, channel, layer, mlp=MLP, names=MLP_NAMES))
        for ours, theirs in names.items():
            sources |= prefixed(ours, norm_sources(norm, layer + theirs))
        return LayerSpec(token_mixer=token, channel_mixer=channel, **norms), sources

    layers, sources = read_layers(layout.num_layers, read_layer)
    return decoder_spec(
        view,
        layout,
        "lfm3",
        layers,
        sources,
        norm,
        ignored=(ROTARY_BUFFERS,),
        final_norm_name="embedding_norm",
    )


def _usual_kind(number: int) -> str:
    """The type of a layer when config.json has no ``layer_types``."""
    if number % 4 == 2:
        return TYPES[1]
    return TYPES[0] if number and not number % 4 else CONV


def _token_mixer(
    view: CheckpointView, layout: DecoderLayout, layer: str, kind: str, norm: NormSpec
) -> tuple[TokenMixerSpec, dict[str, Source]]:
    """The layer's convolution, or its attention.

    Raises:
        TensorShapeMismatch: config.json says another kind than the tensors.
    """
    has_conv = f"{layer}conv.in_proj.weight" in view.tensors
    if has_conv != (kind == CONV):
        raise TensorShapeMismatch(
            f"config.json says layer {layer[:-1]} is {kind} (layer_types), but its tensors are "
            f"{'a convolution' if has_conv else 'attention'}'s; correct config.json.",
            param="layer_types",
        )
    if has_conv:
        return short_conv(view, f"{layer}conv.", layout.hidden_size)
    return _attention(view, layout, layer, kind, norm)


def _attention(
    view: CheckpointView, layout: DecoderLayout, layer: str, kind: str, norm: NormSpec
) -> tuple[AttentionSpec, dict[str, Source]]:
    heads = read_heads(view, layer)
    rope = rope_of_type(
        view,
        kind,
        heads.head_dim,
        ROPES,
        max_position_embeddings=layout.max_position_embeddings,
        can_be_proportional=True,
    )
    has_gate = view.config.boolean("use_attention_gate", default=True)
    spec = attention_spec(
        view,
        layer,
        heads,
        rope,
        qk_norm=norm,
        sliding_window=sliding_window(view, default=WINDOW) if kind == TYPES[0] else None,
        output_gate=has_gate,
        gate_per_head=has_gate,
    )
    gate = next((name for name in GATES if f"{layer}self_attn.{name}.weight" in view.tensors), GATES[0])
    return spec, attention_sources(view, spec, layer, gate=gate)
