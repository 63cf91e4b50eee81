"""ERNIE 4.5, its dense models: Llama with rotation in adjacent pairs.

Source: https://arxiv.org/abs/2511.05482, and transformers' ``ernie4_5``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import DECODER, ROPE, Table
from inference.modelling.families.config_keys import Biases
from inference.modelling.families.config_values import rms_norm
from inference.modelling.spec import ModelSpec

THETA = 500_000.0
CONTEXT = 131072
CONFIG_KEYS: Mapping[str, Table] = {
    "ernie4_5": {
        **DECODER,
        **ROPE,
        "use_bias": Biases(r"(?:self_attn\.[qkvo]_proj|mlp\.(?:gate|up|down)_proj)"),
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(
        view, default_head_dim=128, tied_by_default=True, default_max_position_embeddings=CONTEXT
    )
    rope = decoder.rope(interleaved=True, default_theta=THETA)
    return decoder.spec("ernie4_5", norm=rms_norm(view, default=1e-5), ropes=rope)
