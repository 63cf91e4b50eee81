"""LFM2 and LFM2-MoE: gated short convolutions with some attention layers, an MLP or experts after each.

Source: https://arxiv.org/abs/2511.23404, and transformers' ``lfm2`` and ``lfm2_moe`` for names and defaults.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, HEADS, ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Biases, Harmless, Only
from inference.modelling.families.config_values import check_size, integer_with_evidence, number_with_evidence, rms_norm
from inference.modelling.families.decoder import decoder_spec, llama_layer
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.headers import matrix_shape
from inference.modelling.families.moe_config import (
    ExpertNames,
    check_experts,
    check_routing,
    count_experts,
    moe_sources,
)
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.state_space import check_layer_kinds, conv_shape, stated_layer_types, unknown_layer
from inference.modelling.families.text_part import around, text_part
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import AttentionSpec, MLPSpec, MoESpec
from inference.modelling.specs.linear import ShortConvSpec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.sources import Source, concatenated, tensor

LFM2: Table = {
    **COMMON,
    **HEADS,
    **ROPE,
    **used("norm_eps", "conv_L_cache", "layer_types", "full_attn_idxs", "tie_embedding"),
    **harmless(
        "the shapes say it",
        "intermediate_size", "block_dim", "block_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of",
        "block_auto_adjust_ff_dim", "conv_dim", "conv_dim_out",
    ),
    **harmless(
        "start values of a training",
        "block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init",
    ),
    **harmless("an early name beside norm_eps, rope_theta", "block_norm_eps", "theta"),
    "block_use_swiglu": Only((True,), "the MLP is gated"),
    "use_pos_enc": Only((True,), "attention rotates its positions"),
    "conv_bias": Biases(r"conv\.(?:conv|in_proj|out_proj)"),
}  # fmt: skip

CONFIG_KEYS: Mapping[str, Table] = {
    "lfm2": LFM2,
    "lfm2_vl": around(LFM2),
    "lfm2_moe": {
        **LFM2,
        **used(
            "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "use_expert_bias",
            "routed_scaling_factor",
        ),
        "num_dense_layers": Harmless("the tensors say it"),
    },
}  # fmt: skip

CONTEXT = 128_000
THETA = 1_000_000.0
NORMALISE_EPS = 1e-6
"""Added to the sum of the chosen experts' scores."""
EXPERT_NAMES = ExpertNames("w1", "w3", "w2")


def build_spec(view: CheckpointView) -> ModelSpec:
    view = text_part(view)
    if "tie_embedding" in view.config:  # the older name
        view = view.changed(tie_word_embeddings=view.config.get("tie_embedding"))
    layout = read_layout(view, tied_by_default=True, default_max_position_embeddings=CONTEXT)
    norm = rms_norm(view, "norm_eps", default=1e-5)
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(layout.num_layers):
        layer, name = layout.layer(number), f"layers.{number}"
        token, token_sources = _token_mixer(view, layer, layout.hidden_size, layout.max_position_embeddings, norm)
        channel, channel_sources = _channel_mixer(view, layer)
        layers.append(llama_layer(token, channel, norm))
        sources |= {
            f"{name}.token_norm.weight": tensor(f"{layer}operator_norm.weight"),
            f"{name}.channel_norm.weight": tensor(f"{layer}ffn_norm.weight"),
            **prefixed(f"{name}.token_mixer", token_sources),
            **prefixed(f"{name}.channel_mixer", channel_sources),
        }
    check_layer_kinds("layer_types", stated_layer_types(view, "layer_types"), layers)
    if "full_attn_idxs" in view.config:
        attention = set(view.config.integers("full_attn_idxs"))
        kinds = ["attention" if number in attention else "short_conv" for number in range(layout.num_layers)]
        check_layer_kinds("full_attn_idxs", kinds, layers)
    model_type = view.config.string("model_type", default="lfm2")
    return decoder_spec(
        view,
        layout,
        model_type,
        layers,
        sources,
        norm,
        ignored=(ROTARY_BUFFERS,),
        final_norm_name="embedding_norm",
    )


def _token_mixer(
    view: CheckpointView, layer: str, hidden_size: int, max_positions: int, norm: NormSpec
) -> tuple[ShortConvSpec | AttentionSpec, dict[str, Source]]:
    """The layer's convolution, or its attention."""
    if f"{layer}conv.in_proj.weight" in view.tensors:
        return short_conv(view, f"{layer}conv.", hidden_size)
    base = f"{layer}self_attn."
    if f"{base}q_proj.weight" not in view.tensors:
        raise unknown_layer(layer, "conv.in_proj.weight, self_attn.q_proj.weight")
    heads = read_heads(view, layer)
    rope = read_rope(view, heads.head_dim, max_position_embeddings=max_positions, default_theta=THETA)
    attention = AttentionSpec(
        heads.num_heads, heads.num_kv_heads, heads.head_dim, heads.head_dim**-0.5, rope=rope, qk_norm=norm
    )
    return attention, {
        "qkv_proj.weight": concatenated(*(f"{base}{name}_proj.weight" for name in "qkv")),
        "o_proj.weight": tensor(f"{base}out_proj.weight"),
        "q_norm.weight": tensor(f"{base}q_layernorm.weight"),
        "k_norm.weight": tensor(f"{base}k_layernorm.weight"),
    }


def short_conv(view: CheckpointView, base: str, hidden_size: int) -> tuple[ShortConvSpec, dict[str, Source]]:
    """The gated convolution under ``base`` (``…conv.``), its sizes from the shapes."""
    width, kernel = conv_shape(view, f"{base}conv.weight")
    check_size(view, kernel, f"shape of {base}conv.weight", "conv_L_cache")
    spec = ShortConvSpec(width, kernel, bias=f"{base}conv.bias" in view.tensors)
    names = spec.parameter_shapes(hidden_size)
    return spec, {name: tensor(base + name.replace("conv1d.", "conv.")) for name in names}


def _channel_mixer(view: CheckpointView, layer: str) -> tuple[MLPSpec | MoESpec, dict[str, Source]]:
    """The layer's MLP, whose width config.json may state before it was adjusted; or its experts."""
    base, config = f"{layer}feed_forward.", view.config
    if f"{base}gate.weight" not in view.tensors:
        width = matrix_shape(view.tensors, f"{base}w2.weight")[1]
        return MLPSpec(width), {
            "gate_up_proj.weight": concatenated(f"{base}w1.weight", f"{base}w3.weight"),
            "down_proj.weight": tensor(f"{base}w2.weight"),
        }
    count, width = count_experts(view, f"{base}experts.", down=EXPERT_NAMES.down)
    check_experts(view, f"{base}experts.", count, width, ("num_experts",), "moe_intermediate_size")
    spec = check_routing(
        MoESpec(
            num_experts=count,
            top_k=integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), 4),
            intermediate_size=width,
            scoring="sigmoid",
            normalise_top_k=config.boolean("norm_topk_prob", default=True),
            normalise_eps=NORMALISE_EPS,
            routed_scaling_factor=number_with_evidence(
                view, "moe.routed_scaling_factor", ("routed_scaling_factor",), 1.0, low=0.0, high=1e6
            ),
            correction_bias=config.boolean("use_expert_bias", default=True),
        )
    )
    sources = moe_sources(view, spec, base, names=EXPERT_NAMES)
    if spec.correction_bias:
        sources["router.correction_bias"] = tensor(f"{base}expert_bias")
    return spec, sources
