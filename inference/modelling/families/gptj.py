"""GPT-J and CodeGen: attention and an MLP without a gate side by side, behind one norm; a head with a bias.

Source: https://github.com/kingoflolz/mesh-transformer-jax, https://arxiv.org/abs/2203.13474, and transformers' ``gptj``
and ``codegen``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from inference.modelling.families.attention_config import Fused
from inference.modelling.families.attention_decoder import AttentionDecoder, LayerNames
from inference.modelling.families.checks import IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import GPT, Table, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import activation, check_size, layer_norm
from inference.modelling.families.mlp_config import MLPNames
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import RopeSpec

CORES = 4
"""CodeGen's rows of q, v and k lie in so many parts, for the cores of the machine that trained it."""
NAMES = {
    model_type: LayerNames(
        attention="attn.",
        output="out_proj",
        fused=fused,
        mlp_matrices=MLPNames(up="fc_in", down="fc_out", width_key="n_inner"),
        norms={"token_norm": "ln_1"},
        final_norm="ln_f",
    )
    for model_type, fused in (("gptj", None), ("codegen", Fused("qkv_proj", groups=CORES, order="qvk")))
}
MASKS = IgnoredTensors(re.compile(r"\.attn\.(bias|causal_mask|masked_bias)$"), "constants of masks")
KEYS: Table = {**GPT, **used("rotary_dim"), "rotary": Only((True,), "queries and keys are rotated")}
CONFIG_KEYS: Mapping[str, Table] = {"gptj": KEYS, "codegen": KEYS}


def build_spec(view: CheckpointView) -> ModelSpec:
    model_type = view.config.string("model_type", default="gptj")
    decoder = AttentionDecoder.read(
        view,
        NAMES[model_type],
        prefixes=("transformer.", ""),
        embeddings=("wte.weight",),
        layers="h.",
        default_max_position_embeddings=2048,
    )
    check_size(view, decoder.layout.hidden_size, f"columns of {decoder.layout.embedding}", "n_embd")
    rotated = view.config.integer("rotary_dim", default=64, low=2, high=decoder.heads.head_dim)
    return decoder.spec(
        model_type,
        norm=layer_norm(view, "layer_norm_epsilon"),
        ropes=RopeSpec(10_000.0, rotated, interleaved=True),
        act=activation(view, "activation_function", default="gelu_new"),
        gated=False,
        is_parallel=True,
        can_have_head_bias=True,
        ignored=(MASKS,),
    )
