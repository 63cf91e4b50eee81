"""BLOOM: scores that fall with the distance (ALiBi), a norm behind the embedding, q, k and v head by head.

Source: https://arxiv.org/abs/2211.05100, and transformers' ``bloom``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.alibi import alibi_slopes
from inference.modelling.families.attention_config import Fused
from inference.modelling.families.attention_decoder import AttentionDecoder, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, Table, aliases, harmless, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import check_size, layer_norm
from inference.modelling.families.mlp_config import MLPNames
from inference.modelling.spec import ModelSpec

NAMES = LayerNames(
    attention="self_attention.",
    output="dense",
    fused=Fused("query_key_value", by_head=True),
    mlp_matrices=MLPNames(up="dense_h_to_4h", down="dense_4h_to_h"),
    final_norm="ln_f",
)
CONFIG_KEYS: Mapping[str, Table] = {
    "bloom": {
        **COMMON,
        **aliases("num_attention_heads", "n_head"),
        **used("num_attention_heads", "n_embed", "layer_norm_epsilon", "seq_length"),
        **harmless("up to rounding", "slow_but_exact", "attention_softmax_in_fp32", "masked_softmax_fusion"),
        **harmless("training only", "bias_dropout_fusion", "skip_bias_add", "skip_bias_add_qkv"),
        **harmless("no code reads it", "n_inner", "offset_alibi"),
        "apply_residual_connection_post_layernorm": Only((False,), "the stream goes on from before the norms"),
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    norm = layer_norm(view, "layer_norm_epsilon")
    decoder = AttentionDecoder.read(
        view,
        NAMES,
        prefixes=("transformer.", ""),
        embeddings=("word_embeddings.weight",),
        layers="h.",
        tied_by_default=True,
        default_max_position_embeddings=view.config.integer("seq_length", default=2048),
    )
    check_size(view, decoder.layout.hidden_size, f"columns of {decoder.layout.embedding}", "n_embed")
    return decoder.spec(
        "bloom",
        norm=norm,
        ropes=None,
        attention_options={"slopes": alibi_slopes(decoder.heads.num_heads)},
        act="gelu_tanh",
        gated=False,
        embedding_norm=norm,
        embedding_norm_name="word_embeddings_layernorm",
    )
