"""MiniMax-M2: queries and keys normed over their whole width, sigmoid scores without shared experts.

Source: https://huggingface.co/MiniMaxAI/MiniMax-M2, and transformers' ``minimax_m2``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder, ChannelMixer
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import EXPERTS, WITH_ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import activation, integer_with_evidence, rms_norm
from inference.modelling.families.mixtral import EXPERT_NAMES
from inference.modelling.families.moe_config import check_experts, check_routing, count_experts, moe_sources
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.layers import MoESpec

CONFIG_KEYS: Mapping[str, Table] = {
    "minimax_m2": {
        **{key: rule for key, rule in WITH_ROPE.items() if key != "attention_bias"},
        **EXPERTS,
        **used("rotary_dim"),
        **harmless(
            "layers for drafting, which aren't in the files", "use_mtp", "num_mtp_modules", "mtp_transformer_layers"
        ),
        **{
            f"layernorm_{place}_beta": Only((1.0,), "the residual stream isn't scaled")
            for place in ("full_attention", "linear_attention", "mlp")
        },
        "use_qk_norm": Only((True,), "queries and keys are normed"),
        "qk_norm_type": Only(("per_layer",), "the norm runs over the whole width"),
        "use_routing_bias": Only((True,), "experts are chosen with a bias"),
        "scoring_func": Only(("sigmoid",), "scores are sigmoids"),
        "shared_intermediate_size": Only((0,), "there is no shared expert"),
        "attn_type_list": Only((1,), "all layers attend"),
    }
}  # fmt: skip


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(view)
    act = activation(view)

    def experts(layer: str) -> ChannelMixer:
        base = f"{layer}block_sparse_moe."
        count, width = count_experts(view, base + "experts.", down=EXPERT_NAMES.down)
        check_experts(view, base + "experts.", count, width, ("num_local_experts", "num_experts"), "intermediate_size")
        top_k = integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), 8)
        spec = check_routing(MoESpec(count, top_k, width, act, scoring="sigmoid", correction_bias=True))
        return spec, moe_sources(view, spec, base, names=EXPERT_NAMES, correction_bias="e_score_correction_bias")

    width = view.config.integer("rotary_dim", default=decoder.heads.head_dim)
    return decoder.spec(
        "minimax_m2",
        norm=rms_norm(view),
        ropes=decoder.rope(default_theta=5_000_000.0, default_partial=width / decoder.heads.head_dim),
        qk_norm="row",
        act=act,
        experts=experts,
        router="block_sparse_moe.gate.weight",
    )
