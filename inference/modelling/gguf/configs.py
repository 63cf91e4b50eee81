"""Make a checkpoint's config.json from the metadata of a GGUF file, one function per architecture.

A value that the metadata lack is left out, so that the family takes its default or refuses. Sources: what llama.cpp's
converter writes (``set_gguf_parameters``) and what its ``llama-model.cpp`` reads. Standard library only.
"""

from __future__ import annotations

import math
from typing import Any

from inference.errors import UnsupportedArchitecture
from inference.modelling.gguf.metadata import Metadata, shortest

Config = dict[str, Any]
GATING_SOFTMAX, GATING_SIGMOID = 1, 2
GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
"""Layers of the sizes whose scores are scaled by the width of the model by heads; the file doesn't state the scale."""
_LLAMA3_TRAINED, _LLAMA3_LOW, _LLAMA3_HIGH = 8192, 1.0, 4.0
"""The constants of Llama 3.1 and later ones: trained context, and the bands' factors."""


def given(**values: Any) -> Config:
    """The values that are there."""
    return {key: value for key, value in values.items() if value is not None}


def outer(meta: Metadata) -> Config:
    """What all architectures have."""
    return given(
        hidden_size=meta.integer("embedding_length"),
        num_hidden_layers=meta.integer("block_count"),
        max_position_embeddings=meta.integer("context_length"),
        vocab_size=meta.integer("vocab_size"),
        tie_word_embeddings=not meta.has_tensor("output.weight"),
        bos_token_id=meta.integer("tokenizer.ggml.bos_token_id", whole_key=True),
        eos_token_id=meta.integer("tokenizer.ggml.eos_token_id", whole_key=True),
    )


def heads(meta: Metadata) -> Config:
    """Heads of the attention; a layer without attention states 0 of them."""
    return given(
        num_attention_heads=max(meta.per_layer("attention.head_count"), default=None),
        num_key_value_heads=max(meta.per_layer("attention.head_count_kv"), default=None),
        head_dim=meta.integer("attention.key_length"),
    )


def width_of_head(meta: Metadata) -> int | None:
    """As stated, or by the number of heads."""
    stated = meta.integer("attention.key_length")
    count, hidden = max(meta.per_layer("attention.head_count"), default=0), meta.integer("embedding_length")
    return stated or (hidden // count if hidden and count else None)


def decoder(meta: Metadata) -> Config:
    """Attention, an MLP and RMS norms."""
    return (
        outer(meta)
        | heads(meta)
        | given(
            intermediate_size=max(meta.per_layer("feed_forward_length"), default=None),
            rms_norm_eps=meta.number("attention.layer_norm_rms_epsilon"),
            hidden_act="silu",  # by the architecture: no key says it
        )
    )


def rope(meta: Metadata) -> Config:
    """The rotation: base, share of the head, and scaling."""
    head_dim, rotated = width_of_head(meta), meta.integer("rope.dimension_count")
    found = given(rope_theta=meta.number("rope.freq_base"), rope_scaling=_scaling(meta, rotated or head_dim or 0))
    if head_dim and rotated and rotated != head_dim:
        found["partial_rotary_factor"] = rotated / head_dim
    return found


def _scaling(meta: Metadata, rotated: int) -> Config | None:
    kind = meta.string("rope.scaling.type") or "none"
    factor, trained = meta.number("rope.scaling.factor"), meta.integer("rope.scaling.original_context_length")
    long, short = meta.floats("rope_factors_long.weight"), meta.floats("rope_factors_short.weight")
    if long or short:
        return given(
            rope_type="longrope",
            long_factor=long,
            short_factor=short,
            original_max_position_embeddings=trained,
            attention_factor=meta.number("rope.scaling.attn_factor"),
        )
    factors = meta.floats("rope_freqs.weight")
    if factors and any(value != 1.0 for value in factors):
        return _by_frequency(meta, factors, rotated)
    if kind == "linear":
        return given(rope_type="linear", factor=factor)
    if kind == "yarn":
        return given(
            rope_type="yarn",
            factor=factor,
            original_max_position_embeddings=trained,
            attention_factor=meta.number("rope.scaling.attn_factor"),
            beta_fast=meta.number("rope.scaling.yarn_beta_fast"),
            beta_slow=meta.number("rope.scaling.yarn_beta_slow"),
        )
    if kind not in ("none", "longrope"):
        raise UnsupportedArchitecture(
            f"the GGUF key {meta.architecture}.rope.scaling.type is {kind[:60]!r}; none, linear, yarn and longrope are "
            "read.",
            param="rope.scaling.type",
        )
    return None


def _by_frequency(meta: Metadata, factors: list[float], rotated: int) -> Config:
    """Divisors of the frequencies: Llama 3's, if they are what its rule gives, else as they are."""
    stretch = max(factors)
    base = meta.number("rope.freq_base") or 10000.0
    if len(factors) == rotated // 2 and base > 1:
        rule = [llama3_divisor(base ** (-2 * pair / rotated), stretch) for pair in range(len(factors))]
        if all(math.isclose(mine, theirs, rel_tol=1e-4) for mine, theirs in zip(rule, factors, strict=True)):
            return {
                "rope_type": "llama3",
                "factor": stretch,
                "low_freq_factor": _LLAMA3_LOW,
                "high_freq_factor": _LLAMA3_HIGH,
                "original_max_position_embeddings": _LLAMA3_TRAINED,
            }
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "factor": 1.0,
        "attention_factor": 1.0,
    }


def llama3_divisor(frequency: float, stretch: float) -> float:
    """What Llama 3.1 divides a frequency by: 1 for short waves, ``stretch`` for long ones, smooth between.

    Source: https://github.com/meta-llama/llama-models/blob/main/models/llama3/model.py, ``apply_scaling``.
    """
    wavelength = 2 * math.pi / frequency
    if wavelength < _LLAMA3_TRAINED / _LLAMA3_HIGH:
        return 1.0
    if wavelength > _LLAMA3_TRAINED / _LLAMA3_LOW:
        return stretch
    share = (_LLAMA3_TRAINED / wavelength - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)
    return 1 / ((1 - share) / stretch + share)


def llama(meta: Metadata) -> Config:
    """Llama, Mistral, and Mixtral, which has experts."""
    count = meta.integer("expert_count")
    if not count:
        return decoder(meta) | rope(meta) | {"model_type": "llama"}
    experts = given(num_local_experts=count, num_experts_per_tok=meta.integer("expert_used_count"))
    return decoder(meta) | rope(meta) | experts | {"model_type": "mixtral", "sliding_window": None}


def qwen(meta: Metadata) -> Config:
    """Qwen 2 and 3."""
    return decoder(meta) | rope(meta) | {"model_type": meta.architecture}


def qwen_moe(meta: Metadata) -> Config:
    """Qwen 2 and 3 with experts in all layers; Qwen 3 divides the scores of the chosen ones by their sum."""
    is_third = meta.architecture == "qwen3moe"
    found = decoder(meta) | rope(meta)
    found.pop("intermediate_size", None)  # of dense layers, of which there are none
    return found | given(
        model_type="qwen3_moe" if is_third else "qwen2_moe",
        num_experts=meta.integer("expert_count"),
        num_experts_per_tok=meta.integer("expert_used_count"),
        moe_intermediate_size=meta.integer("expert_feed_forward_length"),
        shared_expert_intermediate_size=None if is_third else meta.integer("expert_shared_feed_forward_length"),
        norm_topk_prob=is_third,
    )


def _delta(meta: Metadata) -> Config:
    """What layers of the gated delta rule have, beside attention with a gate."""
    found, count, inner = decoder(meta), meta.integer("ssm.time_step_rank"), meta.integer("ssm.inner_size")
    rotated, head_dim = meta.integer("rope.dimension_count"), width_of_head(meta)
    return (
        found
        | rope(meta)
        | given(
            # Stated even where all is rotated, which isn't what these families take for granted.
            partial_rotary_factor=rotated / head_dim if rotated and head_dim else None,
            linear_num_key_heads=meta.integer("ssm.group_count"),
            linear_num_value_heads=count,
            linear_key_head_dim=meta.integer("ssm.state_size"),
            linear_value_head_dim=inner // count if inner and count else None,
            linear_conv_kernel_dim=meta.integer("ssm.conv_kernel"),
        )
    )


def _delta_experts(meta: Metadata) -> Config:
    return given(
        num_experts=meta.integer("expert_count"),
        num_experts_per_tok=meta.integer("expert_used_count"),
        moe_intermediate_size=meta.integer("expert_feed_forward_length"),
        shared_expert_intermediate_size=meta.integer("expert_shared_feed_forward_length"),
    )


def qwen3_next(meta: Metadata) -> Config:
    """Qwen3-Next; llama.cpp divides the scores of the chosen experts by their sum."""
    return _delta(meta) | _delta_experts(meta) | {"model_type": "qwen3_next", "norm_topk_prob": True}


def draft_layers(meta: Metadata) -> int:
    """How many of the last layers only draft tokens."""
    return meta.integer("nextn_predict_layers") or 0


def qwen35(meta: Metadata) -> Config:
    """The text models of Qwen 3.5, dense or with experts; for text, the three positions of a token are one."""
    found = _delta(meta) | given(num_hidden_layers=(meta.integer("block_count") or 0) - draft_layers(meta))
    if meta.architecture == "qwen35":
        return found | {"model_type": "qwen3_5_text"}
    return found | _delta_experts(meta) | {"model_type": "qwen3_5_moe_text"}


def lfm2(meta: Metadata) -> Config:
    """LFM2 and LFM2-MoE, whose experts' scores are divided by their sum."""
    found = decoder(meta) | rope(meta)
    found |= given(
        norm_eps=found.pop("rms_norm_eps", None),
        conv_L_cache=meta.integer("shortconv.l_cache"),
        sliding_window=meta.integer("attention.sliding_window"),  # which the family refuses
    )
    found.pop("hidden_act")
    if meta.architecture == "lfm2":
        return found | {"model_type": "lfm2"}
    gating = meta.integer("expert_gating_func")
    if gating not in (None, GATING_SIGMOID):
        raise UnsupportedArchitecture(
            f"the GGUF key lfm2moe.expert_gating_func is {gating}; 2 (sigmoid) is read.", param="expert_gating_func"
        )
    return found | given(
        model_type="lfm2_moe",
        num_experts=meta.integer("expert_count"),
        num_experts_per_tok=meta.integer("expert_used_count"),
        moe_intermediate_size=meta.integer("expert_feed_forward_length"),
        routed_scaling_factor=meta.number("expert_weights_scale"),
        use_expert_bias=any(name.endswith(".exp_probs_b.bias") for name in meta.parts.tensors),
    )


def phi3(meta: Metadata) -> Config:
    """Phi-3 and Phi-4-mini."""
    found = decoder(meta) | rope(meta)
    scaling = found.get("rope_scaling", {})
    trained = meta.integer("rope.scaling.original_context_length")
    if scaling and trained is not None:
        found["original_max_position_embeddings"] = trained
    return found | {"model_type": "phi3", "sliding_window": meta.integer("attention.sliding_window") or None}


def gemma2(meta: Metadata) -> Config:
    """Gemma 2."""
    return (
        decoder(meta)
        | rope(meta)
        | given(
            model_type="gemma2",
            hidden_activation="gelu_pytorch_tanh",
            sliding_window=meta.integer("attention.sliding_window"),
            attn_logit_softcapping=meta.number("attn_logit_softcapping"),
            final_logit_softcapping=meta.number("final_logit_softcapping"),
            query_pre_attn_scalar=score_divisor(meta),
        )
    )


def gemma3(meta: Metadata) -> Config:
    """Gemma 3: its windowed layers have the usual base unless the file states one, and its pattern is fixed."""
    local = meta.number("rope.freq_base_swa")
    return gemma2(meta) | given(
        model_type="gemma3_text", sliding_window_pattern=6, rope_local_base_freq=local or 10000.0
    )


def score_divisor(meta: Metadata) -> float | None:
    """The square of what Gemma's scores are divided by: the width of a head, but in the 27B models."""
    hidden, counts = meta.integer("embedding_length"), meta.per_layer("attention.head_count")
    if meta.integer("block_count") == GEMMA_27B_LAYERS.get(meta.architecture) and hidden and counts and counts[0]:
        return hidden / counts[0]
    return width_of_head(meta)


def _state_space(meta: Metadata) -> Config:
    return given(
        state_size=meta.integer("ssm.state_size"),
        conv_kernel=meta.integer("ssm.conv_kernel"),
        intermediate_size=meta.integer("ssm.inner_size"),
        layer_norm_epsilon=meta.number("attention.layer_norm_rms_epsilon"),
        hidden_act="silu",
    )


def mamba(meta: Metadata) -> Config:
    """Mamba and Falcon-Mamba, which norms Δ, B and C."""
    found = outer(meta) | _state_space(meta) | given(time_step_rank=meta.integer("ssm.time_step_rank"))
    if meta.boolean("ssm.dt_b_c_rms"):
        eps = meta.number("attention.layer_norm_rms_epsilon")
        return found | given(model_type="falcon_mamba", mixer_rms_eps=eps)
    return found | {"model_type": "mamba"}


def _mamba2_heads(meta: Metadata) -> tuple[int | None, int | None]:
    """(heads, width of each): the rank of the time step is the number of heads."""
    count, inner = meta.integer("ssm.time_step_rank"), meta.integer("ssm.inner_size")
    return count, inner // count if count and inner else None


def mamba2(meta: Metadata) -> Config:
    """Mamba-2."""
    count, width = _mamba2_heads(meta)
    found = given(model_type="mamba2", num_heads=count, head_dim=width, n_groups=meta.integer("ssm.group_count"))
    return outer(meta) | _state_space(meta) | found


def jamba(meta: Metadata) -> Config:
    """Jamba: the tensors say which layers have attention, and which have experts."""
    return decoder(meta) | given(
        model_type="jamba",
        mamba_d_state=meta.integer("ssm.state_size"),
        mamba_d_conv=meta.integer("ssm.conv_kernel"),
        mamba_dt_rank=meta.integer("ssm.time_step_rank"),
        num_experts=meta.integer("expert_count"),
        num_experts_per_tok=meta.integer("expert_used_count"),
    )


def granite(meta: Metadata) -> Config:
    """Granite: dense, with Mamba-2 layers, with experts; the hybrids have no positions unless the file says so."""
    count, width = _mamba2_heads(meta)
    found, head_dim = decoder(meta), width_of_head(meta)
    dense_width = found.pop("intermediate_size", None)
    is_rotary = meta.architecture != "granitehybrid" or bool(meta.boolean("rope.scaling.finetuned"))
    num_experts = meta.integer("expert_count") or 0
    scale = meta.number("attention.scale") or None
    return (
        found
        | (rope(meta) if is_rotary else {})
        | given(
            model_type="granitemoehybrid",
            position_embedding_type="rope" if is_rotary else "nope",
            # Without experts the file's width of the MLP is that of either, by the converter's version.
            shared_intermediate_size=meta.integer("expert_shared_feed_forward_length") or None,
            intermediate_size=dense_width if num_experts else None,
            num_local_experts=num_experts,
            num_experts_per_tok=meta.integer("expert_used_count") if num_experts else None,
            embedding_multiplier=meta.number("embedding_scale"),
            residual_multiplier=meta.number("residual_scale"),
            attention_multiplier=scale or (head_dim**-0.5 if head_dim else None),
            logits_scaling=meta.number("logit_scale"),
            mamba_n_heads=count,
            mamba_d_head=width,
            mamba_d_state=meta.integer("ssm.state_size"),
            mamba_d_conv=meta.integer("ssm.conv_kernel"),
            mamba_n_groups=meta.integer("ssm.group_count"),
        )
    )


def nemotron_h(meta: Metadata) -> Config:
    """Nemotron-H: one mixer per layer, which its tensors name; Δ has no lower limit there."""
    count, width = _mamba2_heads(meta)
    found = decoder(meta)
    found.pop("hidden_act")
    has_experts = bool(meta.integer("expert_count"))
    return found | given(
        model_type="nemotron_h",
        layer_norm_epsilon=found.pop("rms_norm_eps", None) or meta.number("attention.layer_norm_epsilon"),
        mlp_hidden_act="relu2",
        mamba_hidden_act="silu",
        mamba_num_heads=count,
        mamba_head_dim=width,
        ssm_state_size=meta.integer("ssm.state_size"),
        n_groups=meta.integer("ssm.group_count"),
        conv_kernel=meta.integer("ssm.conv_kernel"),
        time_step_min=0.0,
        n_routed_experts=meta.integer("expert_count") if has_experts else None,
        num_experts_per_tok=meta.integer("expert_used_count") if has_experts else None,
        moe_intermediate_size=meta.integer("expert_feed_forward_length") if has_experts else None,
        moe_shared_expert_intermediate_size=meta.integer("expert_shared_feed_forward_length") if has_experts else None,
        routed_scaling_factor=meta.number("expert_weights_scale") if has_experts else None,
        norm_topk_prob=meta.boolean("expert_weights_norm") if has_experts else None,
        n_group=meta.integer("expert_group_count") or None,
        topk_group=meta.integer("expert_group_used_count") or None,
    )


def deepseek2(meta: Metadata) -> Config:
    """DeepSeek V2 (softmax scores) and V3 (sigmoid ones)."""
    gating = meta.integer("expert_gating_func") or GATING_SOFTMAX
    if gating not in (GATING_SOFTMAX, GATING_SIGMOID):
        raise UnsupportedArchitecture(
            f"the GGUF key deepseek2.expert_gating_func is {gating}; 1 (softmax) and 2 (sigmoid) are read.",
            param="expert_gating_func",
        )
    is_third = gating == GATING_SIGMOID
    groups, chosen = meta.integer("expert_group_count"), meta.integer("expert_group_used_count")
    normalise = meta.boolean("expert_weights_norm")
    found = decoder(meta)
    found.pop("head_dim", None)  # of the absorbed form, like the number of key heads
    found.pop("num_key_value_heads", None)
    scaling = _scaling(meta, meta.integer("rope.dimension_count") or 0)
    if scaling is not None and scaling["rope_type"] == "yarn":
        # The file has 0.1 · mscale_all_dim; the published configs have mscale = mscale_all_dim.
        log_multiplier = meta.number("rope.scaling.yarn_log_multiplier")
        if log_multiplier is not None:
            scaling |= {"mscale": shortest(log_multiplier * 10), "mscale_all_dim": shortest(log_multiplier * 10)}
            scaling.pop("attention_factor", None)
    return found | given(
        model_type="deepseek_v3" if is_third else "deepseek_v2",
        rope_theta=meta.number("rope.freq_base"),
        rope_scaling=scaling,
        q_lora_rank=meta.integer("attention.q_lora_rank") or None,
        kv_lora_rank=meta.integer("attention.kv_lora_rank"),
        qk_rope_head_dim=meta.integer("rope.dimension_count"),
        first_k_dense_replace=meta.integer("leading_dense_block_count"),
        n_routed_experts=meta.integer("expert_count"),
        n_shared_experts=meta.integer("expert_shared_count"),
        num_experts_per_tok=meta.integer("expert_used_count"),
        moe_intermediate_size=meta.integer("expert_feed_forward_length"),
        routed_scaling_factor=meta.number("expert_weights_scale"),
        norm_topk_prob=bool(normalise),
        scoring_func="sigmoid" if is_third else "softmax",
        topk_method="noaux_tc" if is_third else "group_limited_greedy" if (groups or 1) > 1 else "greedy",
        n_group=groups or 1,
        topk_group=chosen or 1,
    )
