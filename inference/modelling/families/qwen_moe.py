"""Qwen2-MoE and Qwen3-MoE: Qwen's attention with routed experts in most layers, dense MLPs in the others.

Qwen3-VL's text model with experts is one of Qwen3-MoE.
Sources: https://arxiv.org/abs/2407.10671 and https://arxiv.org/abs/2505.09388; transformers' ``qwen2_moe``
and ``qwen3_moe``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder, ChannelMixer
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import EXPERTS, FULL_ATTENTION, QKVO_BIAS, QWEN, Table, used
from inference.modelling.families.config_keys import Harmless, Only
from inference.modelling.families.config_values import activation, integer_with_evidence, rms_norm
from inference.modelling.families.headers import stack_shape
from inference.modelling.families.moe_config import check_sparse_steps, routed_experts
from inference.modelling.families.text_part import around, text_part
from inference.modelling.families.windows import (
    DEFAULT_MAX_WINDOW_LAYERS,
    DEFAULT_WINDOW,
    TYPES,
    layer_types,
    sliding_window,
    window_of_each_layer,
)
from inference.modelling.spec import ModelSpec

QWEN_EXPERTS: Table = {
    **EXPERTS,
    **used("moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"),
}

QWEN3_MOE: Table = {
    **QWEN,
    **QWEN_EXPERTS,
    "attention_bias": QKVO_BIAS,
    "max_window_layers": Harmless("all layers have the window, or none"),
    "layer_types": FULL_ATTENTION,
    "use_qk_norm": Only((True,), "queries and keys are normed"),
    "shared_expert_intermediate_size": Only((0,), "there is no shared expert"),
}
CONFIG_KEYS: Mapping[str, Table] = {
    "qwen2_moe": {**QWEN, **QWEN_EXPERTS, **used("shared_expert_intermediate_size")},
    "qwen3_moe": QWEN3_MOE,
    "qwen3_vl_moe": around(QWEN3_MOE),
}


def build_spec(view: CheckpointView) -> ModelSpec:
    view = text_part(view)
    model_type = view.config.string("model_type", default="qwen3_moe")
    model_type = "qwen3_moe" if model_type == "qwen3_vl_moe_text" else model_type
    decoder = AttentionDecoder.read(view)
    act = activation(view)
    check_sparse_steps(view, decoder.layout)

    def experts(layer: str) -> ChannelMixer:
        # Only Qwen2-MoE has a shared expert, and always with a gate.
        has_shared = model_type == "qwen2_moe"
        return routed_experts(
            view,
            f"{layer}mlp.",
            act,
            top_k=4 if has_shared else 8,
            shared="shared_expert." if has_shared else "",
            shared_gate=has_shared,
            is_transposed=_is_transposed(view, f"{layer}mlp.experts.down_proj", decoder.layout.hidden_size),
            normalise_top_k=view.config.boolean("norm_topk_prob", default=False),
        )

    return decoder.spec(
        model_type,
        norm=rms_norm(view),
        ropes=decoder.rope(renamed_types={"mrope": "default"}),
        windows=_windows(view, model_type, decoder.layout.num_layers),
        qk_norm="head" if model_type == "qwen3_moe" else None,
        act=act,
        experts=experts,
    )


def _is_transposed(view: CheckpointView, down: str, hidden_size: int) -> bool:
    """Whether stacked experts have their inputs first, as Qwen3-VL's published files do: (E, width, hidden)."""
    return down in view.tensors and stack_shape(view.tensors, down)[1] != hidden_size


def _windows(view: CheckpointView, model_type: str, count: int) -> tuple[int | None, ...]:
    """Qwen3-MoE slides in all layers, Qwen2-MoE in every other of the first ``max_window_layers``."""
    if not view.config.boolean("use_sliding_window", default=False):
        return (None,) * count
    window = sliding_window(view, default=DEFAULT_WINDOW)
    if model_type != "qwen2_moe":
        return (window,) * count
    types = layer_types(view, count, TYPES)
    if types is None:
        key = "max_window_layers"
        last = integer_with_evidence(view, f"attention.{key}", (key,), DEFAULT_MAX_WINDOW_LAYERS, low=0)
        types = tuple(
            "sliding_attention" if number % 2 == 0 and number < last else "full_attention" for number in range(count)
        )
    return window_of_each_layer(types, window)
