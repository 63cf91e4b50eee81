"""GPT-NeoX, Pythia and Persimmon: q, k and v head by head in one projection, LayerNorms, an MLP without a gate.

Source: https://arxiv.org/abs/2204.06745, https://www.adept.ai/blog/persimmon-8b, and transformers' ``gpt_neox`` and
``persimmon``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from inference.modelling.families.attention_config import Fused
from inference.modelling.families.attention_decoder import PRE_NORMS, AttentionDecoder, LayerNames
from inference.modelling.families.checks import IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, HEADS, ROPE, Table, used
from inference.modelling.families.config_keys import Biases
from inference.modelling.families.config_values import activation, layer_norm
from inference.modelling.families.mlp_config import MLPNames
from inference.modelling.spec import ModelSpec

MATRICES = MLPNames(up="dense_h_to_4h", down="dense_4h_to_h")
NEOX = LayerNames(
    attention="attention.",
    output="dense",
    fused=Fused("query_key_value", by_head=True),
    mlp_matrices=MATRICES,
    final_norm="final_layer_norm",
)
PERSIMMON = LayerNames(
    output="dense",
    fused=Fused("query_key_value", by_head=True),
    qk_norms=("q_layernorm", "k_layernorm"),
    mlp_matrices=MATRICES,
    norms=PRE_NORMS,
    final_norm="final_layernorm",
)
MASKS = IgnoredTensors(re.compile(r"\.attention\.(bias|masked_bias)$"), "constants of masks; early exports have them")
KEYS: Table = {**COMMON, **HEADS, **ROPE, **used("intermediate_size", "hidden_act", "layer_norm_eps")}
CONFIG_KEYS: Mapping[str, Table] = {
    "gpt_neox": {
        **{key: rule for key, rule in KEYS.items() if key not in ("num_key_value_heads", "num_kv_heads", "head_dim")},
        **used("rotary_pct", "rotary_emb_base", "use_parallel_residual"),
        "attention_bias": Biases(r"attention\.(?:query_key_value|dense)"),
    },
    "persimmon": {
        **{key: rule for key, rule in KEYS.items() if key not in ("num_key_value_heads", "num_kv_heads", "head_dim")},
        **used("qk_layernorm"),
    },
}


def build_spec(view: CheckpointView) -> ModelSpec:
    model_type = view.config.string("model_type", default="gpt_neox")
    if model_type == "persimmon":
        decoder = AttentionDecoder.read(view, PERSIMMON, default_max_position_embeddings=16384)
        return decoder.spec(
            model_type,
            norm=layer_norm(view),
            ropes=decoder.rope(default_theta=25_000.0, default_partial=0.5),
            qk_norm="head" if view.config.boolean("qk_layernorm", default=True) else None,
            act=activation(view, default="relu2"),
            gated=False,
        )
    decoder = AttentionDecoder.read(
        view,
        NEOX,
        prefixes=("gpt_neox.", ""),
        embeddings=("embed_in.weight",),
        head="embed_out.weight",
        default_max_position_embeddings=2048,
    )
    share = view.config.number("rotary_pct", default=0.25, low=0.0, high=1.0)
    theta = view.config.number("rotary_emb_base", default=10_000.0, low=1.001, high=1e15)
    return decoder.spec(
        model_type,
        norm=layer_norm(view),
        ropes=decoder.rope(default_partial=share, default_theta=theta),
        act=activation(view, default="gelu"),
        gated=False,
        is_parallel=view.config.boolean("use_parallel_residual", default=True),
        ignored=(MASKS,),
    )
