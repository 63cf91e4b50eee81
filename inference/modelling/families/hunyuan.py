"""Hunyuan, its dense models: queries and keys are normed behind the rotation, whose base ``alpha`` stretches.

Source: https://arxiv.org/abs/2411.02265, and transformers' ``hunyuan_v1_dense``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inference.modelling.families.attention_decoder import AttentionDecoder, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import MLP_BIAS, ROPE_MEMBERS, WITH_ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Harmless, Members, Only
from inference.modelling.families.config_values import rms_norm
from inference.modelling.layer_parts import RopeSpec
from inference.modelling.spec import ModelSpec

NAMES = LayerNames(qk_norms=("query_layernorm", "key_layernorm"))
ROPE_WITH_ALPHA = Members({**ROPE_MEMBERS, **used("alpha")})
CONFIG_KEYS: Mapping[str, Table] = {
    "hunyuan_v1_dense": {
        **WITH_ROPE,
        **harmless(
            "other token ids, which the text side takes from the tokeniser's files",
            "eod_token_id", "im_start_id", "im_end_id", "text_start_id", "text_end_id", "org_vocab_size",
        ),
        **harmless("for other tasks", "add_classification_head", "class_num", "pool_type"),
        **harmless("layers that share keys and values, which use_cla would switch on", "cla_share_factor"),
        "attention_head_dim": Harmless("an early name beside head_dim"),
        "mlp_bias": MLP_BIAS,
        "norm_type": Only(("rms", "hf_rms"), "the norms are RMS norms"),
        "use_cla": Only((False,), "no layer uses the keys and values of another"),
        "use_qk_norm": Only((True,), "queries and keys are normed"),
        "rope_parameters": ROPE_WITH_ALPHA,
        "rope_scaling": ROPE_WITH_ALPHA,
    }
}  # fmt: skip


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(view, NAMES, default_max_position_embeddings=2048)
    return decoder.spec(
        "hunyuan_v1_dense",
        norm=rms_norm(view, default=1e-5),
        ropes=_rope(decoder),
        qk_norm="head",
        attention_options={"qk_norm_after_rope": True},
    )


def _rope(decoder: AttentionDecoder) -> RopeSpec:
    """A rotation that is called dynamic but has an ``alpha`` has a base that doesn't depend on the length."""
    rope, config = decoder.rope(), decoder.view.config
    keys = ("rope_parameters.alpha", "rope_scaling.alpha")
    if rope.scaling is None or rope.scaling.kind != "dynamic" or config.get(*keys) is None:
        return rope
    alpha, width = config.number(*keys, low=1e-6, high=1e9), rope.rotary_dim
    return replace(rope, theta=rope.theta * alpha ** (width / (width - 2)), scaling=None)
