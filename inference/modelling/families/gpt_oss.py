"""gpt-oss: sinks beside the scores of attention, experts with biases whose gate and up rows take turns.

Source: https://arxiv.org/abs/2508.10925, https://github.com/openai/gpt-oss, and transformers' ``gpt_oss``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder, ChannelMixer
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import WITH_ROPE, Table, aliases, harmless, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import integer_with_evidence, number_with_evidence, rms_norm
from inference.modelling.families.headers import matrix_shape
from inference.modelling.families.moe_config import check_experts, check_routing
from inference.modelling.families.windows import TYPES, full_every, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.layers import MoESpec
from inference.modelling.specs.sources import Piece, Source, tensor

THETA = 150_000.0
WINDOW = 128
CONFIG_KEYS: Mapping[str, Table] = {
    "gpt_oss": {
        **WITH_ROPE,
        **used(
            "num_local_experts", "num_experts_per_tok", "sliding_window", "layer_types", "swiglu_limit", "swiglu_alpha",
        ),
        **aliases("num_local_experts", "num_experts"),
        **used("experts_per_token"),  # transformers doesn't read it beside the first name
        **harmless("an early name beside rope_scaling", "initial_context_length", "rope_scaling_factor",
                   "rope_ntk_alpha", "rope_ntk_beta"),
        "hidden_act": Only(("silu",), "the experts have a gate of their own"),
    }
}  # fmt: skip


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(view, default_head_dim=64, default_max_position_embeddings=131072)
    count = decoder.layout.num_layers
    types = layer_types(view, count, TYPES) or full_every(2, count)
    return decoder.spec(
        "gpt_oss",
        norm=rms_norm(view, default=1e-5),
        ropes=decoder.rope(default_theta=THETA),
        windows=window_of_each_layer(types, sliding_window(view, default=WINDOW)),
        attention_options={"has_sinks": True},
        experts=lambda layer: _experts(view, layer),
        router="mlp.router.weight",
    )


def _experts(view: CheckpointView, layer: str) -> ChannelMixer:
    base = f"{layer}mlp."
    count = matrix_shape(view.tensors, f"{base}router.weight")[0]
    width = matrix_shape(view.tensors, f"{base}experts.gate_up_proj_bias")[1] // 2
    check_experts(view, base + "experts.", count, width, ("num_local_experts", "num_experts"), "intermediate_size")
    alpha = number_with_evidence(view, "moe.gate_alpha", ("swiglu_alpha",), 1.702, low=1e-6, high=1e6)
    limit = number_with_evidence(view, "moe.gate_limit", ("swiglu_limit",), 7.0, low=1e-6, high=1e6)
    spec = check_routing(
        MoESpec(
            num_experts=count,
            top_k=integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok", "experts_per_token"), 4),
            intermediate_size=width,
            router_bias=True,
            expert_bias=True,
            is_interleaved=True,
            gate_clamp=(alpha, limit),
        )
    )
    sources = {f"router.{leaf}": tensor(f"{base}router.{leaf}") for leaf in ("weight", "bias")}
    for leaf in ("experts.gate_up_proj", "experts.down_proj"):
        # In codes the stack is out × in, as everywhere; in floats it is stored in × out.
        coded = f"{base}{leaf}.weight"
        sources[leaf] = tensor(coded) if coded in view.tensors else _swapped(base + leaf, count)
        sources[f"{leaf}_bias"] = tensor(f"{base}{leaf}_bias")
    return spec, sources


def _swapped(name: str, count: int) -> Source:
    return Source((Piece(name, index=-1, transpose=True),), count)
