"""Make a checkpoint's config.json from the metadata of a GGUF file, one function per architecture.

Those that differ from Llama in names and options are in ``dense_configs.py`` and ``expert_configs.py``, what all share
in ``config_parts.py``. Standard library only.
"""

from __future__ import annotations

from inference.errors import UnsupportedArchitecture
from inference.modelling.gguf.config_parts import (
    GATING_SIGMOID,
    GATING_SOFTMAX,
    Config,
    decoder,
    draft_layers,
    expect_gating,
    given,
    granite_multipliers,
    model_layers,
    outer,
    rope,
    scaling,
    width_of_head,
)
from inference.modelling.gguf.metadata import Metadata, shortest

GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
"""Layers of the sizes whose scores are scaled by the width of the model by heads; the file doesn't state the scale."""
PHI3_4K, PHI3_4K_LAYERS, PHI3_4K_WINDOW = 4096, (32, 40), 2047
"""Context, layers and windows of the models whose first files, Microsoft's among them, don't state the windows."""


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
    is_third = meta.architecture.startswith("qwen3")
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
    found = _delta(meta) | given(num_hidden_layers=model_layers(meta))
    return found | _delta_experts(meta) | {"model_type": "qwen3_next", "norm_topk_prob": True}


def qwen35(meta: Metadata) -> Config:
    """The text models of Qwen 3.5, dense or with experts; for text, the three positions of a token are one."""
    found = _delta(meta) | given(num_hidden_layers=model_layers(meta))
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
    expect_gating(meta, GATING_SIGMOID)
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
    trained = meta.integer("rope.scaling.original_context_length")
    if found.get("rope_scaling") and trained is not None:
        found["original_max_position_embeddings"] = trained
    window = meta.integer("attention.sliding_window")
    if window is None and meta.integer("context_length") == PHI3_4K and meta.integer("block_count") in PHI3_4K_LAYERS:
        window = PHI3_4K_WINDOW
    return found | {"model_type": "phi3", "sliding_window": window or None}


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


def granite_hybrid(meta: Metadata) -> Config:
    """Granite 4 with Mamba-2 layers, and Bamba; attention has no positions unless the file says so."""
    count, width = _mamba2_heads(meta)
    found = decoder(meta)
    dense_width = found.pop("intermediate_size", None)
    is_rotary = bool(meta.boolean("rope.scaling.finetuned"))
    num_experts = meta.integer("expert_count") or 0
    return (
        found
        | (rope(meta) if is_rotary else {})
        | granite_multipliers(meta)
        | given(
            model_type="granitemoehybrid",
            position_embedding_type="rope" if is_rotary else "nope",
            # Without experts the file's width of the MLP is that of either, by the converter's version.
            shared_intermediate_size=meta.integer("expert_shared_feed_forward_length") or None,
            intermediate_size=dense_width if num_experts else None,
            num_local_experts=num_experts,
            num_experts_per_tok=meta.integer("expert_used_count") if num_experts else None,
            mamba_n_heads=count,
            mamba_d_head=width,
            mamba_d_state=meta.integer("ssm.state_size"),
            mamba_d_conv=meta.integer("ssm.conv_kernel"),
            mamba_n_groups=meta.integer("ssm.group_count"),
        )
    )


def falcon_h1(meta: Metadata) -> Config:
    """Falcon-H1, whose factors the converter has multiplied into the weights; a gated norm has the gate first."""
    count, width = _mamba2_heads(meta)
    return (
        decoder(meta)
        | rope(meta)
        | given(
            model_type="falcon_h1",
            mamba_d_ssm=meta.integer("ssm.inner_size"),
            mamba_n_heads=count,
            mamba_d_head=width,
            mamba_d_state=meta.integer("ssm.state_size"),
            mamba_d_conv=meta.integer("ssm.conv_kernel"),
            mamba_n_groups=meta.integer("ssm.group_count"),
            mamba_norm_before_gate=False,
        )
    )


def nemotron_h(meta: Metadata) -> Config:
    """Nemotron-H: one mixer per layer, which its tensors name."""
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
    """DeepSeek V2 (softmax scores) and V3 (sigmoid ones), GLM-4.7-Flash, and Youtu-LLM, which has no experts.

    Raises:
        UnsupportedArchitecture: Mistral Large 3, whose queries grow with the position.
    """
    expect_gating(meta, GATING_SOFTMAX, GATING_SIGMOID)
    if meta.number("attention.temperature_scale"):
        raise UnsupportedArchitecture(
            f"the GGUF key {meta.architecture}.attention.temperature_scale says that queries grow with the position; "
            "latent attention of GGUF files is read without.",
            param="attention.temperature_scale",
        )
    gating = meta.integer("expert_gating_func")
    if not gating and any(name.endswith(".exp_probs_b.bias") for name in meta.parts.tensors):
        gating = GATING_SIGMOID  # experts are chosen with a bias in V3 and GLM only
    is_third = gating == GATING_SIGMOID
    groups, chosen = meta.integer("expert_group_count"), meta.integer("expert_group_used_count")
    normalise = meta.boolean("expert_weights_norm")
    found = decoder(meta)
    found.pop("head_dim", None)  # of the absorbed form, like the number of key heads
    found.pop("num_key_value_heads", None)
    stretch = scaling(meta, meta.integer("rope.dimension_count") or 0)
    if stretch is not None and stretch["rope_type"] == "yarn":
        # The file has 0.1 · mscale_all_dim; the published configs have mscale = mscale_all_dim.
        log_multiplier = meta.number("rope.scaling.yarn_log_multiplier")
        if log_multiplier is not None:
            stretch |= {"mscale": shortest(log_multiplier * 10), "mscale_all_dim": shortest(log_multiplier * 10)}
            for key in ("attention_factor", "attn_factor"):
                stretch.pop(key, None)
    return found | given(
        model_type="deepseek_v3" if is_third else "deepseek_v2",
        num_hidden_layers=model_layers(meta),
        num_nextn_predict_layers=draft_layers(meta),
        rope_theta=meta.number("rope.freq_base"),
        rope_scaling=stretch,
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
