"""Llama and the families that differ from it only in biases, norms of q and k, and sliding windows.

llama, mistral, qwen2, qwen3: pre-norm layers of grouped-query attention and a gated MLP.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import (
    FULL_ATTENTION,
    LLAMA_LIKE,
    NO_WINDOW,
    QKVO_BIAS,
    QWEN,
    Table,
    used,
)
from inference.modelling.families.config_keys import Harmless, Only
from inference.modelling.families.config_values import activation, integer_with_evidence, rms_norm
from inference.modelling.families.decoder import decoder_spec, llama_layer, llama_layer_sources
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.windows import (
    DEFAULT_MAX_WINDOW_LAYERS,
    DEFAULT_WINDOW,
    layer_types,
    sliding_window,
    window_of_each_layer,
)
from inference.modelling.spec import LayerSpec, ModelSpec, Source

CONFIG_KEYS: Mapping[str, Table] = {
    "llama": {
        **LLAMA_LIKE,
        "bias": QKVO_BIAS,
        "is_llama_config": Harmless("says what model_type says"),
        "sliding_window": NO_WINDOW,
        "use_sliding_window": Only((False,), "the family has no windows"),
        "layer_types": FULL_ATTENTION,
    },
    "mistral": {**LLAMA_LIKE, **used("sliding_window")},
    "qwen2": QWEN,
    "qwen3": {**QWEN, "attention_bias": QKVO_BIAS},
}  # fmt: skip


def build_spec(view: CheckpointView) -> ModelSpec:
    model_type = view.config.string("model_type", default="llama")
    layout = read_layout(view)
    heads = read_heads(view, layout.layer(0), layout.hidden_size)
    rope = read_rope(view, heads.head_dim, max_position_embeddings=layout.max_position_embeddings)
    norm = rms_norm(view)
    qk_norm = norm if model_type == "qwen3" else None
    act = activation(view)
    windows = _windows(view, model_type, layout.num_layers)
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(layout.num_layers):
        layer = layout.layer(number)
        attention = attention_spec(view, layer, heads, rope, qk_norm=qk_norm, sliding_window=windows[number])
        mlp = mlp_spec(view, layer, act)
        layers.append(llama_layer(attention, mlp, norm))
        sources |= llama_layer_sources(
            number, layer, attention_sources(view, attention, layer), mlp_sources(view, mlp, layer)
        )
    return decoder_spec(view, layout, model_type, layers, sources, norm, ignored=(ROTARY_BUFFERS,))


def _windows(view: CheckpointView, model_type: str, count: int) -> tuple[int | None, ...]:
    """Mistral slides in all layers; Qwen 2 and 3, if at all, in those that ``layer_types`` names or in the last."""
    if model_type == "mistral":
        return (sliding_window(view, default=DEFAULT_WINDOW),) * count
    if model_type not in ("qwen2", "qwen3") or not view.config.boolean("use_sliding_window", default=False):
        return (None,) * count
    window = sliding_window(view, default=DEFAULT_WINDOW)
    types = layer_types(view, count, ("sliding_attention", "full_attention"))
    if types is None:
        key = "max_window_layers"
        full = integer_with_evidence(view, f"attention.{key}", (key,), DEFAULT_MAX_WINDOW_LAYERS, low=0)
        types = tuple("full_attention" if number < full else "sliding_attention" for number in range(count))
    return window_of_each_layer(types, window)
