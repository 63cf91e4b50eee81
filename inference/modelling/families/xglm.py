"""XGLM and BioGPT: OPT's layers with a scaled embedding; XGLM's positions are sines and cosines.

Sources: https://arxiv.org/abs/2112.10668, https://arxiv.org/abs/2210.10341, and transformers' ``xglm`` and ``biogpt``,
whose norms have 1e-5 whatever config.json says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from inference.modelling.families.attention_decoder import AttentionDecoder
from inference.modelling.families.checks import IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, Table, harmless, used
from inference.modelling.families.config_keys import Harmless
from inference.modelling.families.config_values import activation, check_size
from inference.modelling.families.decoder import Positions
from inference.modelling.families.gpt2 import OPT, OPT_FIRST_POSITION
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.positions import SinusoidsSpec

TRAINING = harmless("training only", "dropout", "activation_dropout", "layerdrop", "init_std")
CONFIG_KEYS: Mapping[str, Table] = {
    "xglm": {
        **COMMON,
        **used("d_model", "attention_heads", "num_attention_heads", "ffn_dim", "activation_function"),
        **used("scale_embedding"),
        **TRAINING,
    },
    "biogpt": {
        **COMMON,
        **used("num_attention_heads", "intermediate_size", "hidden_act", "scale_embedding"),
        **TRAINING,
        "layer_norm_eps": Harmless("the norms have 1e-5, whatever it says"),
    },
}
COPIED_HEAD = IgnoredTensors(re.compile(r"^output_projection\.weight$"), "a copy of the embedding, which is the head")
BIOGPT = replace(OPT, final_norm="layer_norm", mlp_matrices=replace(OPT.mlp_matrices, width_key="intermediate_size"))
NORM = NormSpec("layer", 1e-5)


def build_spec(view: CheckpointView) -> ModelSpec:
    if view.config.string("model_type", default="xglm") == "biogpt":
        return _biogpt(view)
    decoder = AttentionDecoder.read(
        view, replace(OPT, final_norm="layer_norm"), tied_by_default=True, default_max_position_embeddings=2048
    )
    width = decoder.layout.hidden_size
    check_size(view, width, f"columns of {decoder.layout.embedding}", "d_model")
    return decoder.spec(
        "xglm",
        norm=NORM,
        ropes=None,
        act=activation(view, "activation_function", default="gelu"),
        gated=False,
        embedding_multiplier=_multiplier(view, width),
        sinusoids=SinusoidsSpec(steps=width // 2 - 1, first=OPT_FIRST_POSITION),
    )


def _biogpt(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(
        view,
        BIOGPT,
        prefixes=("biogpt.", ""),
        head="output_projection.weight",
        tied_by_default=True,
        default_max_position_embeddings=1024,
    )
    return decoder.spec(
        "biogpt",
        norm=NORM,
        ropes=None,
        act=activation(view, default="gelu"),
        gated=False,
        embedding_multiplier=_multiplier(view, decoder.layout.hidden_size),
        positions=Positions(f"{decoder.layout.prefix}embed_positions.weight", OPT_FIRST_POSITION),
        ignored=(COPIED_HEAD,) if decoder.layout.head is None else (),
    )


def _multiplier(view: CheckpointView, width: int) -> float:
    return width**0.5 if view.config.boolean("scale_embedding", default=True) else 1.0
