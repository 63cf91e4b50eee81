"""LongCat-Flash: two latent attentions and MLPs in a layer, experts that skip the second pair; some do nothing.

A layer of the files is two layers here: the experts read what the first MLP reads, and the second layer adds their
result at its end.

Source: https://arxiv.org/abs/2509.01322, and transformers' ``longcat_flash`` for what config.json may leave out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.checks import ROTARY_BUFFERS, IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, ROPE, Table, used
from inference.modelling.families.config_keys import Biases, Harmless
from inference.modelling.families.config_values import activation, check_size, integer_with_evidence, rms_norm
from inference.modelling.families.decoder import decoder_spec, llama_layer, norm_sources
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.grouped_moe import scaling_factor
from inference.modelling.families.headers import matrix_shape
from inference.modelling.families.latent_attention import mla_sources, mla_spec
from inference.modelling.families.mlp_config import MLPNames, mlp_sources, mlp_spec
from inference.modelling.families.moe_config import check_experts, check_routing, count_experts, moe_sources
from inference.modelling.families.rope_config import read_rope, yarn_softmax_multiplier
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import MoESpec
from inference.modelling.specs.parts import prefixed
from inference.modelling.specs.sources import Piece, Source

CONFIG_KEYS: Mapping[str, Table] = {
    "longcat_flash": {
        **{key: rule for key, rule in COMMON.items() if key not in ("num_hidden_layers", "n_layer")},
        **ROPE,
        **used(
            "num_attention_heads", "hidden_act", "rms_norm_eps", "ffn_hidden_size", "q_lora_rank", "kv_lora_rank",
            "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim", "moe_topk", "n_routed_experts",
            "zero_expert_num", "expert_ffn_hidden_size", "routed_scaling_factor", "router_bias",
        ),
        "num_key_value_heads": Harmless("latent attention has no key/value heads"),
        "head_dim": Harmless("qk_rope_head_dim, qk_nope_head_dim and v_head_dim say it"),
        "attention_bias": Biases(r"self_attn\.\d\.(?:q_a_proj|kv_a_proj_with_mqa|o_proj)"),
    }
}  # fmt: skip

CONTEXT = 131072
THETA = 10_000_000.0


def build_spec(view: CheckpointView) -> ModelSpec:
    layout = read_layout(view, default_max_position_embeddings=CONTEXT)
    norm, act = rms_norm(view, default=1e-5), activation(view)
    mla = _attention(view, f"{layout.layer(0)}self_attn.0.", layout.max_position_embeddings, layout.hidden_size)
    moe = _moe(view, layout.layer(0), act)
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(layout.num_layers):
        layer = layout.layer(number)
        for half in (0, 1):
            mlp = mlp_spec(view, layer, act, mlp=f"mlps.{half}.", names=MLPNames(width_key="ffn_hidden_size"))
            own = prefixed("token_mixer", mla_sources(mla, f"{layer}self_attn.{half}."))
            own |= prefixed("channel_mixer", mlp_sources(view, mlp, layer, mlp=f"mlps.{half}."))
            own |= prefixed("token_norm", norm_sources(norm, f"{layer}input_layernorm.{half}"))
            own |= prefixed("channel_norm", norm_sources(norm, f"{layer}post_attention_layernorm.{half}"))
            shortcut = moe if half == 0 else None
            if shortcut is not None:
                own |= prefixed("shortcut", _moe_sources(view, moe, f"{layer}mlp."))
            layers.append(replace(llama_layer(mla, mlp, norm), shortcut=shortcut))
            sources |= prefixed(f"layers.{2 * number + half}", own)
    ignored = (ROTARY_BUFFERS, _idle_experts(moe))
    return decoder_spec(view, layout, "longcat_flash", layers, sources, norm, ignored=ignored)


def _attention(view: CheckpointView, base: str, context: int, hidden_size: int) -> MLASpec:
    """DeepSeek's attention, whose latents are stretched to the magnitude of the hidden state.

    Raises:
        UnsupportedArchitecture: The queries have no latent.
    """
    spec = mla_spec(view, base, context, interleaved=None)
    if spec.q_lora_rank is None:
        raise UnsupportedArchitecture(f"{base}q_a_proj.weight is missing.", param="q_lora_rank")
    rope = read_rope(
        view, spec.qk_rope_head_dim, max_position_embeddings=context, default_theta=THETA, interleaved=True
    )
    return replace(
        spec,
        rope=rope,
        scale=spec.scale * yarn_softmax_multiplier(rope) * (hidden_size / spec.q_lora_rank) ** 0.5,
        latent_multiplier=(hidden_size / spec.kv_lora_rank) ** 0.5,
    )


def _moe(view: CheckpointView, layer: str, act: str) -> MoESpec:
    """The experts; the router also chooses among some that give back what they read."""
    base = f"{layer}mlp."
    count, width = count_experts(view, f"{base}experts.")
    check_experts(view, f"{base}experts.", count, width, ("n_routed_experts",), "expert_ffn_hidden_size")
    choices = matrix_shape(view.tensors, f"{base}router.classifier.weight")[0]
    check_size(view, choices - count, f"rows of {base}router.classifier.weight beyond {count}", "zero_expert_num")
    has_bias = f"{base}router.classifier.bias" in view.tensors
    if has_bias or view.config.boolean("router_bias", default=False):
        raise UnsupportedArchitecture(
            "config.json: router_bias is on, but transformers leaves that bias out; remove it from the files if the "
            "model was trained without.",
            param="router_bias",
        )
    return check_routing(
        MoESpec(
            num_experts=count,
            num_identity_experts=choices - count,
            top_k=integer_with_evidence(view, "moe.top_k", ("moe_topk",), 12),
            intermediate_size=width,
            activation=act,
            normalise_top_k=False,
            routed_scaling_factor=scaling_factor(view, 6.0),
            correction_bias=True,
        )
    )


def _moe_sources(view: CheckpointView, spec: MoESpec, base: str) -> dict[str, Source]:
    sources = moe_sources(
        view, spec, base, router="router.classifier", correction_bias="router.e_score_correction_bias"
    )
    stacked = f"{base}experts.gate_up_proj"
    if stacked in view.tensors:
        # transformers stacks rows for the experts that do nothing too.
        sources["experts.gate_up_proj"] = Source((Piece(stacked, rows=(0, spec.num_experts)),))
    return sources


def _idle_experts(spec: MoESpec) -> IgnoredTensors:
    """Matrices that transformers writes for experts that do nothing."""
    numbers = "|".join(str(spec.num_experts + number) for number in range(spec.num_identity_experts))
    names = rf"\.mlp\.experts\.({numbers or 'none'})\.(gate|up)_proj\."
    return IgnoredTensors(re.compile(names), "matrices of experts that give back what they read")
