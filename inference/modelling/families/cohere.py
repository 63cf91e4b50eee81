"""Command R and Command R7B: attention and MLP side by side, norms without biases, rotation in adjacent pairs.

Command R7B rotates in windowed layers only. Source: https://arxiv.org/abs/2504.00698, and transformers' ``cohere`` and
``cohere2``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, HEADS, QKVO_BIAS, ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import layer_norm, number_with_evidence
from inference.modelling.families.windows import TYPES, full_every, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import RopeSpec

LOGIT_SCALE = 0.0625
THETAS = {"cohere": 500_000.0, "cohere2": 10_000.0}
NAMES = LayerNames(norms={"token_norm": "input_layernorm"})
KEYS: Table = {
    **COMMON,
    **HEADS,
    **ROPE,
    **used("intermediate_size", "hidden_act", "layer_norm_eps", "logit_scale", "model_max_length"),
    "attention_bias": QKVO_BIAS,
}
CONFIG_KEYS: Mapping[str, Table] = {
    "cohere": {**KEYS, **used("use_qk_norm")},
    "cohere2": {
        **KEYS,
        **used("sliding_window", "layer_types", "sliding_window_pattern", "_sliding_window_pattern"),
        **harmless("an early name beside sliding_window_pattern", "layer_switch"),
        **harmless("how a table is split among devices", "use_parallel_embedding"),
        "order_of_interleaved_layers": Only(("local_attn_first",), "windowed layers come first"),
        "position_embedding_type": Only(("rope_gptj",), "windowed layers rotate, in adjacent pairs"),
        "rotary_pct": Only((1.0,), "heads are rotated as a whole"),
        "use_embedding_sharing": Only((True,), "the head is the embedding"),
        "use_gated_activation": Only((True,), "the MLP is gated"),
        "use_parallel_block": Only((True,), "attention and MLP stand side by side"),
        "use_qk_norm": Only((False,), "queries and keys aren't normed"),
    },
}


def build_spec(view: CheckpointView) -> ModelSpec:
    model_type = view.config.string("model_type", default="cohere2")
    if "model_max_length" in view.config:  # the context, where max_position_embeddings is that of an early training
        view = view.changed(max_position_embeddings=view.config.integer("model_max_length", high=1 << 30))
    decoder = AttentionDecoder.read(view, NAMES, tied_by_default=True, default_max_position_embeddings=8192)
    rope = decoder.rope(interleaved=True, default_theta=THETAS[model_type])
    count = decoder.layout.num_layers
    windows: tuple[int | None, ...] | None = None
    ropes: list[RopeSpec | None] = [rope] * count
    if model_type == "cohere2":
        types = layer_types(view, count, TYPES)
        if types is None:
            pattern = view.config.integer("sliding_window_pattern", "_sliding_window_pattern", default=4)
            types = full_every(pattern, count)
        windows = window_of_each_layer(types, sliding_window(view, default=4096))
        ropes = [rope if kind == TYPES[0] else None for kind in types]
    has_qk_norm = model_type == "cohere" and view.config.boolean("use_qk_norm", default=False)
    scale = number_with_evidence(view, "logits_multiplier", ("logit_scale",), LOGIT_SCALE, low=1e-9, high=1e9)
    return decoder.spec(
        model_type,
        norm=layer_norm(view, has_bias=False),
        ropes=ropes,
        windows=windows,
        qk_norm="each_head" if has_qk_norm else None,
        is_parallel=True,
        logits_multiplier=scale,
    )
