"""DeepSeek-OCR 2, its text model: Llama's attention beside the experts of DeepSeek V2.

Source: transformers' ``deepseek_ocr2``, also for what config.json may leave out.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder, ChannelMixer
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COUNTED_EXPERTS, WITH_ROPE, Table, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import activation, rms_norm
from inference.modelling.families.deepseek import softmax_experts
from inference.modelling.families.head_sizes import with_default_heads
from inference.modelling.families.moe_config import check_layer_kinds, moe_sources
from inference.modelling.families.text_part import around, text_part
from inference.modelling.spec import ModelSpec

TEXT: Table = {
    **WITH_ROPE,
    **COUNTED_EXPERTS,
    **used(
        "n_shared_experts", "moe_intermediate_size", "mlp_layer_types", "n_group", "topk_group", "topk_method",
        "routed_scaling_factor",
    ),
    "mlp_bias": Only((False,), "MLPs and experts have no biases"),
}  # fmt: skip
CONFIG_KEYS: Mapping[str, Table] = {"deepseek_ocr2": around(TEXT)}

HEADS, CONTEXT = 32, 2048


def build_spec(view: CheckpointView) -> ModelSpec:
    view = with_default_heads(text_part(view), HEADS)
    decoder = AttentionDecoder.read(view, default_max_position_embeddings=CONTEXT)
    check_layer_kinds(view, decoder.layout)
    act = activation(view)

    def experts(layer: str) -> ChannelMixer:
        base = f"{layer}mlp."
        moe = softmax_experts(view, base, act)
        return moe, moe_sources(view, moe, base, shared="shared_experts.")

    return decoder.spec(
        "deepseek_ocr2_text", norm=rms_norm(view, default=1e-6), ropes=decoder.rope(), act=act, experts=experts
    )
