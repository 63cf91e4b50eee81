"""Aria, its text model: Llama's attention, experts in each layer, stored in × out, beside shared ones.

Source: transformers' ``aria_text``, also for what config.json may leave out.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder, ChannelMixer
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import WITH_ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import integer_with_evidence, rms_norm
from inference.modelling.families.grouped_moe import shared_experts_width
from inference.modelling.families.headers import stack_shape
from inference.modelling.families.moe_config import check_experts, check_routing, moe_sources
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.layers import MoESpec
from inference.modelling.specs.sources import Piece, Source

CONFIG_KEYS: Mapping[str, Table] = {
    "aria_text": {
        **WITH_ROPE,
        **used("moe_num_experts", "moe_topk", "moe_num_shared_experts"),
        **harmless("training only", "moe_z_loss_coeff", "moe_aux_loss_coeff"),
        "hidden_act": Only(("silu",), "the routed experts have it, whatever is said of the shared ones"),
        "mlp_bias": Only((False,), "experts have no biases"),
    }
}

CONTEXT = 2048
STACKS = {"experts.gate_up_proj": "experts.fc1.weight", "experts.down_proj": "experts.fc2.weight"}
"""Names of the experts' matrices in transformers' memory and ours, to those of the published files."""


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(view, default_max_position_embeddings=CONTEXT)
    return decoder.spec(
        "aria_text",
        norm=rms_norm(view, default=1e-6),
        ropes=decoder.rope(),
        experts=lambda layer: _experts(view, f"{layer}mlp."),
        router="",
    )


def _experts(view: CheckpointView, base: str) -> ChannelMixer:
    """The experts under ``base``, and their sources."""
    is_published = f"{base}experts.fc2.weight" in view.tensors
    names = {ours: base + (published if is_published else ours) for ours, published in STACKS.items()}
    count, width, _ = stack_shape(view.tensors, names["experts.down_proj"])
    check_experts(view, f"{base}experts.", count, width, ("moe_num_experts",), "intermediate_size")
    spec = check_routing(
        MoESpec(
            num_experts=count,
            top_k=integer_with_evidence(view, "moe.top_k", ("moe_topk",), 2),
            intermediate_size=width,
            shared_intermediate_size=shared_experts_width(view, base, width, "moe_num_shared_experts"),
        )
    )
    sources = moe_sources(view, spec, base, router="router", shared="shared_experts.")
    return spec, sources | {ours: Source((Piece(name, transpose=True),)) for ours, name in names.items()}
