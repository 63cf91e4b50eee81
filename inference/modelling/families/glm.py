"""GLM-4 and GLM-4-0414: half of each head rotates, in adjacent pairs; the second norms behind the mixers too.

Source: https://arxiv.org/abs/2406.12793, and transformers' ``glm`` and ``glm4``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder, LayerNames
from inference.modelling.families.config import MAX_LAYERS, CheckpointView
from inference.modelling.families.config_key_tables import MROPE, QKV_BIAS, WITH_ROPE, Table, used
from inference.modelling.families.config_values import rms_norm
from inference.modelling.families.decoder import drafting_layers
from inference.modelling.spec import ModelSpec

ROTATED_SHARE = 0.5
EPS = 1.5625e-07
CONTEXT = 131072
GLM4_NORMS = {
    "token_norm": "input_layernorm",
    "token_post_norm": "post_self_attn_layernorm",
    "channel_norm": "post_attention_layernorm",
    "channel_post_norm": "post_mlp_layernorm",
}
KEYS: Table = {**WITH_ROPE, "attention_bias": QKV_BIAS}
CONFIG_KEYS: Mapping[str, Table] = {
    "glm": KEYS,
    "glm4": {**KEYS, **MROPE, **used("num_nextn_predict_layers")},
}


def build_spec(view: CheckpointView) -> ModelSpec:
    model_type = view.config.string("model_type", default="glm4")
    names = LayerNames(norms=GLM4_NORMS) if model_type == "glm4" else LayerNames()
    prediction = view.config.integer("num_nextn_predict_layers", default=0, low=0, high=MAX_LAYERS)
    decoder = AttentionDecoder.read(
        view, names, default_head_dim=128, prediction_layers=prediction, default_max_position_embeddings=CONTEXT
    )
    rope = decoder.rope(interleaved=True, default_partial=ROTATED_SHARE)
    return decoder.spec(
        model_type, norm=rms_norm(view, default=EPS), ropes=rope, ignored=drafting_layers(decoder.layout)
    )
