"""MPT: scores that fall with the distance (ALiBi) instead of positions, LayerNorms and an MLP without biases.

Source: https://www.databricks.com/blog/mpt-7b, https://arxiv.org/abs/2108.12409, and transformers' ``mpt``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.alibi import alibi_slopes
from inference.modelling.families.attention_config import Fused
from inference.modelling.families.attention_decoder import AttentionDecoder, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, Table, harmless, used
from inference.modelling.families.config_keys import Harmless, Members, Only
from inference.modelling.families.config_values import check_size, layer_norm
from inference.modelling.families.mlp_config import MLPNames
from inference.modelling.spec import ModelSpec

NAMES = LayerNames(
    attention="attn.",
    output="out_proj",
    fused=Fused("Wqkv"),
    mlp="ffn.",
    mlp_matrices=MLPNames(up="up_proj", down="down_proj"),
    norms={"token_norm": "norm_1", "channel_norm": "norm_2"},
    final_norm="norm_f",
)
ATTENTION_KEYS: Table = {
    **{name: rule for name, rule in COMMON.items() if isinstance(rule, Harmless)},
    **used("softmax_scale", "clip_qkv"),
    **harmless("how a product is computed", "attn_impl"),
    **harmless("training only", "attn_uses_sequence_id"),
    **harmless("transformers' own members of any config", "model_type", "_name_or_path", "is_encoder_decoder"),
    "alibi_bias_max": Only((8,), "transformers computes no other value"),
    "alibi": Only((True,), "positions are in the scores"),
    "attn_type": Only(("multihead_attention",), "each head has keys of its own"),
    "prefix_lm": Only((False,), "no token sees a later one"),
    "qk_ln": Only((False,), "queries and keys have no norms"),
}  # fmt: skip
CONFIG_KEYS: Mapping[str, Table] = {
    "mpt": {
        **COMMON,
        **used("d_model", "n_heads", "n_layers", "layer_norm_epsilon"),
        **harmless("training only", "emb_pdrop", "embedding_fraction", "init_device", "init_config", "verbose"),
        **harmless("the tokenizer is a file", "tokenizer_name"),
        **harmless("with ALiBi there are none", "learned_pos_emb"),
        **harmless("which program's products, up to rounding", "fc_type"),
        "ffn_config": Members({"ffn_type": Only(("mptmlp",), "the MLP isn't gated")}),
        "norm_type": Only(("layernorm", "low_precision_layernorm"), "norms are LayerNorms"),
        "expansion_ratio": Only((4,), "the MLP is four times as wide"),
        "logit_scale": Only((), "logits are left as they are"),
        "no_bias": Only((True,), "no layer has biases"),
        "attn_config": Members(ATTENTION_KEYS),
    }
}  # fmt: skip


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(
        view,
        NAMES,
        prefixes=("transformer.", ""),
        embeddings=("wte.weight",),
        layers="blocks.",
        tied_by_default=True,
        default_max_position_embeddings=2048,
    )
    check_size(view, decoder.layout.hidden_size, f"columns of {decoder.layout.embedding}", "d_model")
    config = view.config
    clip = config.number("attn_config.clip_qkv", default=0.0, low=0.0, high=1e9)
    scale = config.number("attn_config.softmax_scale", default=decoder.heads.head_dim**-0.5, low=0.0, high=1e9)
    return decoder.spec(
        "mpt",
        norm=layer_norm(view, "layer_norm_epsilon", has_bias=False),
        ropes=None,
        attention_options={
            "slopes": alibi_slopes(decoder.heads.num_heads),
            "qkv_clip": clip or None,
            "scale": scale,
        },
        act="gelu",
        gated=False,
    )
