"""ZAYA: attention with convolutions over queries and keys, experts whose router remembers, a scaled float32 stream.

Source: transformers' ``zaya``, also for what config.json may leave out; https://arxiv.org/abs/2510.04476 (CCA).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inference.errors import CorruptCheckpoint, TensorShapeMismatch
from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, HEADS, ROPE_MEMBERS, Table, used
from inference.modelling.families.config_keys import Biases, Members, Only
from inference.modelling.families.config_values import activation, check_size, rms_norm
from inference.modelling.families.decoder import decoder_spec, llama_parts, norm_sources, read_layers
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.headers import matrix_shape, vector_length
from inference.modelling.families.moe_config import check_experts, count_experts, expert_sources
from inference.modelling.families.rope_by_type import rope_of_type
from inference.modelling.families.state_space import conv_shape
from inference.modelling.families.windows import layer_types, sliding_window
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.sources import Source, concatenated, tensor
from inference.modelling.specs.zaya import ConvolvedAttentionSpec, MemoryMoESpec

FULL, WINDOWED = TYPES = ("hybrid", "hybrid_sliding")
CONFIG_KEYS: Mapping[str, Table] = {
    "zaya": {
        **COMMON,
        **{key: rule for key, rule in HEADS.items() if key not in ("num_heads", "num_kv_heads")},
        **used(
            "hidden_act", "rms_norm_eps", "sliding_window", "layer_types", "moe_intermediate_size", "num_experts",
            "router_hidden_size", "cca_time0", "cca_time1", "lm_head_bias",
        ),
        # Published files have a type beside the objects of the types of layers.
        "rope_parameters": Members({**ROPE_MEMBERS, **{kind: Members(ROPE_MEMBERS) for kind in TYPES}}),
        "attention_bias": Biases(r"self_attn\.(?:qkv_proj\.(?:[qk]_proj|v_proj_(?:current|delayed))|o_proj)"),
        "num_experts_per_tok": Only((1,), "one expert is chosen, or none"),
    }
}  # fmt: skip

# transformers' defaults.
CONTEXT = 131072
HEAD_DIM = 128
ROPES: Mapping[str, Mapping[str, Any]] = {
    FULL: {"rope_type": "default", "rope_theta": 5_000_000.0, "partial_rotary_factor": 0.5},
    WINDOWED: {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
}
PROJECTIONS = ("q_proj", "k_proj", "v_proj_current", "v_proj_delayed")
SCALES = {
    "output.scale": "hidden_states_scale",
    "output.bias": "hidden_states_bias",
    "stream.scale": "residual_scale",
    "stream.bias": "residual_bias",
}
"""Our names of what is applied to a mixer's result and to the stream to the file's."""
RESIDUALS = {"token_residual": "post_attention_residual_scale", "channel_residual": "post_mlp_residual_scale"}


def build_spec(view: CheckpointView) -> ModelSpec:
    layout = read_layout(view, tied_by_default=True, default_max_position_embeddings=CONTEXT)
    norm, act = rms_norm(view, default=1e-5), activation(view)
    types = layer_types(view, layout.num_layers, TYPES) or (FULL,) * layout.num_layers

    def read_layer(number: int) -> tuple[LayerSpec, dict[str, Source]]:
        layer = layout.layer(number)
        attention = _attention(view, layout, layer, types[number])
        experts = _experts(view, layer, norm, act, reads_memory=number > 0)
        sources = llama_parts(
            layer, _attention_sources(attention, layer), _expert_sources(view, experts, f"{layer}mlp.")
        )
        for ours, theirs in RESIDUALS.items():
            sources |= {f"{ours}.{own}": tensor(f"{layer}{theirs}.{leaf}") for own, leaf in SCALES.items()}
        spec = LayerSpec(
            token_mixer=attention, token_norm=norm, channel_mixer=experts, channel_norm=norm, scales_residual=True
        )
        return spec, sources

    layers, sources = read_layers(layout.num_layers, read_layer)
    for name in ("scale", "bias"):
        sources[f"embedding_scale.{name}"] = tensor(f"{layout.prefix}input_hidden_states_{name}")
    if _has_head_bias(view) and layout.head is None:
        # The head is the embedding's matrix, but with a bias: a head of its own.
        sources["lm_head.weight"] = tensor(layout.embedding)
        layout = replace(layout, head="lm_head.weight")
    return decoder_spec(
        view,
        layout,
        "zaya",
        layers,
        sources,
        norm,
        ignored=(ROTARY_BUFFERS,),
        can_have_head_bias=True,
        scales_embedding=True,
    )


def _has_head_bias(view: CheckpointView) -> bool:
    """Whether the head has a bias.

    Raises:
        TensorShapeMismatch: config.json says something else than the tensors.
    """
    found = "lm_head.bias" in view.tensors
    if view.config.boolean("lm_head_bias", default=found) != found:
        raise TensorShapeMismatch(
            f"config.json says lm_head_bias {str(not found).lower()}, but lm_head.bias is "
            f"{'there' if found else 'missing'}; correct config.json.",
            param="lm_head_bias",
        )
    return found


def _attention(view: CheckpointView, layout: DecoderLayout, layer: str, kind: str) -> ConvolvedAttentionSpec:
    """The attention of a layer of a type.

    Raises:
        CorruptCheckpoint: A layer with a window, but no width of it.
        TensorShapeMismatch: The convolution over a head isn't one.
    """
    base = f"{layer}self_attn.qkv_proj."
    heads = read_heads(view, layer, attention="self_attn.qkv_proj.", default_head_dim=HEAD_DIM)
    channel_kernel = conv_shape(view, f"{base}conv_qk_depthwise.weight")[1]
    name = f"{base}conv_qk_grouped.weight"
    shape = view.tensors.shape(name)
    if len(shape) != 3 or not 1 <= shape[2] <= 64:
        raise TensorShapeMismatch(
            f"{name} has shape {list(shape)}; [channels, width of a head, kernel] with a kernel of at most 64 is "
            "needed.",
            param=name,
        )
    check_size(view, channel_kernel, f"shape of {base}conv_qk_depthwise.weight", "cca_time0")
    check_size(view, shape[2], f"shape of {name}", "cca_time1")
    rope = rope_of_type(
        view,
        kind,
        heads.head_dim,
        ROPES,
        max_position_embeddings=layout.max_position_embeddings,
        default_partial=1.0,
    )
    window = sliding_window(view) if kind == WINDOWED else None
    if kind == WINDOWED and window is None:
        raise CorruptCheckpoint(
            f"config.json: {layer[:-1]} is {WINDOWED} (layer_types), but sliding_window isn't stated.",
            param="sliding_window",
        )
    return ConvolvedAttentionSpec(
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        scale=heads.head_dim**-0.5,
        rope=rope,
        qkv_bias=f"{base}q_proj.bias" in view.tensors,
        o_bias=f"{layer}self_attn.o_proj.bias" in view.tensors,
        sliding_window=window,
        channel_kernel=channel_kernel,
        head_kernel=shape[2],
    )


def _attention_sources(spec: ConvolvedAttentionSpec, layer: str) -> dict[str, Source]:
    base, inner = f"{layer}self_attn.", f"{layer}self_attn.qkv_proj."
    sources = {
        "o_proj.weight": tensor(f"{base}o_proj.weight"),
        "key_scale": tensor(f"{base}qk_norm.temp"),
    }
    for leaf in ("weight", "bias") if spec.qkv_bias else ("weight",):
        sources[f"qkv_proj.{leaf}"] = concatenated(*(f"{inner}{name}.{leaf}" for name in PROJECTIONS))
    if spec.o_bias:
        sources["o_proj.bias"] = tensor(f"{base}o_proj.bias")
    for leaf in ("weight", "bias"):
        sources[f"conv1d.{leaf}"] = tensor(f"{inner}conv_qk_depthwise.{leaf}")
        sources[f"head_conv.{leaf}"] = tensor(f"{inner}conv_qk_grouped.{leaf}")
    return sources


def _experts(view: CheckpointView, layer: str, norm: NormSpec, act: str, *, reads_memory: bool) -> MemoryMoESpec:
    base = f"{layer}mlp."
    count, width = count_experts(view, f"{base}experts.")
    check_experts(view, f"{base}experts.", count, width, ("num_experts",), "moe_intermediate_size")
    router_width = matrix_shape(view.tensors, f"{base}gate.down_proj.weight")[0]
    check_size(view, router_width, f"rows of {base}gate.down_proj.weight", "router_hidden_size")
    choices = vector_length(view.tensors, f"{base}gate.balancing_biases")
    if choices != count + 1:
        raise TensorShapeMismatch(
            f"{base}gate.balancing_biases has {choices} values; {count} experts and the choice of none need "
            f"{count + 1}.",
            param=f"{base}gate.balancing_biases",
        )
    return MemoryMoESpec(
        num_experts=count,
        top_k=1,
        intermediate_size=width,
        activation=act,
        normalise_top_k=False,
        router_width=router_width,
        memory_norm=norm,
        reads_memory=reads_memory,
    )


def _expert_sources(view: CheckpointView, spec: MemoryMoESpec, base: str) -> dict[str, Source]:
    gate = f"{base}gate."
    sources = {
        "router.out.weight": tensor(f"{gate}router_mlp.out_proj.weight"),
        "router.correction_bias": tensor(f"{gate}balancing_biases"),
        **prefixed("router.norm", norm_sources(spec.memory_norm, f"{gate}router_mlp.norm")),
    }
    for ours, theirs in (("down", "down_proj"), ("fc1", "router_mlp.fc1"), ("fc2", "router_mlp.fc2")):
        sources |= {f"router.{ours}.{leaf}": tensor(f"{gate}{theirs}.{leaf}") for leaf in ("weight", "bias")}
    if spec.reads_memory:
        sources["router.memory_scale"] = tensor(f"{gate}router_states_scale")
    return sources | expert_sources(view, f"{base}experts.", spec.num_experts)
