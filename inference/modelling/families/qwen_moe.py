"""Qwen2-MoE and Qwen3-MoE: Qwen's attention with routed experts in most layers, dense MLPs in the others.

Sources: https://arxiv.org/abs/2407.10671 and https://arxiv.org/abs/2505.09388; transformers' ``qwen2_moe``
and ``qwen3_moe``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import EXPERTS, FULL_ATTENTION, QKVO_BIAS, QWEN, Table, used
from inference.modelling.families.config_keys import Harmless
from inference.modelling.families.config_values import activation, check_size, integer_with_evidence, rms_norm
from inference.modelling.families.decoder import decoder_spec, llama_layer, llama_layer_sources
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.moe_config import (
    check_experts,
    check_routing,
    check_sparse_steps,
    count_experts,
    has_router,
    moe_sources,
    shared_width,
)
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.windows import (
    DEFAULT_MAX_WINDOW_LAYERS,
    DEFAULT_WINDOW,
    layer_types,
    sliding_window,
    window_of_each_layer,
)
from inference.modelling.layer_specs import ChannelMixerSpec, MoESpec
from inference.modelling.spec import LayerSpec, ModelSpec, Source

QWEN_EXPERTS: Table = {
    **EXPERTS,
    **used("moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"),
}

CONFIG_KEYS: Mapping[str, Table] = {
    "qwen2_moe": {**QWEN, **QWEN_EXPERTS, **used("shared_expert_intermediate_size")},
    "qwen3_moe": {
        **QWEN,
        **QWEN_EXPERTS,
        "attention_bias": QKVO_BIAS,
        "max_window_layers": Harmless("all layers have the window, or none"),
        "layer_types": FULL_ATTENTION,
    },
}  # fmt: skip

DEFAULT_TOP_K = {"qwen2_moe": 4, "qwen3_moe": 8}
"""Experts of a row, when config.json doesn't say."""


def build_spec(view: CheckpointView) -> ModelSpec:
    model_type = view.config.string("model_type", default="qwen3_moe")
    layout = read_layout(view)
    heads = read_heads(view, layout.layer(0), layout.hidden_size)
    rope = read_rope(view, heads.head_dim, max_position_embeddings=layout.max_position_embeddings)
    norm = rms_norm(view)
    qk_norm = norm if model_type == "qwen3_moe" else None
    act = activation(view)
    windows = _windows(view, model_type, layout.num_layers)
    check_sparse_steps(view, layout)
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(layout.num_layers):
        layer = layout.layer(number)
        attention = attention_spec(view, layer, heads, rope, qk_norm=qk_norm, sliding_window=windows[number])
        mixer: ChannelMixerSpec
        if has_router(view, layer):
            mixer = _moe_spec(view, model_type, layer, act)
            channel = moe_sources(view, mixer, f"{layer}mlp.")
        else:
            mixer = mlp_spec(view, layer, act)
            channel = mlp_sources(view, mixer, layer)
        layers.append(llama_layer(attention, mixer, norm))
        sources |= llama_layer_sources(number, layer, attention_sources(view, attention, layer), channel)
    return decoder_spec(view, layout, model_type, layers, sources, norm, ignored=(ROTARY_BUFFERS,))


def _moe_spec(view: CheckpointView, model_type: str, layer: str, act: str) -> MoESpec:
    config, base = view.config, f"{layer}mlp."
    count, width = count_experts(view, base + "experts.")
    check_experts(view, base + "experts.", count, width, ("num_experts", "num_local_experts"), "moe_intermediate_size")
    # Only Qwen2-MoE has a shared expert, and always with a gate.
    shared = shared_width(view, f"{base}shared_expert.") if model_type == "qwen2_moe" else 0
    if model_type == "qwen2_moe":
        check_size(view, shared, f"width of {base}shared_expert", "shared_expert_intermediate_size")
    return check_routing(
        MoESpec(
            num_experts=count,
            top_k=integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), DEFAULT_TOP_K.get(model_type, 8)),
            intermediate_size=width,
            activation=act,
            normalise_top_k=config.boolean("norm_topk_prob", default=False),
            shared_intermediate_size=shared,
            shared_gate=shared > 0,
        )
    )


def _windows(view: CheckpointView, model_type: str, count: int) -> tuple[int | None, ...]:
    """Qwen3-MoE slides in all layers, Qwen2-MoE in every other of the first ``max_window_layers``."""
    if not view.config.boolean("use_sliding_window", default=False):
        return (None,) * count
    window = sliding_window(view, default=DEFAULT_WINDOW)
    if model_type != "qwen2_moe":
        return (window,) * count
    types = layer_types(view, count, ("sliding_attention", "full_attention"))
    if types is None:
        key = "max_window_layers"
        last = integer_with_evidence(view, f"attention.{key}", (key,), DEFAULT_MAX_WINDOW_LAYERS, low=0)
        types = tuple(
            "sliding_attention" if number % 2 == 0 and number < last else "full_attention" for number in range(count)
        )
    return window_of_each_layer(types, window)
