"""nanochat: norms without weights, also behind the embedding and the rotation, which turns the other way.

Source: https://github.com/karpathy/nanochat, and transformers' ``nanochat``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inference.modelling.families.attention_decoder import AttentionDecoder, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import WITH_ROPE, Table, used
from inference.modelling.families.config_values import activation, number_with_evidence, rms_norm
from inference.modelling.families.mlp_config import MLPNames
from inference.modelling.spec import ModelSpec

NAMES = LayerNames(mlp_matrices=MLPNames(up="fc1", down="fc2"))
CONFIG_KEYS: Mapping[str, Table] = {"nanochat": {**WITH_ROPE, **used("final_logit_softcapping")}}


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(view, NAMES, default_max_position_embeddings=2048)
    norm = replace(rms_norm(view), weightless=True)
    has_cap = "final_logit_softcapping" not in view.config.values or view.config.get("final_logit_softcapping")
    cap = number_with_evidence(view, "logits_softcap", ("final_logit_softcapping",), 15.0, low=1e-3, high=1e6)
    return decoder.spec(
        "nanochat",
        norm=norm,
        ropes=replace(decoder.rope(), is_reversed=True),
        qk_norm="head",
        attention_options={"qk_norm_after_rope": True},
        act=activation(view, default="relu2"),
        gated=False,
        logits_softcap=cap if has_cap else None,
        embedding_norm=norm,
    )
