"""Qwen3-Next and the text models of Qwen 3.5: layers of the gated delta rule, every fourth one gated attention.

Both have the same arithmetic. Qwen3-Next's files hold the projections of a linear layer head by head and its layers
have experts; Qwen 3.5's hold them one below the other.

Source: transformers' ``qwen3_next``, ``qwen3_5`` and ``qwen3_5_moe``; Yang et al. 2024 for the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from inference.errors import TensorShapeMismatch
from inference.modelling.families.attention_config import attention_spec
from inference.modelling.families.checks import OTHER_PARTS, ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import QWEN_ROPE, WITH_ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Harmless, Only
from inference.modelling.families.config_values import activation, check_size, integer_with_evidence, rms_norm
from inference.modelling.families.decoder import decoder_spec, llama_layer, llama_parts, read_layers
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.head_sizes import HeadSizes, read_heads
from inference.modelling.families.headers import vector_length
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
from inference.modelling.families.prediction_head import HeadLayer, HeadNames, prediction_head
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.state_space import check_layer_kinds, conv_shape, stated_layer_types, unknown_layer
from inference.modelling.families.text_part import around, text_part
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import AttentionSpec, ChannelMixerSpec, MoESpec, TokenMixerSpec
from inference.modelling.specs.linear import GatedDeltaSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec
from inference.modelling.specs.sources import Piece, Source, concatenated, tensor

QWEN3_NEXT: Table = {
    **WITH_ROPE,
    **used(
        "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads",
        "linear_num_value_heads", "layer_types", "full_attention_interval",
    ),
    "attention_bias": Only((False,), "the projections of attention have no biases"),
    "rope_parameters": QWEN_ROPE,
    **harmless("the tensors of the module that drafts tokens say it", "mtp_num_hidden_layers",
               "mtp_use_dedicated_embeddings"),
    "attn_output_gate": Only((True,), "the output of attention is gated"),
    "output_gate_type": Only(("swish", "silu"), "the gate of a linear layer is a SiLU"),
    "mlp_only_layers": Only(([],), "all layers have an MLP, or all have experts"),
    "use_sliding_window": Only((False,), "the family has no windows"),
    "mamba_ssm_dtype": Harmless("states are float32"),
}  # fmt: skip

QWEN3_NEXT_EXPERTS: Table = {
    **used("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"),
    **harmless("the layers have experts; the shapes say it", "intermediate_size"),
}


CONFIG_KEYS: Mapping[str, Table] = {
    "qwen3_next": {
        **QWEN3_NEXT,
        **QWEN3_NEXT_EXPERTS,
        **used("norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "intermediate_size"),
    },
    "qwen3_5": around(QWEN3_NEXT),
    "qwen3_5_moe": around({**QWEN3_NEXT, **QWEN3_NEXT_EXPERTS}),
    "qwen3_5_text": QWEN3_NEXT,
    "qwen3_5_moe_text": {**QWEN3_NEXT, **QWEN3_NEXT_EXPERTS},
}  # fmt: skip

ROTATED_SHARE = 0.25
HEAD_DIM = 256
CONTEXT = 32768
INTERVAL = 4
"""Every so many layers, one is attention."""
DEFAULT_TOP_K = {"qwen3_next": 10, "qwen4_exp_text": 10}


def build_spec(view: CheckpointView) -> ModelSpec:
    """The text model; of a model that sees pictures too, the part of it that reads and writes text."""
    view = text_part(view)
    model_type = view.config.string("model_type", default="qwen3_next")
    layout = read_layout(view, default_max_position_embeddings=CONTEXT)
    norm, act = rms_norm(view, offset=1.0), activation(view)
    if model_type == "qwen3_next":
        check_sparse_steps(view, layout)

    def read_layer(layer: str) -> HeadLayer:
        token, token_sources = _token_mixer(view, layout, layer, norm)
        channel: ChannelMixerSpec
        if has_router(view, layer):
            channel = qwen_experts(view, model_type, layer, act)
            channel_sources = moe_sources(view, channel, f"{layer}mlp.")
        else:
            channel = mlp_spec(view, layer, act)
            channel_sources = mlp_sources(view, channel, layer)
        return llama_layer(token, channel, norm), llama_parts(layer, token_sources, channel_sources)

    layers, sources = read_layers(layout.num_layers, lambda number: read_layer(layout.layer(number)))
    _check_kinds(view, layers)
    base = "model.mtp." if "model.mtp.fc.weight" in view.tensors else "mtp."
    head = prediction_head(
        view, layout, _head_names(base), norm, lambda: [read_layer(f"{base}layers.0.")], feeds_normed_rows=True
    )
    ignored = (ROTARY_BUFFERS, OTHER_PARTS)
    return decoder_spec(view, layout, model_type, layers, sources, norm, ignored=ignored, prediction_head=head)


def _head_names(base: str) -> HeadNames:
    return HeadNames(
        f"{base}fc.weight",
        f"{base}pre_fc_norm_embedding",
        f"{base}pre_fc_norm_hidden",
        f"{base}norm",
        embedding=f"{base}embed_tokens.weight",
        lm_head=f"{base}lm_head.weight",
    )


def _check_kinds(view: CheckpointView, layers: list[LayerSpec]) -> None:
    stated = stated_layer_types(view, "layer_types", linear="gated_delta")
    if stated is not None:
        check_layer_kinds("layer_types", stated, layers)
    elif "full_attention_interval" in view.config:
        interval = view.config.integer("full_attention_interval", default=INTERVAL)
        kinds = ["gated_delta" if (number + 1) % interval else "attention" for number in range(len(layers))]
        check_layer_kinds("full_attention_interval", kinds, layers)


def _token_mixer(
    view: CheckpointView, layout: DecoderLayout, layer: str, norm: NormSpec
) -> tuple[TokenMixerSpec, dict[str, Source]]:
    """The layer's delta rule, or its attention."""
    if f"{layer}linear_attn.A_log" in view.tensors:
        return delta_mixer(view, f"{layer}linear_attn.", norm.eps)
    if f"{layer}self_attn.q_proj.weight" not in view.tensors:
        raise unknown_layer(layer, "linear_attn.A_log, self_attn.q_proj.weight")
    heads = read_heads(view, layer, default_head_dim=HEAD_DIM, has_gate=True)
    rope = read_rope(
        view, heads.head_dim, max_position_embeddings=layout.max_position_embeddings, default_partial=ROTATED_SHARE
    )
    return gated_attention(view, layer, heads, rope, norm)


def gated_attention(
    view: CheckpointView, layer: str, heads: HeadSizes, rope: RopeSpec, norm: NormSpec
) -> tuple[AttentionSpec, dict[str, Source]]:
    """Attention whose ``q_proj`` has, for each head, the query and the gate of its output."""
    base, width = f"{layer}self_attn.", heads.head_dim
    plain = attention_spec(view, layer, heads, rope, qk_norm=norm)
    spec = AttentionSpec(
        plain.num_heads, plain.num_kv_heads, width, plain.scale, rope=rope, qk_norm=norm, output_gate=True
    )
    query = f"{base}q_proj.weight"
    keys_and_values = (Piece(f"{base}k_proj.weight"), Piece(f"{base}v_proj.weight"))
    return spec, {
        "qkv_proj.weight": Source((Piece(query, per_group=(2 * width, 0, width)), *keys_and_values)),
        "gate_proj.weight": Source((Piece(query, per_group=(2 * width, width, 2 * width)),)),
        **{name: tensor(base + name) for name in ("o_proj.weight", "q_norm.weight", "k_norm.weight")},
    }


def delta_mixer(view: CheckpointView, base: str, norm_eps: float) -> tuple[GatedDeltaSpec, dict[str, Source]]:
    """The linear layer under ``base``, its sizes from the shapes.

    Raises:
        TensorShapeMismatch: The tensors don't fit each other, or the sizes of config.json.
    """
    tensors = view.tensors
    heads, value_dim = vector_length(tensors, f"{base}A_log"), vector_length(tensors, f"{base}norm.weight")
    conv_width, kernel = conv_shape(view, f"{base}conv1d.weight")
    key_heads = view.config.integer("linear_num_key_heads", default=heads, high=1 << 16)
    key_width = (conv_width - heads * value_dim) // 2
    if key_width < 1 or key_width % key_heads or heads % key_heads:
        raise TensorShapeMismatch(
            f"{base}conv1d.weight has {conv_width} channels, which {key_heads} key heads (linear_num_key_heads) and "
            f"{heads} value heads of {value_dim} don't give.",
            param=f"{base}conv1d.weight",
        )
    key_dim = key_width // key_heads
    check_size(view, heads, f"length of {base}A_log", "linear_num_value_heads")
    check_size(view, value_dim, f"length of {base}norm.weight", "linear_value_head_dim")
    check_size(view, key_dim, f"channels of {base}conv1d.weight", "linear_key_head_dim")
    check_size(view, kernel, f"shape of {base}conv1d.weight", "linear_conv_kernel_dim")
    spec = GatedDeltaSpec(key_heads, heads, key_dim, value_dim, kernel, NormSpec("rms", norm_eps))
    sources = _by_head(spec, base) if f"{base}in_proj_qkvz.weight" in tensors else _stacked(base)
    same = ("conv1d.weight", "dt_bias", "A_log", "norm.weight", "out_proj.weight")
    return spec, sources | {name: tensor(base + name) for name in same}


def _by_head(spec: GatedDeltaSpec, base: str) -> dict[str, Source]:
    """Qwen3-Next's: for each key head its query, its key, the values and the gates of its value heads."""
    key, repeats = spec.key_head_dim, spec.num_value_heads // spec.num_key_heads
    values = repeats * spec.value_head_dim
    ends = (0, key, 2 * key, 2 * key + values, 2 * key + 2 * values)
    parts = [Piece(f"{base}in_proj_qkvz.weight", per_group=(ends[-1], *part)) for part in pairwise(ends)]
    gates = [Piece(f"{base}in_proj_ba.weight", per_group=(2 * repeats, at, at + repeats)) for at in (0, repeats)]
    return {"in_proj.weight": Source(tuple(parts)), "ba_proj.weight": Source(tuple(gates))}


def _stacked(base: str) -> dict[str, Source]:
    """Qwen 3.5's."""
    return {
        "in_proj.weight": concatenated(f"{base}in_proj_qkv.weight", f"{base}in_proj_z.weight"),
        "ba_proj.weight": concatenated(f"{base}in_proj_b.weight", f"{base}in_proj_a.weight"),
    }


def qwen_experts(view: CheckpointView, model_type: str, layer: str, act: str) -> MoESpec:
    """The layer's experts; whether their weights are divided by the sum is stated, except by Qwen 3.5."""
    base = f"{layer}mlp."
    count, width = count_experts(view, f"{base}experts.")
    check_experts(view, f"{base}experts.", count, width, ("num_experts",), "moe_intermediate_size")
    shared = shared_width(view, f"{base}shared_expert.")
    check_size(view, shared, f"width of {base}shared_expert", "shared_expert_intermediate_size")
    is_stated = not model_type.startswith("qwen3_5")
    normalise = not is_stated or view.config.boolean("norm_topk_prob", default=True)
    return check_routing(
        MoESpec(
            num_experts=count,
            top_k=integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), DEFAULT_TOP_K.get(model_type, 8)),
            intermediate_size=width,
            activation=act,
            normalise_top_k=normalise,
            shared_intermediate_size=shared,
            shared_gate=shared > 0,
        )
    )
