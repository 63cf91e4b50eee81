"""Apertus: Llama with norms of queries and keys, and an MLP without a gate whose activation (xIELU) is learned.

Source: https://arxiv.org/abs/2509.14233, and transformers' ``apertus``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder, LayerNames
from inference.modelling.families.checks import IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import LLAMA_LIKE, Table
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import rms_norm
from inference.modelling.families.rope_config import described_rope
from inference.modelling.spec import ModelSpec

NAMES = LayerNames(norms={"token_norm": "attention_layernorm", "channel_norm": "feedforward_layernorm"})
CONSTANTS = IgnoredTensors(re.compile(r"\.act_fn\.(beta|eps)$"), "constants of the activation")
STRETCHED = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
"""The rotation of a config that doesn't say."""
CONFIG_KEYS: Mapping[str, Table] = {
    "apertus": {
        **LLAMA_LIKE,
        "hidden_act": Only(("xielu",), "the tensors have its numbers"),
        "qk_norm": Only((True,), "queries and keys have norms"),
        "post_norm": Only((False,), "norms come before the mixers"),
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(view, NAMES)
    rope_view = view
    if described_rope(view.config) is None:
        rope_view = view.changed(rope_parameters=STRETCHED)
    return decoder.spec(
        "apertus",
        norm=rms_norm(view, default=1e-5),
        ropes=decoder.rope(rope_view, default_theta=12_000_000.0),
        qk_norm="head",
        act="xielu",
        gated=False,
        ignored=(CONSTANTS,),
    )
