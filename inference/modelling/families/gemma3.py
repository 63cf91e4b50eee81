"""Gemma 3, its text model: Gemma 2's layers with norms of q and k, five windowed layers to a full one, two rotations.

Windowed layers rotate by a base of their own, and only full ones stretch their positions.

Source: https://arxiv.org/abs/2503.19786, and transformers' ``gemma3_text`` for what config.json may leave out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from inference.modelling.families.checks import OTHER_PARTS
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import LLAMA_LIKE, Table, used
from inference.modelling.families.config_keys import Harmless, Only
from inference.modelling.families.config_values import rms_norm
from inference.modelling.families.gemma2 import gemma_activation, read_gemma, read_scale, read_softcap, refuse_encoder
from inference.modelling.families.rope_by_type import ropes_by_type
from inference.modelling.families.text_part import around, text_part
from inference.modelling.families.windows import TYPES, full_every, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import ModelSpec

GEMMA3: Table = {
    **LLAMA_LIKE,
    **used(
        "hidden_activation", "query_pre_attn_scalar", "sliding_window", "layer_types", "final_logit_softcapping",
        "use_bidirectional_attention", "rope_local_base_freq", "sliding_window_pattern",
    ),
    "attn_logit_softcapping": Only((), "transformers doesn't apply it"),
    "hidden_act": Harmless("hidden_activation says it"),
}  # fmt: skip
CONFIG_KEYS: Mapping[str, Table] = {"gemma3_text": GEMMA3, "gemma3": around(GEMMA3)}

# transformers' defaults.
CONTEXT = 131072
WINDOW = 4096
PATTERN = 6
"""Every so many layers, one sees all positions."""
THETA = 1_000_000.0
LOCAL_THETA = 10_000.0


def build_spec(view: CheckpointView) -> ModelSpec:
    view = text_part(view)
    refuse_encoder(view)
    decoder = read_gemma(view, context=CONTEXT)
    types = _types(view, decoder.layout.num_layers)
    ropes = ropes_by_type(view, decoder.rope, theta=THETA, local_theta=LOCAL_THETA)
    return decoder.spec(
        "gemma3_text",
        norm=rms_norm(view, offset=1.0),
        ropes=[ropes[kind] for kind in types],
        windows=window_of_each_layer(types, sliding_window(view, default=WINDOW)),
        qk_norm="head",
        act=gemma_activation(view),
        attention_options={"scale": read_scale(view)},
        embedding_multiplier=math.sqrt(decoder.layout.hidden_size),
        logits_softcap=read_softcap(view, "final_logit_softcapping", None),
        ignored=(OTHER_PARTS,),
    )


def _types(view: CheckpointView, count: int) -> tuple[str, ...]:
    """By ``layer_types``, or by ``sliding_window_pattern``: the last of so many layers is a full one."""
    types = layer_types(view, count, TYPES)
    if types is not None:
        return types
    pattern = view.config.integer("sliding_window_pattern", "_sliding_window_pattern", default=PATTERN)
    return full_every(pattern, count)
