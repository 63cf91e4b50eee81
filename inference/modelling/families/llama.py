"""Llama and the families that differ from it only in biases, norms of q and k, and sliding windows.

llama, mistral, qwen2, qwen3: pre-norm layers of grouped-query attention and a gated MLP.
"""

from __future__ import annotations

from inference.modelling.config import CheckpointView
from inference.modelling.families.common import (
    Frame,
    activation,
    attention_sources,
    attention_spec,
    decoder_spec,
    layer_types,
    llama_layer,
    llama_layer_sources,
    mlp_sources,
    mlp_spec,
    noted_integer,
    read_frame,
    read_heads,
    read_rope,
    rms_norm,
    sliding_window,
    window_of_each_layer,
)
from inference.modelling.spec import LayerSpec, ModelSpec, Source

DEFAULT_WINDOW = 4096
"""transformers' window for a mistral (or windowed qwen) config that doesn't mention one; null says: none."""
DEFAULT_MAX_WINDOW_LAYERS = 28
"""The first layers of a windowed Qwen that attend to everything, when config.json doesn't say."""


def build_spec(view: CheckpointView) -> ModelSpec:
    """config.json and tensor table of a llama-like checkpoint to its spec."""
    model_type = view.config.string("model_type", default="llama")
    frame = read_frame(view)
    heads = read_heads(view, frame.layer(0), frame.hidden_size)
    rope = read_rope(view, heads.head_dim, max_position_embeddings=frame.max_position_embeddings)
    norm = rms_norm(view)
    act = activation(view)
    windows = _windows(view, model_type, frame)
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(frame.num_layers):
        layer = frame.layer(number)
        has_qk_norm = f"{layer}self_attn.q_norm.weight" in view.tensors
        attention = attention_spec(
            view, layer, heads, rope, qk_norm=norm if has_qk_norm else None, sliding_window=windows[number]
        )
        mlp = mlp_spec(view, layer, act)
        layers.append(llama_layer(attention, mlp, norm))
        sources |= llama_layer_sources(
            number, layer, attention_sources(view, attention, layer), mlp_sources(view, mlp, layer)
        )
    return decoder_spec(view, frame, model_type, layers, sources, norm)


def _windows(view: CheckpointView, model_type: str, frame: Frame) -> tuple[int | None, ...]:
    count = frame.num_layers
    if model_type == "mistral":
        return (sliding_window(view, default=DEFAULT_WINDOW),) * count
    if model_type not in ("qwen2", "qwen3"):
        return (None,) * count
    return qwen_windows(view, count)


def qwen_windows(view: CheckpointView, count: int) -> tuple[int | None, ...]:
    """Qwen 2 and 3: a window only if ``use_sliding_window``, in the layers that ``layer_types`` names or the last."""
    if not view.config.boolean("use_sliding_window", default=False):
        return (None,) * count
    window = sliding_window(view, default=DEFAULT_WINDOW)
    types = layer_types(view, count, ("sliding_attention", "full_attention"))
    if types is None:
        full = noted_integer(
            view,
            "attention.max_window_layers",
            ("max_window_layers",),
            DEFAULT_MAX_WINDOW_LAYERS,
            low=0,
        )
        types = tuple("full_attention" if number < full else "sliding_attention" for number in range(count))
    return window_of_each_layer(types, window)
