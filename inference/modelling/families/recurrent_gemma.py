"""RecurrentGemma: two of three layers are Griffin's linear recurrence, the third attends within a window.

Source: https://arxiv.org/abs/2404.07839, the published google/recurrentgemma files, transformers' ``recurrent_gemma``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

from inference.errors import TensorShapeMismatch
from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, HEADS, ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Biases, Only
from inference.modelling.families.config_values import (
    activation,
    check_size,
    integer_with_evidence,
    number_with_evidence,
    rms_norm,
)
from inference.modelling.families.decoder import decoder_spec, llama_layer
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.headers import matrix_shape, vector_length
from inference.modelling.families.mlp_config import mlp_sources
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.state_space import check_layer_kinds, conv_shape, unknown_layer
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import AttentionSpec, MLPSpec
from inference.modelling.specs.linear import RGLRUSpec
from inference.modelling.specs.parts import prefixed
from inference.modelling.specs.sources import Source, concatenated, tensor

CONFIG_KEYS: Mapping[str, Table] = {
    "recurrent_gemma": {
        **COMMON,
        **HEADS,
        **ROPE,
        **used(
            "intermediate_size", "hidden_activation", "rms_norm_eps", "lru_width", "conv1d_width", "block_types",
            "attention_window_size", "logits_soft_cap",
        ),
        "attention_bias": Biases(r"temporal_block\.[qkv]_proj"),
        "embeddings_scale_by_sqrt_dim": Only((True,), "the embedding is scaled"),
        **harmless("start values of a training", "w_init_variance_scale", "final_w_init_variance_scale"),
    },
}  # fmt: skip

CONTEXT = 8192
WINDOW = 2048
BLOCK_TYPES = ("recurrent", "recurrent", "attention")
ROTATED_SHARE = 0.5
KINDS = ("weight", "bias")


def build_spec(view: CheckpointView) -> ModelSpec:
    layout = read_layout(view, tied_by_default=True, default_max_position_embeddings=CONTEXT)
    norm, act = rms_norm(view, offset=1.0), activation(view, "hidden_activation", default="gelu_pytorch_tanh")
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(layout.num_layers):
        layer, name = layout.layer(number), f"layers.{number}"
        base = f"{layer}temporal_block."
        mixer: RGLRUSpec | AttentionSpec
        if f"{base}rg_lru.recurrent_param" in view.tensors:
            mixer, token_sources = _recurrence(view, base, act)
        elif f"{base}q_proj.weight" in view.tensors:
            mixer = _attention(view, layout, layer)
            token_sources = attention_sources(view, mixer, layer, attention="temporal_block.")
        else:
            raise unknown_layer(layer, "temporal_block.rg_lru.recurrent_param, temporal_block.q_proj.weight")
        mlp = _mlp(view, layer, act)
        layers.append(llama_layer(mixer, mlp, norm))
        sources |= {
            f"{name}.token_norm.weight": tensor(f"{layer}temporal_pre_norm.weight"),
            f"{name}.channel_norm.weight": tensor(f"{layer}channel_pre_norm.weight"),
            **prefixed(f"{name}.token_mixer", token_sources),
            **prefixed(f"{name}.channel_mixer", mlp_sources(view, mlp, layer, mlp="mlp_block.")),
        }
    types = view.config.strings("block_types") or BLOCK_TYPES
    kinds = ["attention" if types[n % len(types)] == "attention" else "rg_lru" for n in range(len(layers))]
    check_layer_kinds("block_types", kinds, layers)
    return decoder_spec(
        view,
        layout,
        "recurrent_gemma",
        layers,
        sources,
        norm,
        ignored=(ROTARY_BUFFERS,),
        embedding_multiplier=rounded_to_bfloat16(math.sqrt(layout.hidden_size)),
        logits_softcap=number_with_evidence(view, "logits_soft_cap", ("logits_soft_cap",), 30.0, low=1e-3, high=1e6),
        final_norm_name="final_norm",
    )


def rounded_to_bfloat16(value: float) -> float:
    """The nearest bfloat16, ties to even: transformers keeps the embedding's factor so, whatever the weights are."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits += 0x7FFF + (bits >> 16 & 1)
    (rounded,) = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))
    return float(rounded)


def _attention(view: CheckpointView, layout: DecoderLayout, layer: str) -> AttentionSpec:
    heads = read_heads(view, layer, attention="temporal_block.")
    positions = layout.max_position_embeddings
    rope = read_rope(view, heads.head_dim, max_position_embeddings=positions, default_partial=ROTATED_SHARE)
    window = integer_with_evidence(view, "attention.window", ("attention_window_size",), WINDOW)
    return attention_spec(view, layer, heads, rope, attention="temporal_block.", sliding_window=window)


def _recurrence(view: CheckpointView, base: str, act: str) -> tuple[RGLRUSpec, dict[str, Source]]:
    """The linear recurrence under ``base``.

    Raises:
        TensorShapeMismatch: The gates' blocks don't make up its width.
    """
    lru = f"{base}rg_lru."
    width = vector_length(view.tensors, f"{lru}recurrent_param")
    kernel = conv_shape(view, f"{base}conv_1d.weight")[1]
    blocks = matrix_shape(view.tensors, f"{lru}input_gate_bias")[0]
    if width % blocks:
        raise TensorShapeMismatch(
            f"{lru}recurrent_param has {width} values, which {blocks} blocks of gates don't divide.",
            param=f"{lru}recurrent_param",
        )
    check_size(view, width, f"length of {lru}recurrent_param", "lru_width")
    check_size(view, kernel, f"shape of {base}conv_1d.weight", "conv1d_width")
    sources = {
        **{f"in_proj.{kind}": concatenated(f"{base}linear_y.{kind}", f"{base}linear_x.{kind}") for kind in KINDS},
        **{f"out_proj.{kind}": tensor(f"{base}linear_out.{kind}") for kind in KINDS},
        **{f"conv1d.{kind}": tensor(f"{base}conv_1d.{kind}") for kind in KINDS},
        **{f"input_gate.{kind}": tensor(f"{lru}input_gate_{kind}") for kind in KINDS},
        **{f"decay_gate.{kind}": tensor(f"{lru}recurrent_gate_{kind}") for kind in KINDS},
        "decay": tensor(f"{lru}recurrent_param"),
    }
    return RGLRUSpec(width, blocks, kernel, act), sources


def _mlp(view: CheckpointView, layer: str, act: str) -> MLPSpec:
    """config.json has the width of gate and up together."""
    name = f"{layer}mlp_block.down_proj.weight"
    width = matrix_shape(view.tensors, name)[1]
    check_size(view, 2 * width, f"twice the columns of {name}", "intermediate_size")
    return MLPSpec(width, act, bias=f"{layer}mlp_block.down_proj.bias" in view.tensors)
