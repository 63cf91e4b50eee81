"""StarCoder and SantaCoder (GPT-BigCode): GPT-2 with one head of keys and values for all queries.

Source: https://arxiv.org/abs/2305.06161, and transformers' ``gpt_bigcode``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from inference.modelling.families.attention_config import Fused
from inference.modelling.families.attention_decoder import AttentionDecoder, LayerNames
from inference.modelling.families.checks import IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import GPT, Table, harmless, used
from inference.modelling.families.config_values import activation, check_size, layer_norm
from inference.modelling.families.decoder import Positions
from inference.modelling.families.mlp_config import MLPNames
from inference.modelling.spec import ModelSpec

NAMES = LayerNames(
    attention="attn.",
    output="c_proj",
    fused=Fused("c_attn"),
    mlp_matrices=MLPNames(up="c_fc", down="c_proj", width_key="n_inner"),
    norms={"token_norm": "ln_1", "channel_norm": "ln_2"},
    final_norm="ln_f",
)
MASKS = IgnoredTensors(re.compile(r"\.attn\.(bias|masked_bias)$"), "constants of masks")
CONFIG_KEYS: Mapping[str, Table] = {
    "gpt_bigcode": {
        **GPT,
        **used("multi_query"),
        **harmless("up to rounding", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
        **harmless("how a product is computed", "inference_runner", "validate_runner_input", "pre_allocate_kv_cache"),
        **harmless("how a product is computed", "max_batch_size", "pad_key_length"),
        **harmless("multi_query says it", "num_key_value_heads"),
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    has_one = view.config.boolean("multi_query", default=True)
    decoder = AttentionDecoder.read(
        view,
        # With as many heads of keys as of queries, they lie head by head.
        NAMES if has_one else replace(NAMES, fused=Fused("c_attn", by_head=True)),
        prefixes=("transformer.", ""),
        embeddings=("wte.weight",),
        layers="h.",
        tied_by_default=True,
        default_max_position_embeddings=1024,
        fused_kv_heads=1 if has_one else None,
    )
    check_size(view, decoder.layout.hidden_size, f"columns of {decoder.layout.embedding}", "n_embd")
    return decoder.spec(
        "gpt_bigcode",
        norm=layer_norm(view, "layer_norm_epsilon"),
        ropes=None,
        act=activation(view, "activation_function", default="gelu_pytorch_tanh"),
        gated=False,
        ignored=(MASKS,),
        positions=Positions(f"{decoder.layout.prefix}wpe.weight"),
    )
