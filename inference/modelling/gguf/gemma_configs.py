"""Make config.json of the metadata of Gemma 3n and Gemma 4.

Sources: what llama.cpp's converter writes (``conversion/gemma.py``). Standard library only.
"""

from __future__ import annotations

from statistics import NormalDist

from inference.errors import UnsupportedArchitecture
from inference.modelling.gguf.config_parts import Config, decoder, given, rope, window_types
from inference.modelling.gguf.metadata import Metadata, shortest

LOCAL_THETA = 10000.0
LOGITS_CAP = 30.0
PATTERN = 5
"""Every so many layers, one sees all positions, unless the file states which."""
GEMMA4_PATTERN = 6
UNTURNED = 1e20
"""Pairs whose frequencies are divided by more don't turn: the converter writes 1e30."""
_SPARSITY = "activation_sparsity_scale"


def gemma3n(meta: Metadata) -> Config:
    """Gemma 3n; the file states the cut of the gates in deviations, config.json the share that lies below it."""
    found = decoder(meta) | rope(meta)
    del found["hidden_act"]
    cuts = meta.numbers(_SPARSITY)
    return (
        found
        | window_types(meta, meta.integer("attention.sliding_window"), every=PATTERN)
        | given(
            model_type="gemma3n_text",
            hidden_activation="gelu_pytorch_tanh",
            intermediate_size=meta.per_layer("feed_forward_length") or None,
            rope_local_base_freq=meta.number("rope.freq_base_swa") or LOCAL_THETA,
            final_logit_softcapping=meta.number("final_logit_softcapping") or LOGITS_CAP,
            altup_active_idx=meta.integer("altup.active_idx"),
            altup_num_inputs=meta.integer("altup.num_inputs"),
            hidden_size_per_layer_input=meta.integer("embedding_length_per_layer_input"),
            num_kv_shared_layers=meta.integer("attention.shared_kv_layers"),
            activation_sparsity_pattern=[shortest(NormalDist().cdf(cut)) for cut in cuts] or None,
        )
    )


def gemma4(meta: Metadata) -> Config:
    """Gemma 4, whose full layers have heads of another width and number, and take their keys as values or not."""
    window = window_types(meta, meta.integer("attention.sliding_window"), every=GEMMA4_PATTERN)
    types = window.get("layer_types") or ["full_attention"] * (meta.integer("block_count") or 0)
    widths = {
        "full_attention": meta.integer("attention.key_length"),
        "sliding_attention": meta.integer("attention.key_length_swa") or meta.integer("attention.key_length"),
    }
    counts = dict(zip(reversed(types), reversed(meta.per_layer("attention.head_count_kv")), strict=False))
    inner = meta.per_layer("feed_forward_length")
    full = next((number for number, kind in enumerate(types) if kind == "full_attention"), 0)
    has_experts = meta.has_tensor("blk.0.ffn_gate_inp.weight")
    found = decoder(meta)
    for key in ("hidden_act", "num_key_value_heads"):
        found.pop(key, None)
    return (
        found
        | window
        | given(
            model_type="gemma4_text",
            hidden_activation="gelu_pytorch_tanh",
            intermediate_size=inner[0] if inner else None,
            use_double_wide_mlp=bool(inner) and inner[-1] == 2 * inner[0],
            head_dim=widths["sliding_attention"],
            global_head_dim=widths["full_attention"],
            num_key_value_heads=counts.get("sliding_attention"),
            per_layer_config={
                kind: given(head_dim=widths[kind], num_key_value_heads=counts.get(kind)) for kind in sorted(set(types))
            },
            attention_k_eq_v=meta.has_tensor(f"blk.{full}.attn_k.weight")
            and not meta.has_tensor(f"blk.{full}.attn_v.weight"),
            num_kv_shared_layers=meta.integer("attention.shared_kv_layers"),
            hidden_size_per_layer_input=meta.integer("embedding_length_per_layer_input"),
            final_logit_softcapping=meta.number("final_logit_softcapping"),
            rope_parameters=_gemma4_ropes(meta, widths["sliding_attention"]),
            enable_moe_block=has_experts,
            num_experts=meta.integer("expert_count") if has_experts else None,
            top_k_experts=meta.integer("expert_used_count") if has_experts else None,
            moe_intermediate_size=meta.integer("expert_feed_forward_length") if has_experts else None,
        )
    )


def _gemma4_ropes(meta: Metadata, local_width: int | None) -> Config:
    """The rotations: of full layers a share of the pairs turns, the first ones, by a tensor of divisors.

    Raises:
        UnsupportedArchitecture: The divisors stretch positions, or pairs behind others turn.
    """
    divisors, rotated = meta.floats("rope_freqs.weight"), meta.integer("rope.dimension_count_swa")
    turned = sum(divisor < UNTURNED for divisor in divisors)
    if any(divisor != 1.0 for divisor in divisors[:turned]):
        raise UnsupportedArchitecture(
            "rope_freqs.weight of the GGUF file stretches positions; Gemma 4 is read with pairs that turn as they are "
            "and, behind them, pairs that don't.",
            param="rope_freqs.weight",
        )
    local = {"rope_type": "default", "rope_theta": meta.number("rope.freq_base_swa") or LOCAL_THETA}
    if local_width and rotated and rotated != local_width:
        local["partial_rotary_factor"] = rotated / local_width
    return {
        "sliding_attention": local,
        "full_attention": given(
            rope_type="proportional",
            rope_theta=meta.number("rope.freq_base"),
            partial_rotary_factor=turned / len(divisors) if divisors else 1.0,
        ),
    }
