"""MiniMax-Text-01: lightning attention, every eighth layer softmax attention; experts as Mixtral's.

The residual stream goes on from the norms: x = norm(x); x = α x + β mixer(x). What comes next is a norm again, so α is
left out: β / α multiplies the mixer, and the next norm's eps is divided by α².

Source: https://arxiv.org/abs/2501.08313, the published MiniMaxAI/MiniMax-Text-01-hf files, transformers' ``minimax``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from inference.errors import CorruptCheckpoint
from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.checks import ROTARY_BUFFERS, IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import EXPERTS, WITH_ROPE, Table, used
from inference.modelling.families.config_keys import Harmless, Only
from inference.modelling.families.config_values import (
    activation,
    check_size,
    integer_with_evidence,
    number_with_evidence,
    rms_norm,
)
from inference.modelling.families.decoder import decoder_spec, llama_layer_sources
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.headers import vector_length
from inference.modelling.families.mixtral import EXPERT_NAMES
from inference.modelling.families.moe_config import check_experts, check_routing, count_experts, moe_sources
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.state_space import check_layer_kinds, stated_layer_types, unknown_layer
from inference.modelling.families.windows import sliding_window
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import MoESpec, TokenMixerSpec
from inference.modelling.specs.linear import LightningSpec
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.sources import Piece, Source, tensor

FACTORS = ("full_attn", "linear_attn", "mlp")
CONFIG_KEYS: Mapping[str, Table] = {
    "minimax": {
        **{key: rule for key, rule in WITH_ROPE.items() if key != "attention_bias"},
        **EXPERTS,
        **used("layer_types", "sliding_window", "rotary_dim"),
        **used(*(f"{name}_{factor}_factor" for name in FACTORS for factor in ("alpha", "beta"))),
        "block_size": Harmless("how the recurrence is split, up to rounding"),
        "postnorm": Only((True,), "the stream goes on from the norms"),
        "shared_intermediate_size": Only((0,), "there is no shared expert"),
        "shared_moe_mode": Harmless("there is no shared expert"),
    },
}  # fmt: skip

CONTEXT = 4096 * 32
THETA = 1_000_000.0
INNER_NORM = NormSpec("rms", 1e-6)
"""Of linear attention's results, whatever config.json says."""
DECAYS = IgnoredTensors(
    re.compile(r"\.self_attn\.(slope_rate|(query|key|diagonal)_decay)$"), "constants of the number of heads and layers"
)


def build_spec(view: CheckpointView) -> ModelSpec:
    layout = read_layout(view, default_max_position_embeddings=CONTEXT)
    norm, act = rms_norm(view, default=1e-5), activation(view)
    factors = {name: _factors(view, name) for name in FACTORS}
    mlp_alpha, mlp_beta = factors["mlp"]
    behind_mlp = replace(norm, eps=norm.eps / mlp_alpha**2)
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(layout.num_layers):
        layer = layout.layer(number)
        mixer, mixer_sources = _token_mixer(view, layout, number, act)
        alpha, beta = factors["linear_attn" if isinstance(mixer, LightningSpec) else "full_attn"]
        experts = _experts(view, f"{layer}block_sparse_moe.", act)
        layers.append(
            LayerSpec(
                token_mixer=mixer,
                token_norm=behind_mlp if number else norm,
                channel_mixer=experts,
                channel_norm=replace(norm, eps=norm.eps / alpha**2),
                residual_multiplier=beta / alpha,
                channel_multiplier=mlp_beta / mlp_alpha,
                replaces_stream=True,
            )
        )
        channel = moe_sources(view, experts, f"{layer}block_sparse_moe.", names=EXPERT_NAMES)
        sources |= llama_layer_sources(number, layer, mixer_sources, channel)
    check_layer_kinds("layer_types", stated_layer_types(view, "layer_types", linear="lightning"), layers)
    ignored = (ROTARY_BUFFERS, DECAYS)
    return decoder_spec(view, layout, "minimax", layers, sources, behind_mlp, ignored=ignored)


def _factors(view: CheckpointView, name: str) -> tuple[float, float]:
    """α and β of a kind of mixer."""
    alpha, beta = (
        number_with_evidence(view, key, (key,), 1.0, low=low, high=1e6)
        for key, low in ((f"{name}_alpha_factor", 1e-6), (f"{name}_beta_factor", -1e6))
    )
    return alpha, beta


def _token_mixer(
    view: CheckpointView, layout: DecoderLayout, number: int, act: str
) -> tuple[TokenMixerSpec, dict[str, Source]]:
    """The layer's linear attention, or its softmax attention."""
    layer = layout.layer(number)
    base = f"{layer}self_attn."
    if f"{base}output_gate.weight" in view.tensors:
        return _lightning(view, layout, number, act)
    if f"{base}q_proj.weight" not in view.tensors:
        raise unknown_layer(layer, "self_attn.output_gate.weight, self_attn.q_proj.weight")
    heads = read_heads(view, layer)
    width = view.config.integer("rotary_dim", default=heads.head_dim)
    rope = read_rope(
        view,
        heads.head_dim,
        max_position_embeddings=layout.max_position_embeddings,
        default_theta=THETA,
        default_partial=width / heads.head_dim,
    )
    attention = attention_spec(view, layer, heads, rope, sliding_window=sliding_window(view))
    return attention, attention_sources(view, attention, layer)


def _lightning(
    view: CheckpointView, layout: DecoderLayout, number: int, act: str
) -> tuple[LightningSpec, dict[str, Source]]:
    """Linear attention, whose ``qkv_proj`` has each head's query, key and value one after the other.

    Raises:
        CorruptCheckpoint: The heads don't divide the width.
    """
    base = f"{layout.layer(number)}self_attn."
    heads = view.config.integer("num_attention_heads", high=1 << 16)
    width = vector_length(view.tensors, f"{base}norm.weight")
    if width % heads:
        raise CorruptCheckpoint(
            f"config.json says {heads} attention heads, but {base}norm.weight has {width} values.",
            param="num_attention_heads",
        )
    head_dim = width // heads
    check_size(view, head_dim, f"length of {base}norm.weight by {heads} heads", "head_dim")
    factor = 1 - number / (layout.num_layers - 1 + 1e-5) + 1e-5
    fused = f"{base}qkv_proj.weight"
    output = "out_proj" if f"{base}out_proj.weight" in view.tensors else "o_proj"  # GGUF names all outputs alike
    parts = tuple(Piece(fused, per_group=(3 * head_dim, at * head_dim, (at + 1) * head_dim)) for at in range(3))
    return LightningSpec(heads, head_dim, factor, INNER_NORM, act), {
        "in_proj.weight": Source(parts),
        "gate_proj.weight": tensor(f"{base}output_gate.weight"),
        "norm.weight": tensor(f"{base}norm.weight"),
        "out_proj.weight": tensor(f"{base}{output}.weight"),
    }


def _experts(view: CheckpointView, base: str, act: str) -> MoESpec:
    count, width = count_experts(view, f"{base}experts.", down=EXPERT_NAMES.down)
    check_experts(view, f"{base}experts.", count, width, ("num_local_experts", "num_experts"), "intermediate_size")
    top_k = integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), 2)
    return check_routing(MoESpec(count, top_k, width, act))
