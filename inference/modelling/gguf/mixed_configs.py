"""config.json from the metadata of files whose layers are of several kinds: windows and not, or linear attention.

As ``configs.py``, one function per architecture. Standard library only.
"""

from __future__ import annotations

from inference.errors import UnsupportedArchitecture
from inference.modelling.gguf.config_parts import (
    GATING_SIGMOID,
    Config,
    decoder,
    draft_layers,
    expect_gating,
    expect_normalised,
    given,
    granite_multipliers,
    model_layers,
    scaling,
    width_of_head,
    window_types,
)
from inference.modelling.gguf.dense_configs import plain, ropes_by_type
from inference.modelling.gguf.expert_configs import latent_and_delta, sparse_deepseek
from inference.modelling.gguf.metadata import Metadata, shortest

CLAMPS = ("swiglu_clamp_exp", "swiglu_clamp_shexp")


def laguna(meta: Metadata) -> Config:
    """Laguna: a layer with a window has other heads and rotates them whole; the first of four layers has none."""
    expect_gating(meta, GATING_SIGMOID)
    expect_normalised(meta)
    width, turned = width_of_head(meta), meta.integer("rope.dimension_count_swa")
    if turned not in (None, width):
        raise UnsupportedArchitecture(
            f"the GGUF key laguna.rope.dimension_count_swa is {turned}; layers with a window are read whose whole "
            f"heads of {width} are rotated.",
            param="rope.dimension_count_swa",
        )
    heads = meta.per_layer("attention.head_count")
    has_gates_of_heads = bool(heads) and meta.rows("blk.0.attn_gate.weight") == heads[0]
    return (
        decoder(meta)
        | window_types(meta, meta.integer("attention.sliding_window"), full_first=True)
        | given(
            model_type="laguna",
            rope_parameters=ropes_by_type(meta),
            num_attention_heads_per_layer=heads or None,
            gating="per-head" if has_gates_of_heads else "per-element",
            num_experts=meta.integer("expert_count"),
            num_experts_per_tok=meta.integer("expert_used_count"),
            moe_intermediate_size=meta.integer("expert_feed_forward_length"),
            shared_expert_intermediate_size=meta.integer("expert_shared_feed_forward_length"),
            moe_routed_scaling_factor=meta.number("expert_weights_scale") or 1.0,
            mlp_layer_types=[
                "sparse" if meta.has_tensor(f"blk.{number}.ffn_gate_inp.weight") else "dense"
                for number in range(meta.integer("block_count") or 0)
            ],
        )
    )


def granite_swa(meta: Metadata) -> Config:
    """Granite with windows and sinks, dense or with experts; some layers may have no positions."""
    has_experts = bool(meta.integer("expert_count"))
    found = plain(meta, "granitemoe_swa" if has_experts else "granite_swa") | granite_multipliers(meta)
    found |= window_types(meta, meta.integer("attention.sliding_window"), full_first=True)
    turns = meta.flags("attention.rope_pattern")
    return found | given(
        layer_rope_theta=[found["rope_theta"] if flag else 0.0 for flag in turns] if isinstance(turns, list) else None,
        num_local_experts=meta.integer("expert_count") if has_experts else None,
        num_experts_per_tok=meta.integer("expert_used_count") if has_experts else None,
        shared_intermediate_size=meta.integer("expert_shared_feed_forward_length"),
    )


def minimax_01(meta: Metadata) -> Config:
    """MiniMax-Text-01: the tensors say which layers have lightning attention; one factor is that of all norms."""
    alpha = meta.number("residual_scale")
    return plain(
        meta,
        "minimax",
        num_local_experts=meta.integer("expert_count"),
        num_experts_per_tok=meta.integer("expert_used_count"),
        **{f"{name}_alpha_factor": alpha for name in ("full_attn", "linear_attn", "mlp")},
    ) | {"sliding_window": None}


def hy_v4(meta: Metadata) -> Config:
    """HY 4 (Hunyuan), all of whose layers choose keys, by an indexer of their own or an earlier one.

    Raises:
        UnsupportedArchitecture: Layers see all keys, or experts' inner values aren't cut, or not at one bound.
    """
    if not meta.integer("attention.indexer.top_k"):
        raise UnsupportedArchitecture(
            "the GGUF key hy_v4.attention.indexer.top_k is missing; HY 4 is read whose layers choose keys.",
            param="attention.indexer.top_k",
        )
    limits = set(meta.numbers(CLAMPS[0]))
    if len(limits) != 1 or not min(limits):
        raise UnsupportedArchitecture(
            f"the GGUF key hy_v4.{CLAMPS[0]} has {len(limits)} different bounds, of which one above 0 is read.",
            param=CLAMPS[0],
        )
    return sparse_deepseek(meta, "hy_v4") | given(
        swiglu_limit=shortest(min(limits)),
        hc_mult=meta.integer("hyper_connection.count"),
        hc_eps=meta.number("hyper_connection.epsilon"),
        hc_magnitude=meta.number("hyper_connection.magnitude"),
    )


def bailing_moe3(meta: Metadata) -> Config:
    """Ling 3 (Bailing): the tensors say which layers have the delta rule.

    Raises:
        UnsupportedArchitecture: The text model of one that sees pictures, whose pairs are halves of the head, other
            gates than the safe ones, or experts whose inner values are cut.
    """
    _expect_plain_ling(meta)
    return latent_and_delta(meta) | given(
        model_type="bailing_hybrid",
        num_hidden_layers=model_layers(meta),
        num_nextn_predict_layers=draft_layers(meta),
        rope_theta=meta.number("rope.freq_base"),
        rope_scaling=scaling(meta, meta.integer("rope.dimension_count") or 0),
        short_conv_kernel_size=meta.integer("ssm.conv_kernel"),
        kda_safe_gate=True,
        kda_lower_bound=meta.number("kda.gate_lower_bound"),
        num_experts_per_tok=meta.integer("expert_used_count"),
        moe_renormalize=bool(meta.boolean("expert_weights_norm")),
    )


def _expect_plain_ling(meta: Metadata) -> None:
    """Refuse what the Ling models for text don't have.

    Raises:
        UnsupportedArchitecture: A key states it.
    """
    if meta.parts.keys.get("bailingmoe3.rope.dimension_sections") is not None:
        raise UnsupportedArchitecture(
            "the GGUF key bailingmoe3.rope.dimension_sections says that positions are triples; Ling models for text "
            "are read.",
            param="rope.dimension_sections",
        )
    if meta.boolean("kda.safe_gate") is False:
        raise UnsupportedArchitecture(
            "the GGUF key bailingmoe3.kda.safe_gate is false; gates with a lower bound are read.", param="kda.safe_gate"
        )
    for key in CLAMPS:
        if any(meta.numbers(key)):
            raise UnsupportedArchitecture(
                f"the GGUF key bailingmoe3.{key} cuts the inner values of experts; Ling is read where it is 0.",
                param=key,
            )
