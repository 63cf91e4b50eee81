"""EXAONE 4: norms only behind the mixers; with windows, only windowed layers rotate.

Source: https://arxiv.org/abs/2507.11407, and transformers' ``exaone4``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import POST_NORMS, AttentionDecoder, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import WITH_ROPE, Table, used
from inference.modelling.families.config_values import rms_norm
from inference.modelling.families.windows import TYPES, full_every, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import ModelSpec

WINDOW = 4096
CONFIG_KEYS: Mapping[str, Table] = {
    "exaone4": {
        **{key: rule for key, rule in WITH_ROPE.items() if key != "attention_bias"},
        **used("sliding_window", "sliding_window_pattern", "layer_types"),
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(view, LayerNames(norms=POST_NORMS), default_max_position_embeddings=2048)
    count = decoder.layout.num_layers
    window = sliding_window(view, default=WINDOW)
    types = layer_types(view, count, TYPES) or exaone_types(view, count, window)
    rope = decoder.rope()
    return decoder.spec(
        "exaone4",
        norm=rms_norm(view, default=1e-5),
        ropes=[rope if window is None or kind == TYPES[0] else None for kind in types],
        windows=window_of_each_layer(types, window),
        qk_norm="head",
    )


def exaone_types(view: CheckpointView, count: int, window: int | None) -> tuple[str, ...]:
    """By ``sliding_window_pattern``: a number of layers, the last of which is full, or their letters L and G."""
    pattern = view.config.get("sliding_window_pattern", default=4)
    if window is None:
        return (TYPES[1],) * count
    if isinstance(pattern, str):
        letters = [pattern[number % len(pattern)] for number in range(count)] if pattern else []
        return tuple(TYPES[letter == "G" or number == count - 1] for number, letter in enumerate(letters))
    every = view.config.integer("sliding_window_pattern", default=4)
    return full_every(every, count)
