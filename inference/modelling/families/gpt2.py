"""GPT-2 and OPT: learned positions, LayerNorms, biases, an MLP without a gate.

Source: https://openai.com/index/better-language-models/, https://arxiv.org/abs/2205.01068, and transformers' ``gpt2``
and ``opt``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from inference.modelling.families.attention_config import Fused
from inference.modelling.families.attention_decoder import AttentionDecoder, LayerNames
from inference.modelling.families.checks import IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, GPT, Table, harmless, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import activation, check_size, layer_norm
from inference.modelling.families.decoder import Positions
from inference.modelling.families.mlp_config import MLPNames
from inference.modelling.spec import ModelSpec

GPT2 = LayerNames(
    attention="attn.",
    output="c_proj",
    fused=Fused("c_attn", is_transposed=True),
    mlp_matrices=MLPNames(up="c_fc", down="c_proj", is_transposed=True, width_key="n_inner"),
    norms={"token_norm": "ln_1", "channel_norm": "ln_2"},
    final_norm="ln_f",
)
OPT = LayerNames(
    output="out_proj",
    mlp="",
    mlp_matrices=MLPNames(up="fc1", down="fc2", width_key="ffn_dim"),
    norms={"token_norm": "self_attn_layer_norm", "channel_norm": "final_layer_norm"},
    final_norm="final_layer_norm",
)
OPT_FIRST_POSITION = 2
"""The table's first two rows belonged to padding."""
MASKS = IgnoredTensors(re.compile(r"\.attn\.(bias|masked_bias)$"), "constants of masks; early exports have them")
CONFIG_KEYS: Mapping[str, Table] = {
    "gpt2": {
        **GPT,
        **harmless("up to rounding", "reorder_and_upcast_attn", "apply_query_key_layer_scaling"),
        **harmless("no code reads it (GPT-SW3)", "normalize_attention_scores"),
        "scale_attn_by_inverse_layer_idx": Only((False,), "layers scale their scores alike"),
    },
    "opt": {
        **COMMON,
        **used("num_attention_heads", "ffn_dim", "activation_function"),
        **harmless("training only", "dropout", "activation_dropout", "layerdrop", "init_std"),
        "do_layer_norm_before": Only((True,), "norms come before the mixers"),
        **harmless("the shapes say it", "word_embed_proj_dim"),
        "enable_bias": Only((True,), "the projections have biases"),
        "layer_norm_elementwise_affine": Only((True,), "the norms have weights"),
    },
}  # fmt: skip


def build_spec(view: CheckpointView) -> ModelSpec:
    return _gpt2(view) if view.config.string("model_type", default="gpt2") == "gpt2" else _opt(view)


def _gpt2(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(
        view,
        GPT2,
        prefixes=("transformer.", ""),
        embeddings=("wte.weight",),
        layers="h.",
        tied_by_default=True,
        default_max_position_embeddings=1024,
    )
    check_size(view, decoder.layout.hidden_size, f"columns of {decoder.layout.embedding}", "n_embd")
    return decoder.spec(
        "gpt2",
        norm=layer_norm(view, "layer_norm_epsilon"),
        ropes=None,
        act=activation(view, "activation_function", default="gelu_new"),
        gated=False,
        ignored=(MASKS,),
        positions=Positions(f"{decoder.layout.prefix}wpe.weight"),
    )


def _opt(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(
        view, OPT, prefixes=("model.decoder.", "decoder."), tied_by_default=True, default_max_position_embeddings=2048
    )
    return decoder.spec(
        "opt",
        norm=layer_norm(view, "layer_norm_eps"),
        ropes=None,
        act=activation(view, "activation_function", default="relu"),
        gated=False,
        positions=Positions(f"{decoder.layout.prefix}embed_positions.weight", OPT_FIRST_POSITION),
    )
