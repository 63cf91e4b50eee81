"""Nemotron 3 and 4, Jais 2 and AFM: MLPs of a squared ReLU without a gate.

Nemotron's LayerNorms multiply by 1 + weight. Source: https://arxiv.org/abs/2402.16819, and transformers' ``nemotron``,
``jais2`` and ``arcee``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import LLAMA_LIKE, Table, used
from inference.modelling.families.config_keys import Biases
from inference.modelling.families.config_values import activation, layer_norm, rms_norm
from inference.modelling.spec import ModelSpec

MLP_BIAS = Biases(r"mlp\.(?:up|down)_proj")
WITHOUT_EPS = {key: rule for key, rule in LLAMA_LIKE.items() if key != "rms_norm_eps"}
CONFIG_KEYS: Mapping[str, Table] = {
    "nemotron": {**WITHOUT_EPS, **used("norm_eps"), "mlp_bias": MLP_BIAS},
    "jais2": {**WITHOUT_EPS, **used("layer_norm_eps"), "mlp_bias": MLP_BIAS},
    "arcee": {**LLAMA_LIKE, "mlp_bias": MLP_BIAS},
}


def build_spec(view: CheckpointView) -> ModelSpec:
    model_type = view.config.string("model_type", default="nemotron")
    decoder = AttentionDecoder.read(view)
    norm = rms_norm(view, default=1e-5) if model_type == "arcee" else layer_norm(view)
    if model_type == "nemotron":
        norm = layer_norm(view, "norm_eps", offset=1.0)
    rope = decoder.rope(default_partial=0.5 if model_type == "nemotron" else None)
    return decoder.spec(model_type, norm=norm, ropes=rope, act=activation(view, default="relu2"), gated=False)
