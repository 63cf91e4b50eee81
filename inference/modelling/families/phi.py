"""Phi-1, Phi-1.5 and Phi-2: attention and an MLP without a gate side by side, biases everywhere, one norm for both.

Source: https://arxiv.org/abs/2309.05463, and transformers' ``phi``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, HEADS, ROPE, Table, used
from inference.modelling.families.config_values import activation, layer_norm
from inference.modelling.families.mlp_config import MLPNames
from inference.modelling.spec import ModelSpec

ROTATED_SHARE = 0.5
NAMES = LayerNames(
    output="dense",
    qk_norms=("q_layernorm", "k_layernorm"),
    mlp_matrices=MLPNames(up="fc1", down="fc2"),
    norms={"token_norm": "input_layernorm"},
    final_norm="final_layernorm",
)
CONFIG_KEYS: Mapping[str, Table] = {
    "phi": {
        **COMMON,
        **HEADS,
        **ROPE,
        **used("intermediate_size", "hidden_act", "layer_norm_eps", "qk_layernorm"),
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(view, NAMES, default_max_position_embeddings=2048)
    return decoder.spec(
        "phi",
        norm=layer_norm(view),
        ropes=decoder.rope(default_partial=ROTATED_SHARE),
        qk_norm="head" if view.config.boolean("qk_layernorm", default=False) else None,
        act=activation(view, default="gelu_new"),
        gated=False,
        is_parallel=True,
        can_have_head_bias=True,
    )
