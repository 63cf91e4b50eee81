"""North Micro Vision (Cohere Compass), its text model: Command R's layers, a rotation or none for each type of layer.

Source: transformers' ``cohere_compass_text``, also for what config.json may leave out. Halves of heads are rotated;
the three positions of a token are equal for text.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.errors import CorruptCheckpoint
from inference.modelling.families.attention_decoder import AttentionDecoder
from inference.modelling.families.cohere import NAMES
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, HEADS, QKVO_BIAS, QWEN_ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Members
from inference.modelling.families.config_values import layer_norm, number_with_evidence
from inference.modelling.families.rope_by_type import rope_of_type
from inference.modelling.families.windows import (
    DEFAULT_WINDOW,
    TYPES,
    layer_types,
    sliding_window,
    window_of_each_layer,
)
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import RopeSpec

CONFIG_KEYS: Mapping[str, Table] = {
    "cohere_compass_text": {
        **COMMON,
        **HEADS,
        **used("intermediate_size", "hidden_act", "layer_norm_eps", "logit_scale", "layer_types", "sliding_window"),
        **harmless("for embeddings, which a request asks for by name", "pooling"),
        "attention_bias": QKVO_BIAS,
        "rope_parameters": Members({**QWEN_ROPE.rules, **dict.fromkeys(TYPES, QWEN_ROPE)}),
    }
}

CONTEXT = 8192
ROPES = {kind: {"rope_theta": 10_000.0} for kind in TYPES}


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(view, NAMES, tied_by_default=True, default_max_position_embeddings=CONTEXT)
    count = decoder.layout.num_layers
    types = layer_types(view, count, TYPES) or (TYPES[1],) * count
    ropes = {kind: _rope(decoder, kind) for kind in dict.fromkeys(types)}
    scale = number_with_evidence(view, "logits_multiplier", ("logit_scale",), 1.0, low=1e-9, high=1e9)
    return decoder.spec(
        "cohere_compass_text",
        norm=layer_norm(view, has_bias=False),
        ropes=[ropes[kind] for kind in types],
        windows=window_of_each_layer(types, sliding_window(view, default=DEFAULT_WINDOW)),
        is_parallel=True,
        logits_multiplier=scale,
    )


def _rope(decoder: AttentionDecoder, kind: str) -> RopeSpec | None:
    """The rotation of the layers of a type; null in config.json: none.

    Raises:
        CorruptCheckpoint: config.json doesn't say.
    """
    view, layout = decoder.view, decoder.layout
    described = view.config.get("rope_parameters")
    if not isinstance(described, Mapping) or kind not in described:
        raise CorruptCheckpoint(
            f"config.json: rope_parameters must have an object or null for {kind}.", param="rope_parameters"
        )
    if described[kind] is None:
        return None
    positions = layout.max_position_embeddings
    return rope_of_type(view, kind, decoder.heads.head_dim, ROPES, max_position_embeddings=positions)
