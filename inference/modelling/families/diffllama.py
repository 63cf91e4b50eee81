"""DiffLlama: Llama whose heads are differences of two, with a learned factor.

Source: https://arxiv.org/abs/2410.05258, and transformers' ``diffllama``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.attention_decoder import AttentionDecoder
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import LLAMA_LIKE, Table
from inference.modelling.families.config_keys import Harmless, Only
from inference.modelling.families.config_values import rms_norm
from inference.modelling.families.prediction_head import HeadLayer
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.attention_parts import DifferenceSpec
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.specs.sources import Piece, Source

CONFIG_KEYS: Mapping[str, Table] = {
    "diffllama": {
        **LLAMA_LIKE,
        "lambda_std_dev": Harmless("start values of a training"),
        "attention_dropout": Only((0.0,), "differences have none"),
    },
}

VECTORS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(view)
    if decoder.heads.num_kv_heads % 2:
        raise UnsupportedArchitecture(
            f"{decoder.heads.num_kv_heads} key/value heads can't be split into two halves.", param="num_key_value_heads"
        )
    norm = rms_norm(view, default=1e-5)

    def adapt(number: int, layer: HeadLayer) -> HeadLayer:
        spec, sources = layer
        assert isinstance(spec.token_mixer, AttentionSpec)
        start = 0.8 - 0.6 * math.exp(-0.3 * number)
        mixer = replace(spec.token_mixer, difference=DifferenceSpec(start, replace(norm, weightless=True)))
        base, width = f"{decoder.layout.layer(number)}self_attn.", decoder.heads.head_dim
        lambdas = Source(tuple(Piece(base + name, reshape=(1, width)) for name in VECTORS))
        return replace(spec, token_mixer=mixer), {**sources, "token_mixer.lambdas": lambdas}

    return decoder.spec("diffllama", norm=norm, ropes=decoder.rope(), adapt=adapt)
