"""SmolLM3: Llama, every fourth layer of which has no positions.

Source: https://huggingface.co/blog/smollm3, and transformers' ``smollm3``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.errors import CorruptCheckpoint
from inference.modelling.families.attention_decoder import AttentionDecoder
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import QKVO_BIAS, QWEN, Table, used
from inference.modelling.families.config_keys import Harmless
from inference.modelling.families.config_values import rms_norm
from inference.modelling.families.windows import TYPES, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import ModelSpec

THETA = 2_000_000.0
CONFIG_KEYS: Mapping[str, Table] = {
    "smollm3": {
        **{key: rule for key, rule in QWEN.items() if key != "qkv_bias"},
        "max_window_layers": Harmless("layer_types says it"),
        **used("no_rope_layers", "no_rope_layer_interval"),
        "attention_bias": QKVO_BIAS,
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(view, tied_by_default=True, default_max_position_embeddings=32768)
    count = decoder.layout.num_layers
    rope = decoder.rope(default_theta=THETA)
    flags = view.config.integers("no_rope_layers")
    if not flags:
        interval = view.config.integer("no_rope_layer_interval", default=4)
        flags = tuple(int((number + 1) % interval != 0) for number in range(count))
    if len(flags) != count:
        raise CorruptCheckpoint(
            f"config.json: no_rope_layers has {len(flags)} entries for {count} layers.", param="no_rope_layers"
        )
    windows = None
    if view.config.boolean("use_sliding_window", default=False):
        types = layer_types(view, count, TYPES) or tuple(TYPES[not flag] for flag in flags)
        windows = window_of_each_layer(types, sliding_window(view))
    return decoder.spec(
        "smollm3", norm=rms_norm(view), ropes=[rope if flag else None for flag in flags], windows=windows
    )
