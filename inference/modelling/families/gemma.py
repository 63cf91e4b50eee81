"""Gemma and VaultGemma: Gemma 2 without the norms behind its mixers; Gemma 1 has neither caps nor windows.

Source: https://arxiv.org/abs/2403.08295, https://arxiv.org/abs/2510.15001, and transformers' ``gemma`` and
``vaultgemma`` for what config.json may leave out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from inference.modelling.families.attention_decoder import PRE_NORMS
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import LLAMA_LIKE, Table, used
from inference.modelling.families.config_keys import Harmless
from inference.modelling.families.config_values import activation, rms_norm
from inference.modelling.families.gemma2 import CONFIG_KEYS as GEMMA2_KEYS
from inference.modelling.families.gemma2 import CONTEXT, read_gemma, refuse_encoder
from inference.modelling.families.gemma2 import build_spec as build_gemma2
from inference.modelling.spec import ModelSpec

VAULT_NORMS = {"token_norm": "input_layernorm", "channel_norm": "pre_feedforward_layernorm"}
CONFIG_KEYS: Mapping[str, Table] = {
    "gemma": {
        **LLAMA_LIKE,
        **used("use_bidirectional_attention"),
        "hidden_activation": Harmless("transformers doesn't read it"),
    },
    "vaultgemma": {**GEMMA2_KEYS["gemma2"]},
}


def build_spec(view: CheckpointView) -> ModelSpec:
    if view.config.string("model_type", default="gemma") == "vaultgemma":
        return build_gemma2(view, "vaultgemma", VAULT_NORMS)
    refuse_encoder(view)
    if view.config.get("hidden_act") == "gelu":  # the first files say so, but mean the tanh approximation
        view = view.changed(hidden_act="gelu_pytorch_tanh")
    decoder = read_gemma(view, context=CONTEXT, norms=PRE_NORMS)
    return decoder.spec(
        "gemma",
        norm=rms_norm(view, offset=1.0),
        ropes=decoder.rope(),
        act=activation(view, default="gelu_pytorch_tanh"),
        embedding_multiplier=math.sqrt(decoder.layout.hidden_size),
    )
