"""Phi-3 and Phi-4-mini: Llama with fused projections, partial rotation and LongRoPE.

Source: https://arxiv.org/abs/2404.14219, and the published files.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import LLAMA_LIKE, Table, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import activation, rms_norm
from inference.modelling.families.decoder import decoder_spec, llama_layer, llama_layer_sources
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.windows import sliding_window
from inference.modelling.spec import LayerSpec, ModelSpec, Source

CONFIG_KEYS: Mapping[str, Table] = {
    "phi3": {
        **LLAMA_LIKE,
        **used("sliding_window"),
        "full_attn_mod": Only((1,), "all layers attend alike"),
        "interpolate_factor": Only((1,), "positions are whole numbers"),
        "lm_head_bias": Only((False,), "the head has no bias"),
    },
}  # fmt: skip

ROPE_TYPES = {"su": "longrope", "yarn": "longrope"}
"""Names that early Phi-3 files give to longrope; the family never had YaRN proper."""
TRAINED_CONTEXT = 4096
"""``original_max_position_embeddings`` of a config that doesn't mention it."""


def build_spec(view: CheckpointView) -> ModelSpec:
    layout = read_layout(view)
    heads = read_heads(view, layout.layer(0), layout.hidden_size)
    rope = read_rope(
        view,
        heads.head_dim,
        max_position_embeddings=layout.max_position_embeddings,
        renamed_types=ROPE_TYPES,
        default_original=TRAINED_CONTEXT,
    )
    norm = rms_norm(view, default=1e-5)
    act = activation(view)
    window = sliding_window(view)
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(layout.num_layers):
        layer = layout.layer(number)
        attention = attention_spec(view, layer, heads, rope, sliding_window=window)
        mlp = mlp_spec(view, layer, act)
        layers.append(llama_layer(attention, mlp, norm))
        sources |= llama_layer_sources(
            number, layer, attention_sources(view, attention, layer), mlp_sources(view, mlp, layer)
        )
    return decoder_spec(view, layout, "phi3", layers, sources, norm, ignored=(ROTARY_BUFFERS,))
