"""Granite 3, dense and with experts, and HyperCLOVA X SEED Think: Llama with multipliers, the latter with more norms.

Source: https://arxiv.org/abs/2405.04324, and transformers' ``granite``,
``granitemoe``, ``granitemoeshared`` and ``hyperclovax``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import PRE_NORMS, AttentionDecoder, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import LLAMA_LIKE, WITH_ROPE, Table, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import activation, number_with_evidence, rms_norm
from inference.modelling.families.granite_experts import granite_mixer
from inference.modelling.spec import ModelSpec

MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
EXPERT_KEYS: Table = {
    **WITH_ROPE,
    **used(*MULTIPLIERS, "num_local_experts", "num_experts_per_tok"),
    "normalization_function": Only(("rmsnorm",), "the norms are RMS norms"),
}
CONFIG_KEYS: Mapping[str, Table] = {
    "granite": {**LLAMA_LIKE, **used(*MULTIPLIERS)},
    "granitemoe": EXPERT_KEYS,
    "granitemoeshared": {**EXPERT_KEYS, **used("shared_intermediate_size")},
    "hyperclovax": {**LLAMA_LIKE, **used(*MULTIPLIERS, "use_post_norm")},
}


def build_spec(view: CheckpointView) -> ModelSpec:
    model_type = view.config.string("model_type", default="granite")
    is_granite = model_type != "hyperclovax"
    act = activation(view)
    norms = PRE_NORMS
    if not is_granite and view.config.boolean("use_post_norm", default=True):
        norms = {**PRE_NORMS, "token_post_norm": "post_norm1", "channel_post_norm": "post_norm2"}
    decoder = AttentionDecoder.read(view, LayerNames(norms=norms), default_max_position_embeddings=2048)
    scale = _multiplier(view, "attention_multiplier", 1.0 if is_granite else decoder.heads.head_dim**-0.5)
    logits = _multiplier(view, "logits_scaling", 1.0)
    return decoder.spec(
        model_type,
        norm=rms_norm(view),
        ropes=decoder.rope(),
        attention_options={"scale": scale},
        act=act,
        experts=(lambda layer: granite_mixer(view, layer, act)) if model_type.startswith("granitemoe") else None,
        router="",
        residual_multiplier=_multiplier(view, "residual_multiplier", 1.0),
        embedding_multiplier=_multiplier(view, "embedding_multiplier", 1.0),
        logits_multiplier=1.0 / logits if is_granite else logits,
    )


def _multiplier(view: CheckpointView, key: str, default: float) -> float:
    return number_with_evidence(view, key, (key,), default, low=1e-9, high=1e9)
