"""Falcon: attention and an MLP without a gate side by side, few heads of keys and values, rotation or ALiBi.

Falcon-7B has one norm for both mixers and one head of keys and values, 40B two norms and groups of heads, 2-11B one
norm and groups; in the RW models the mixers follow each other, and scores fall with the distance.
Source: https://arxiv.org/abs/2311.16867, and transformers' ``falcon``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inference.modelling.families.alibi import alibi_slopes
from inference.modelling.families.attention_config import Fused
from inference.modelling.families.attention_decoder import PRE_NORMS, AttentionDecoder, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, ROPE, Table, used
from inference.modelling.families.config_keys import Biases, Only
from inference.modelling.families.config_values import activation, layer_norm
from inference.modelling.families.mlp_config import MLPNames
from inference.modelling.spec import ModelSpec

NAMES = LayerNames(
    attention="self_attention.",
    output="dense",
    fused=Fused("query_key_value", by_head=True),
    mlp_matrices=MLPNames(up="dense_h_to_4h", down="dense_4h_to_h", width_key="ffn_hidden_size"),
    final_norm="ln_f",
)
ONE_NORM = {"token_norm": "input_layernorm"}
TWO_NORMS = {"token_norm": "ln_attn", "channel_norm": "ln_mlp"}
CONFIG_KEYS: Mapping[str, Table] = {
    "falcon": {
        **COMMON,
        **ROPE,
        **used("num_attention_heads", "num_kv_heads", "multi_query", "new_decoder_architecture", "parallel_attn"),
        **used("num_ln_in_parallel_attn", "alibi", "activation", "ffn_hidden_size", "layer_norm_epsilon"),
        "bias": Biases(r"(?:query_key_value|dense|dense_h_to_4h|dense_4h_to_h)"),
        "apply_residual_connection_post_layernorm": Only((False,), "the stream goes on from before the norms"),
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    config = view.config
    is_grouped = config.boolean("new_decoder_architecture", default=False)
    is_parallel = is_grouped or config.boolean("parallel_attn", default=True)
    norms = PRE_NORMS
    if is_parallel:
        count = config.integer("num_ln_in_parallel_attn", default=2 if is_grouped else 1, low=1, high=2)
        norms = TWO_NORMS if count == 2 else ONE_NORM
    kv_heads = config.optional_integer("num_kv_heads")
    if not is_grouped and config.boolean("multi_query", default=True):
        kv_heads = 1
    decoder = AttentionDecoder.read(
        view,
        replace(NAMES, norms=norms),
        prefixes=("transformer.", ""),
        embeddings=("word_embeddings.weight",),
        layers="h.",
        tied_by_default=True,
        default_max_position_embeddings=2048,
        fused_kv_heads=kv_heads,
    )
    has_alibi = config.boolean("alibi", default=False)
    scale = decoder.heads.head_dim**-0.5
    # The distance is part of the scores before they are scaled, other than in MPT and BLOOM.
    slopes = tuple(slope * scale for slope in alibi_slopes(decoder.heads.num_heads))
    return decoder.spec(
        "falcon",
        norm=layer_norm(view, "layer_norm_epsilon"),
        ropes=None if has_alibi else decoder.rope(),
        attention_options={"slopes": slopes} if has_alibi else None,
        act=activation(view, "activation", default="gelu"),
        gated=False,
        is_parallel=is_parallel,
    )
