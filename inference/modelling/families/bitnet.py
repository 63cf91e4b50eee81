"""BitNet b1.58: Llama with norms inside the mixers and a squared ReLU; its weights have three values.

How the files hold those, and that the products' inputs are rounded to 8 bits, is ``encodings.bitnet``'s.

Source: https://arxiv.org/abs/2504.12285, and transformers' ``bitnet``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inference.modelling.families.attention_decoder import AttentionDecoder
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import LLAMA_LIKE, Table
from inference.modelling.families.config_values import activation, rms_norm
from inference.modelling.families.decoder import norm_sources
from inference.modelling.families.prediction_head import HeadLayer
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.layers import AttentionSpec, MLPSpec
from inference.modelling.specs.parts import prefixed

CONFIG_KEYS: Mapping[str, Table] = {"bitnet": LLAMA_LIKE}


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(view, default_max_position_embeddings=2048)
    norm = rms_norm(view, default=1e-5)

    def adapt(number: int, layer: HeadLayer) -> HeadLayer:
        spec, sources = layer
        assert isinstance(spec.token_mixer, AttentionSpec)
        assert isinstance(spec.channel_mixer, MLPSpec)
        base = decoder.layout.layer(number)
        token = prefixed("token_mixer.output_norm", norm_sources(norm, f"{base}self_attn.attn_sub_norm"))
        channel = prefixed("channel_mixer.inner_norm", norm_sources(norm, f"{base}mlp.ffn_sub_norm"))
        spec = replace(
            spec,
            token_mixer=replace(spec.token_mixer, output_norm=norm),
            channel_mixer=replace(spec.channel_mixer, inner_norm=norm),
        )
        return spec, {**sources, **token, **channel}

    act = activation(view, default="relu2")
    return decoder.spec("bitnet", norm=norm, ropes=decoder.rope(default_theta=500_000.0), act=act, adapt=adapt)
