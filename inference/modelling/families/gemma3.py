"""Gemma 3, its text model: Gemma 2's layers with norms of q and k, five windowed layers to a full one, two rotations.

Windowed layers rotate by a base of their own, and only full ones stretch their positions.

Source: https://arxiv.org/abs/2503.19786, and transformers' ``gemma3_text`` for what config.json may leave out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from inference.errors import CorruptCheckpoint
from inference.modelling.families.attention_config import attention_spec
from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointConfig, CheckpointView
from inference.modelling.families.config_key_tables import LLAMA_LIKE, Table, used
from inference.modelling.families.config_keys import Harmless, Only
from inference.modelling.families.config_values import activation, number_with_evidence, rms_norm
from inference.modelling.families.decoder import decoder_spec
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.gemma2 import gemma_layers, read_softcap, refuse_encoder
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.windows import layer_types, sliding_window, window_of_each_layer
from inference.modelling.layer_parts import RopeSpec
from inference.modelling.spec import ModelSpec

CONFIG_KEYS: Mapping[str, Table] = {
    "gemma3_text": {
        **LLAMA_LIKE,
        **used(
            "hidden_activation", "query_pre_attn_scalar", "sliding_window", "layer_types", "final_logit_softcapping",
            "use_bidirectional_attention", "rope_local_base_freq", "sliding_window_pattern",
        ),
        "attn_logit_softcapping": Only((), "transformers doesn't apply it"),
        "hidden_act": Harmless("hidden_activation says it"),
    },
}  # fmt: skip

# transformers' defaults.
HEAD_DIM = 256
CONTEXT = 131072
WINDOW = 4096
PATTERN = 6
"""Every so many layers, one sees all positions."""
THETA = 1_000_000.0
LOCAL_THETA = 10_000.0
TYPES = ("sliding_attention", "full_attention")
ROPE_KEYS = ("rope_parameters", "rope_scaling", "rope_theta")


def build_spec(view: CheckpointView) -> ModelSpec:
    refuse_encoder(view)
    layout = read_layout(view, tied_by_default=True, default_max_position_embeddings=CONTEXT)
    heads = read_heads(view, layout.layer(0), layout.hidden_size, default_head_dim=HEAD_DIM)
    norm = rms_norm(view, offset=1.0)
    act = activation(view, "hidden_activation", default="gelu_pytorch_tanh")
    scalar = number_with_evidence(
        view, "attention.query_pre_attn_scalar", ("query_pre_attn_scalar",), 256.0, low=1e-6, high=1e9
    )
    types = _types(view, layout.num_layers)
    windows = window_of_each_layer(types, sliding_window(view, default=WINDOW))
    ropes = _ropes(view, heads.head_dim, layout.max_position_embeddings)
    attention = [
        attention_spec(
            view,
            layout.layer(number),
            heads,
            ropes[kind],
            scale=scalar**-0.5,
            qk_norm=norm,
            sliding_window=windows[number],
        )
        for number, kind in enumerate(types)
    ]
    layers, sources = gemma_layers(view, layout, attention, norm, act)
    return decoder_spec(
        view,
        layout,
        "gemma3_text",
        layers,
        sources,
        norm,
        ignored=(ROTARY_BUFFERS,),
        embedding_multiplier=math.sqrt(layout.hidden_size),
        logits_softcap=read_softcap(view, "final_logit_softcapping", None),
    )


def _types(view: CheckpointView, count: int) -> tuple[str, ...]:
    """By ``layer_types``, or by ``sliding_window_pattern``: the last of so many layers is a full one."""
    types = layer_types(view, count, TYPES)
    if types is not None:
        return types
    pattern = view.config.integer("sliding_window_pattern", "_sliding_window_pattern", default=PATTERN)
    return tuple(TYPES[not (number + 1) % pattern] for number in range(count))


def _ropes(view: CheckpointView, head_dim: int, max_positions: int) -> Mapping[str, RopeSpec]:
    """The rotation of each type of layer, in transformers 5's naming (an object for each) or in the older one."""
    config = view.config
    nested = config.get("rope_parameters", default={})
    if not isinstance(nested, Mapping):
        raise CorruptCheckpoint(
            f"config.json: rope_parameters is {str(nested)[:60]!r}; it must be an object.", param="rope_parameters"
        )
    local: Any = nested.get(TYPES[0])
    full: Any = nested.get(TYPES[1])
    if not isinstance(local, Mapping):
        local = {"rope_theta": config.get("rope_local_base_freq", default=LOCAL_THETA)}
    rest = {key: value for key, value in config.values.items() if key not in ROPE_KEYS}
    plain = view
    if isinstance(full, Mapping):
        plain = CheckpointView(CheckpointConfig({**rest, "rope_parameters": dict(full)}), view.tensors, view.facts)
    found = read_rope(plain, head_dim, max_position_embeddings=max_positions, default_theta=THETA)
    theta = number_with_evidence(
        view, "rope.local_theta", ("rope_theta",), LOCAL_THETA, low=1.001, high=1e15, config=CheckpointConfig(local)
    )
    kind = local.get("rope_type") or "default"
    if kind != "default":
        raise CorruptCheckpoint(
            f"config.json: rope_type of sliding_attention is {str(kind)[:60]!r}; windowed layers aren't stretched.",
            param="rope_parameters",
        )
    return {TYPES[0]: RopeSpec(theta, found.rotary_dim, False, None, max_positions), TYPES[1]: found}
