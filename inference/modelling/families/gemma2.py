"""Gemma 2: norms before and after each mixer, softcaps, a sliding window in every other layer.

Source: https://arxiv.org/abs/2408.00118, and transformers' ``gemma2`` for what config.json may leave out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import LLAMA_LIKE, Table, used
from inference.modelling.families.config_keys import Harmless
from inference.modelling.families.config_values import activation, number_with_evidence, rms_norm
from inference.modelling.families.decoder import decoder_spec
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.windows import layer_types, sliding_window, window_of_each_layer
from inference.modelling.layer_parts import NormSpec, prefixed
from inference.modelling.layer_specs import AttentionSpec
from inference.modelling.spec import LayerSpec, ModelSpec, Source, tensor

CONFIG_KEYS: Mapping[str, Table] = {
    "gemma2": {
        **LLAMA_LIKE,
        **used(
            "hidden_activation", "query_pre_attn_scalar", "sliding_window", "layer_types", "attn_logit_softcapping",
            "final_logit_softcapping", "use_bidirectional_attention",
        ),
        "hidden_act": Harmless("hidden_activation says it"),
        "sliding_window_size": Harmless("an early name beside sliding_window"),
    },
}  # fmt: skip

# transformers' defaults, which differ from those of the other families.
HEAD_DIM = 256
CONTEXT = 8192
WINDOW = 4096


def build_spec(view: CheckpointView) -> ModelSpec:
    refuse_encoder(view)
    layout = read_layout(view, tied_by_default=True, default_max_position_embeddings=CONTEXT)
    heads = read_heads(view, layout.layer(0), layout.hidden_size, default_head_dim=HEAD_DIM)
    rope = read_rope(view, heads.head_dim, max_position_embeddings=layout.max_position_embeddings)
    norm = rms_norm(view, offset=1.0)
    act = activation(view, "hidden_activation", default="gelu_pytorch_tanh")
    scalar = number_with_evidence(
        view, "attention.query_pre_attn_scalar", ("query_pre_attn_scalar",), 256.0, low=1e-6, high=1e9
    )
    softcap = read_softcap(view, "attn_logit_softcapping", 50.0)
    count = layout.num_layers
    types = layer_types(view, count, ("sliding_attention", "full_attention"))
    if types is None:
        types = tuple("full_attention" if number % 2 else "sliding_attention" for number in range(count))
    windows = window_of_each_layer(types, sliding_window(view, default=WINDOW))
    attention = [
        attention_spec(
            view, layout.layer(number), heads, rope, scale=scalar**-0.5, sliding_window=window, softcap=softcap
        )
        for number, window in enumerate(windows)
    ]
    layers, sources = gemma_layers(view, layout, attention, norm, act)
    return decoder_spec(
        view,
        layout,
        "gemma2",
        layers,
        sources,
        norm,
        ignored=(ROTARY_BUFFERS,),
        embedding_multiplier=math.sqrt(layout.hidden_size),
        logits_softcap=read_softcap(view, "final_logit_softcapping", 30.0),
    )


def gemma_layers(
    view: CheckpointView, layout: DecoderLayout, attention: Sequence[AttentionSpec], norm: NormSpec, act: str
) -> tuple[list[LayerSpec], dict[str, Source]]:
    """Layers with norms before and after both mixers, and the sources of their parameters."""
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number, mixer in enumerate(attention):
        layer, name = layout.layer(number), f"layers.{number}"
        mlp = mlp_spec(view, layer, act)
        layers.append(
            LayerSpec(
                token_mixer=mixer,
                token_norm=norm,
                token_post_norm=norm,
                channel_mixer=mlp,
                channel_norm=norm,
                channel_post_norm=norm,
            )
        )
        sources |= {
            f"{name}.token_norm.weight": tensor(f"{layer}input_layernorm.weight"),
            f"{name}.token_post_norm.weight": tensor(f"{layer}post_attention_layernorm.weight"),
            f"{name}.channel_norm.weight": tensor(f"{layer}pre_feedforward_layernorm.weight"),
            f"{name}.channel_post_norm.weight": tensor(f"{layer}post_feedforward_layernorm.weight"),
        }
        sources |= prefixed(f"{name}.token_mixer", attention_sources(view, mixer, layer))
        sources |= prefixed(f"{name}.channel_mixer", mlp_sources(view, mlp, layer))
    return layers, sources


def refuse_encoder(view: CheckpointView) -> None:
    """Refuse a model whose attention sees later tokens.

    Raises:
        UnsupportedArchitecture: config.json says so.
    """
    if view.config.get("use_bidirectional_attention"):
        raise UnsupportedArchitecture(
            "config.json: use_bidirectional_attention is on; this is an encoder, which can't generate text.",
            param="use_bidirectional_attention",
        )


def read_softcap(view: CheckpointView, key: str, default: float | None) -> float | None:
    """A cap of scores or logits: null switches it off, an absent key means the default."""
    if view.config.values.get(key, default) is None:
        return None
    return number_with_evidence(view, key, (key,), default or 0.0, low=1e-6, high=1e9)
