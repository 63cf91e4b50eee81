"""XGLM: OPT's layers with sines and cosines of the positions in place of learned ones.

Source: https://arxiv.org/abs/2112.10668, and transformers' ``xglm``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inference.modelling.families.attention_decoder import AttentionDecoder
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, Table, harmless, used
from inference.modelling.families.config_values import activation, check_size
from inference.modelling.families.gpt2 import OPT, OPT_FIRST_POSITION
from inference.modelling.layer_parts import NormSpec
from inference.modelling.position_specs import SinusoidsSpec
from inference.modelling.spec import ModelSpec

CONFIG_KEYS: Mapping[str, Table] = {
    "xglm": {
        **COMMON,
        **used(
            "d_model", "attention_heads", "num_attention_heads", "ffn_dim", "activation_function", "scale_embedding"
        ),
        **harmless("training only", "dropout", "activation_dropout", "layerdrop", "init_std"),
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(
        view, replace(OPT, final_norm="layer_norm"), tied_by_default=True, default_max_position_embeddings=2048
    )
    width = decoder.layout.hidden_size
    check_size(view, width, f"columns of {decoder.layout.embedding}", "d_model")
    return decoder.spec(
        "xglm",
        norm=NormSpec("layer", 1e-5),
        ropes=None,
        act=activation(view, "activation_function", default="gelu"),
        gated=False,
        embedding_multiplier=width**0.5 if view.config.boolean("scale_embedding", default=True) else 1.0,
        sinusoids=SinusoidsSpec(steps=width // 2 - 1, first=OPT_FIRST_POSITION),
    )
