"""config.json from the metadata of files whose layers have experts, in decoders like those of ``dense_configs.py``.

Standard library only.
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
    expect_normalised,
    given,
    granite_multipliers,
    model_layers,
    outer,
    window_types,
)
from inference.modelling.gguf.configs import deepseek2
from inference.modelling.gguf.dense_configs import plain, ropes_by_type
from inference.modelling.gguf.metadata import Metadata

EXAONE_WINDOW = 128
LLAMA4_WITHOUT_NORMS = 128
"""Experts of the Llama 4 whose queries and keys aren't normed (Maverick)."""


def _in_groups(meta: Metadata, groups: str = "n_group") -> Config:
    """Width, groups and factor of experts; ``groups``: config.json's name of the number of groups."""
    return given(
        **{groups: meta.integer("expert_group_count") or 1},
        topk_group=meta.integer("expert_group_used_count") or 1,
        moe_intermediate_size=meta.integer("expert_feed_forward_length"),
        routed_scaling_factor=meta.number("expert_weights_scale") or 1.0,
    )


def _sigmoid_experts(meta: Metadata, model_type: str, count: str, shared: str) -> Config:
    """Experts of DeepSeek-V3's kind; ``count`` and ``shared``: config.json's names of their numbers."""
    return (
        plain(meta, model_type)
        | _in_groups(meta)
        | given(
            **{count: meta.integer("expert_count"), shared: meta.integer("expert_shared_count")},
            num_hidden_layers=model_layers(meta),
            num_experts_per_tok=meta.integer("expert_used_count"),
            norm_topk_prob=bool(meta.boolean("expert_weights_norm")),
        )
    )


def glm4_moe(meta: Metadata) -> Config:
    """GLM 4.5 and later ones, and Solar Open."""
    expect_gating(meta, GATING_SIGMOID)
    return _sigmoid_experts(meta, "glm4_moe", "n_routed_experts", "n_shared_experts") | {
        "use_qk_norm": meta.has_tensor("blk.0.attn_q_norm.weight"),
        "num_nextn_predict_layers": draft_layers(meta),
    }


def exaone_moe(meta: Metadata) -> Config:
    """K-EXAONE."""
    expect_gating(meta, GATING_SIGMOID)
    window = meta.integer("attention.sliding_window")
    return (
        _sigmoid_experts(meta, "exaone_moe", "num_experts", "num_shared_experts")
        | window_types(meta, EXAONE_WINDOW if window is None else window)
        | {"num_nextn_predict_layers": draft_layers(meta)}
    )


def dots1(meta: Metadata) -> Config:
    """dots.llm1; llama.cpp has no windows in it."""
    expect_gating(meta, GATING_SIGMOID)
    return _sigmoid_experts(meta, "dots1", "n_routed_experts", "n_shared_experts") | {"sliding_window": None}


def olmoe(meta: Metadata) -> Config:
    """OLMoE, whose scores aren't divided by their sum."""
    return plain(
        meta,
        "olmoe",
        num_experts=meta.integer("expert_count"),
        num_experts_per_tok=meta.integer("expert_used_count"),
        norm_topk_prob=False,
    )


def ernie4_5_moe(meta: Metadata) -> Config:
    """ERNIE 4.5 with experts."""
    expect_gating(meta, GATING_SOFTMAX)
    return plain(
        meta,
        "ernie4_5_moe",
        moe_num_experts=meta.integer("expert_count"),
        moe_k=meta.integer("expert_used_count"),
        moe_num_shared_experts=meta.integer("expert_shared_count"),
        moe_intermediate_size=meta.integer("expert_feed_forward_length"),
    )


def granite_moe(meta: Metadata) -> Config:
    """Granite 3 with experts, perhaps with an MLP beside them, which all tokens pass."""
    shared = meta.integer("expert_shared_feed_forward_length") or None
    found = plain(
        meta,
        "granitemoeshared" if shared else "granitemoe",
        num_local_experts=meta.integer("expert_count"),
        num_experts_per_tok=meta.integer("expert_used_count"),
        shared_intermediate_size=shared,
    )
    return found | granite_multipliers(meta)


def hunyuan_moe(meta: Metadata) -> Config:
    """Hunyuan with experts; the width that config.json states is theirs."""
    return plain(
        meta,
        "hunyuan_v1_moe",
        num_experts=meta.integer("expert_count"),
        moe_topk=meta.integer("expert_used_count"),
        intermediate_size=meta.integer("expert_feed_forward_length"),
    )


def minimax_m2(meta: Metadata) -> Config:
    """MiniMax-M2; all layers have experts."""
    expect_gating(meta, GATING_SIGMOID)
    return plain(
        meta,
        "minimax_m2",
        num_local_experts=meta.integer("expert_count"),
        num_experts_per_tok=meta.integer("expert_used_count"),
        intermediate_size=meta.integer("expert_feed_forward_length"),
    )


def phimoe(meta: Metadata) -> Config:
    """Phi-3.5-MoE, whose file has the factor that LongRoPE's rule gives, as llama.cpp applies it."""
    found = plain(
        meta,
        "phimoe",
        num_local_experts=meta.integer("expert_count"),
        num_experts_per_tok=meta.integer("expert_used_count"),
        sliding_window=meta.integer("attention.sliding_window") or None,
    )
    scaling = found.get("rope_scaling")
    if scaling:
        factor = scaling.pop("attention_factor", 1.0)
        found["rope_scaling"] = scaling | {"short_mscale": factor, "long_mscale": factor}
    return found


def afmoe(meta: Metadata) -> Config:
    """AFMoE, whose embeddings llama.cpp always multiplies."""
    expect_gating(meta, GATING_SIGMOID)
    return (
        plain(
            meta,
            "afmoe",
            num_experts=meta.integer("expert_count"),
            num_experts_per_tok=meta.integer("expert_used_count"),
            num_shared_experts=meta.integer("expert_shared_count"),
            moe_intermediate_size=meta.integer("expert_feed_forward_length"),
            num_dense_layers=meta.integer("leading_dense_block_count"),
            route_scale=meta.number("expert_weights_scale"),
            route_norm=meta.boolean("expert_weights_norm"),
        )
        | window_types(meta, meta.integer("attention.sliding_window"))
        | {"mup_enabled": True}
    )


def gpt_oss(meta: Metadata) -> Config:
    """gpt-oss: every other layer has a window, and both ends of YaRN's ramp are as they are computed, not rounded."""
    found = plain(
        meta,
        "gpt_oss",
        intermediate_size=meta.integer("expert_feed_forward_length"),
        num_local_experts=meta.integer("expert_count"),
        num_experts_per_tok=meta.integer("expert_used_count"),
    )
    if "rope_scaling" in found:
        found["rope_scaling"] |= {"truncate": False}
    return found | window_types(meta, meta.integer("attention.sliding_window"), every=2)


def latent_and_delta(meta: Metadata) -> Config:
    """What Kimi Linear and Ling 3 share: latent attention beside the delta rule, and groups of experts."""
    expect_gating(meta, GATING_SIGMOID)
    found = decoder(meta)
    for key in ("head_dim", "num_key_value_heads"):
        found.pop(key, None)  # of the absorbed form
    return (
        found
        | _in_groups(meta, "num_expert_group")
        | given(
            kv_lora_rank=meta.integer("attention.kv_lora_rank"),
            qk_rope_head_dim=meta.integer("rope.dimension_count"),
            num_experts=meta.integer("expert_count"),
            first_k_dense_replace=meta.integer("leading_dense_block_count"),
        )
    )


def kimi_linear(meta: Metadata) -> Config:
    """Kimi Linear: layers without heads of keys have the delta rule; scores are divided by their sum."""
    kinds = list(enumerate(meta.per_layer("attention.head_count_kv"), 1))
    return latent_and_delta(meta) | given(
        model_type="kimi_linear",
        linear_attn_config=given(
            full_attn_layers=[number for number, heads in kinds if heads],
            kda_layers=[number for number, heads in kinds if not heads],
            head_dim=meta.integer("kda.head_dim"),
            short_conv_kernel_size=meta.integer("ssm.conv_kernel"),
        ),
        q_lora_rank=meta.integer("attention.q_lora_rank") or None,
        mla_use_nope=True,
        num_experts_per_token=meta.integer("expert_used_count"),
        num_shared_experts=meta.integer("expert_shared_count"),
        moe_renormalize=True,
    )


def mimo2(meta: Metadata) -> Config:
    """MiMo-V2-Flash: windowed layers have twice the heads of keys.

    The first files don't state by what values are multiplied, and had the published model's; later ones, which have
    layers that draft, leave it out where nothing is multiplied.
    """
    expect_gating(meta, GATING_SIGMOID)
    found, drafts, width = decoder(meta), draft_layers(meta), meta.integer("attention.key_length")
    window = window_types(meta, meta.integer("attention.sliding_window"))
    count = model_layers(meta)
    types = window.get("layer_types") or ["full_attention"] * count
    rotated = meta.integer("rope.dimension_count")
    share = {"partial_rotary_factor": rotated / width} if rotated and width else {}
    base = meta.number("rope.freq_base") or 10000.0
    factor = meta.number("attention.value_scale")
    if factor is not None or drafts:
        found["attention_value_scale"] = factor
    heads = zip(types, meta.per_layer("attention.head_count_kv"), strict=False)
    counts = [number if kind == "full_attention" else number // 2 for kind, number in heads]
    return (
        found
        | window
        | _in_groups(meta)
        | given(
            model_type="mimo_v2_flash",
            num_hidden_layers=count,
            num_key_value_heads=counts[0] if counts else None,
            v_head_dim=meta.integer("attention.value_length"),
            n_routed_experts=meta.integer("expert_count"),
            num_experts_per_tok=meta.integer("expert_used_count"),
            norm_topk_prob=True,
            num_nextn_predict_layers=drafts,
            mlp_layer_types=[
                "sparse" if meta.has_tensor(f"blk.{number}.ffn_gate_inp.weight") else "dense" for number in range(count)
            ],
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": base, **share},
                "sliding_attention": {
                    "rope_type": "default", "rope_theta": meta.number("rope.freq_base_swa") or base, **share,
                },
            },
        )
    )  # fmt: skip


def dbrx(meta: Metadata) -> Config:
    """DBRX, whose chosen scores llama.cpp divides by their sum."""
    found = outer(meta)
    return given(
        model_type="dbrx",
        d_model=found.pop("hidden_size", None),
        n_layers=found.pop("num_hidden_layers", None),
        n_heads=max(meta.per_layer("attention.head_count"), default=None),
        attn_config=given(
            clip_qkv=meta.number("attention.clamp_kqv"),
            kv_n_heads=max(meta.per_layer("attention.head_count_kv"), default=None),
            rope_theta=meta.number("rope.freq_base"),
        ),
        ffn_config=given(
            ffn_hidden_size=max(meta.per_layer("feed_forward_length"), default=None),
            moe_num_experts=meta.integer("expert_count"),
            moe_top_k=meta.integer("expert_used_count"),
        ),
        **found,
    )


def sparse_deepseek(meta: Metadata, model_type: str) -> Config:
    """DeepSeek-V3.2, GLM-5 and HY 4: a layer that has or uses no indexer of its own sees what an earlier one chose."""
    expect_gating(meta, GATING_SIGMOID)
    found = deepseek2(meta) | given(
        model_type=model_type,
        index_n_heads=meta.integer("attention.indexer.head_count"),
        index_head_dim=meta.integer("attention.indexer.key_length"),
        index_topk=meta.integer("attention.indexer.top_k"),
    )
    if model_type != "deepseek_v32":
        stated = meta.flags("attention.indexer.types")
        count = found["num_hidden_layers"]
        has_own = [meta.has_tensor(f"blk.{number}.indexer.attn_k.weight") for number in range(count)]
        uses_own = stated[:count] if isinstance(stated, list) else has_own
        found["indexer_types"] = ["full" if own else "shared" for own in uses_own]
    return found


def mellum(meta: Metadata) -> Config:
    """Mellum 2, in whose windowed layers positions aren't stretched; chosen scores are divided by their sum."""
    found = decoder(meta)
    found.pop("intermediate_size", None)  # of dense layers, of which there are none
    return (
        found
        | window_types(meta, meta.integer("attention.sliding_window"))
        | given(
            model_type="mellum",
            rope_parameters=ropes_by_type(meta),
            num_experts=meta.integer("expert_count"),
            num_experts_per_tok=meta.integer("expert_used_count"),
            moe_intermediate_size=meta.integer("expert_feed_forward_length"),
            norm_topk_prob=True,
        )
    )


def cohere2_moe(meta: Metadata) -> Config:
    """Command A+; the width that config.json states is the experts'."""
    expect_gating(meta, GATING_SIGMOID)
    return plain(
        meta,
        "cohere2_moe",
        num_hidden_layers=model_layers(meta),
        layer_norm_eps=meta.number("attention.layer_norm_epsilon"),
        logit_scale=meta.number("logit_scale") or 1.0,
        intermediate_size=meta.integer("expert_feed_forward_length"),
        num_experts=meta.integer("expert_count"),
        num_experts_per_tok=meta.integer("expert_used_count"),
        num_shared_experts=meta.integer("expert_shared_count"),
        first_k_dense_replace=meta.integer("leading_dense_block_count"),
        expert_selection_fn="sigmoid",
        norm_topk_prob=bool(meta.boolean("expert_weights_norm")),
    ) | window_types(meta, meta.integer("attention.sliding_window"))


def minimax_m3(meta: Metadata) -> Config:
    """MiniMax-M3; the tensors say which layers choose blocks of keys, and which have experts."""
    expect_gating(meta, GATING_SIGMOID)
    found = plain(meta, "minimax_m3_vl_text")
    numbers = range(meta.integer("block_count") or 0)
    chooses = [meta.has_tensor(f"blk.{number}.indexer.q_proj.weight") for number in numbers]
    sparse = [meta.has_tensor(f"blk.{number}.ffn_gate_inp.weight") for number in numbers]
    return found | given(
        intermediate_size=meta.integer("expert_feed_forward_length"),
        num_local_experts=meta.integer("expert_count"),
        num_experts_per_tok=meta.integer("expert_used_count"),
        routed_scaling_factor=meta.number("expert_weights_scale") or 1.0,
        layer_types=["minimax_m3_sparse" if flag else "full_attention" for flag in chooses],
        mlp_layer_types=["sparse" if flag else "dense" for flag in sparse],
        index_n_heads=meta.integer("attention.indexer.head_count"),
        index_head_dim=meta.integer("attention.indexer.key_length"),
        index_topk_blocks=meta.integer("attention.indexer.top_k"),
        index_block_size=meta.integer("attention.indexer.block_size"),
        index_local_blocks=meta.integer("attention.indexer.local_blocks"),
    )


def llama4(meta: Metadata) -> Config:
    """Llama 4; its chunks and what its queries grow by are fixed, and only the model of 128 experts has no norms.

    Raises:
        UnsupportedArchitecture: All layers see everything, as in MobileLLM, whose rotation the file doesn't state.
    """
    if meta.integer("attention.sliding_window") == 0:
        raise UnsupportedArchitecture(
            "the GGUF key llama4.attention.sliding_window is 0 (MobileLLM); Llama 4 with chunks is read.",
            param="attention.sliding_window",
        )
    count = meta.integer("expert_count")
    found = plain(meta, "llama4_text")
    return found | given(
        intermediate_size=meta.integer("expert_feed_forward_length"),
        intermediate_size_mlp=found.get("intermediate_size"),
        num_local_experts=count,
        num_experts_per_tok=meta.integer("expert_used_count"),
        interleave_moe_layer_step=meta.integer("interleave_moe_layer_step"),
        use_qk_norm=count != LLAMA4_WITHOUT_NORMS,
    )


def hy_v3(meta: Metadata) -> Config:
    """Hunyuan 3, whose chosen scores are divided by their sum."""
    expect_gating(meta, GATING_SIGMOID)
    expect_normalised(meta)
    return plain(
        meta,
        "hy_v3",
        num_hidden_layers=model_layers(meta),
        num_nextn_predict_layers=draft_layers(meta),
        num_experts=meta.integer("expert_count"),
        num_experts_per_tok=meta.integer("expert_used_count"),
        moe_intermediate_size=meta.integer("expert_feed_forward_length"),
        router_scaling_factor=meta.number("expert_weights_scale") or 1.0,
    )


def bailing_moe(meta: Metadata) -> Config:
    """Ling 1 (Bailing), which computes as ERNIE 4.5 does, with pairs that are neighbours in the file.

    Raises:
        UnsupportedArchitecture: The experts' sum is multiplied, or their scores aren't divided by theirs.
    """
    expect_normalised(meta)
    if meta.number("expert_weights_scale") not in (None, 0.0, 1.0):
        raise UnsupportedArchitecture(
            f"the GGUF key bailingmoe.expert_weights_scale is {meta.number('expert_weights_scale')}; 1 is read.",
            param="expert_weights_scale",
        )
    return ernie4_5_moe(meta)


def bailing_moe2(meta: Metadata) -> Config:
    """Ling 2 and Ring 2 (Bailing), and Sarvam, which compute as GLM 4.5 with norms of queries and keys."""
    expect_gating(meta, GATING_SIGMOID)
    found = _sigmoid_experts(meta, "glm4_moe", "n_routed_experts", "n_shared_experts")
    found.pop("n_shared_experts", None)  # the width of each isn't stated in the same way by all files
    return found | given(
        use_qk_norm=True,
        first_k_dense_replace=meta.integer("leading_dense_block_count"),
        num_nextn_predict_layers=draft_layers(meta),
    )
