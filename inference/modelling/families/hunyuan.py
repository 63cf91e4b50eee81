"""Hunyuan, dense and with experts: queries and keys are normed behind the rotation, whose base ``alpha`` stretches.

Source: https://arxiv.org/abs/2411.02265, and transformers' ``hunyuan_v1_dense`` and
``hunyuan_v1_moe``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inference.errors import CorruptCheckpoint
from inference.modelling.families.attention_decoder import AttentionDecoder, ChannelMixer, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import MLP_BIAS, ROPE_MEMBERS, WITH_ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Harmless, Members, Only
from inference.modelling.families.config_values import activation, integer_with_evidence, rms_norm
from inference.modelling.families.moe_config import (
    check_experts,
    check_routing,
    count_experts,
    moe_sources,
    shared_width,
)
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.layers import MoESpec
from inference.modelling.specs.parts import RopeSpec

NAMES = LayerNames(qk_norms=("query_layernorm", "key_layernorm"))
ROPE_WITH_ALPHA = Members(
    {**ROPE_MEMBERS, **used("alpha"), **harmless("equal positions for text are one", "mrope_section", "xdrope_section")}
)
KEYS: Table = {
    **WITH_ROPE,
    **harmless(
        "other token ids, which the text side takes from the tokeniser's files",
        "eod_token_id", "im_start_id", "im_end_id", "text_start_id", "text_end_id", "org_vocab_size", "pad_id",
    ),
    **harmless("for other tasks", "add_classification_head", "class_num", "pool_type"),
    **harmless("layers that share keys and values, which use_cla would switch on", "cla_share_factor"),
    "attention_head_dim": Harmless("an early name beside head_dim"),
    "mlp_bias": MLP_BIAS,
    "norm_type": Only(("rms", "hf_rms"), "the norms are RMS norms"),
    "use_cla": Only((False,), "no layer uses the keys and values of another"),
    "use_qk_norm": Only((True,), "queries and keys are normed"),
    "rope_parameters": ROPE_WITH_ALPHA,
    "rope_scaling": ROPE_WITH_ALPHA,
}  # fmt: skip
CONFIG_KEYS: Mapping[str, Table] = {
    "hunyuan_v1_dense": KEYS,
    "hunyuan_v1_moe": {
        **KEYS,
        **used("num_experts", "moe_topk"),
        **harmless("training only", "moe_drop_tokens", "moe_random_routing_dropped_token"),
        **harmless("the shapes say it", "moe_intermediate_size", "num_shared_expert", "use_mixed_mlp_moe"),
        "moe_layer_num_skipped": Only((0,), "transformers gives all layers experts"),
        "norm_topk_prob": Only((True,), "the weights of the chosen experts add up to 1"),
        "routed_scaling_factor": Only((1.0,), "experts aren't scaled"),
        "group_limited_greedy": Only((False,), "experts aren't grouped"),
        "use_mla": Only((False,), "attention has whole keys and values"),
    },
}


def build_spec(view: CheckpointView) -> ModelSpec:
    model_type = view.config.string("model_type", default="hunyuan_v1_dense")
    decoder = AttentionDecoder.read(view, NAMES, default_max_position_embeddings=2048)
    act = activation(view)
    chosen = _chosen_experts(view, decoder.layout.num_layers) if model_type == "hunyuan_v1_moe" else ()

    def experts(layer: str) -> ChannelMixer:
        base = f"{layer}mlp."
        count, width = count_experts(view, base + "experts.")
        check_experts(view, base + "experts.", count, width, ("num_experts",), "intermediate_size")
        shared = shared_width(view, base + "shared_mlp.")
        top_k = chosen[int(layer.rstrip(".").rpartition(".")[2])]
        spec = check_routing(MoESpec(count, top_k, width, act, shared_intermediate_size=shared))
        return spec, moe_sources(view, spec, base, router="gate.wg", shared="shared_mlp.")

    return decoder.spec(
        model_type,
        norm=rms_norm(view, default=1e-5),
        ropes=_rope(decoder),
        qk_norm="head",
        attention_options={"qk_norm_after_rope": True},
        act=act,
        experts=experts if chosen else None,
        router="mlp.gate.wg.weight",
    )


def _rope(decoder: AttentionDecoder) -> RopeSpec:
    """A rotation that is called dynamic but has an ``alpha`` has a base that doesn't depend on the length."""
    rope, config = decoder.rope(renamed_types={"xdrope": "dynamic"}), decoder.view.config
    keys = ("rope_scaling.alpha", "rope_parameters.alpha")
    if rope.scaling is None or rope.scaling.kind != "dynamic" or config.get(*keys) is None:
        return rope
    alpha, width = config.number(*keys, low=1e-6, high=1e9), rope.rotary_dim
    return replace(rope, theta=rope.theta * alpha ** (width / (width - 2)), scaling=None)


def _chosen_experts(view: CheckpointView, count: int) -> tuple[int, ...]:
    """How many experts a token goes to in each layer.

    Raises:
        CorruptCheckpoint: A list without an entry, from 1 on, for each layer.
    """
    if not isinstance(view.config.get("moe_topk"), list):
        return (integer_with_evidence(view, "moe.top_k", ("moe_topk",), 1),) * count
    chosen = view.config.integers("moe_topk")
    if len(chosen) != count or min(chosen, default=0) < 1:
        raise CorruptCheckpoint(
            f"config.json: moe_topk has {len(chosen)} entries, the least {min(chosen, default=0)}; one from 1 on is "
            f"needed for each of {count} layers.",
            param="moe_topk",
        )
    return chosen
