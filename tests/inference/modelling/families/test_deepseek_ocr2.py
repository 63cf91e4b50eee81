"""DeepSeek-OCR 2: routing, and what config.json may not contradict."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from inference.errors import CheckpointError
from inference.modelling.families.registry import config_keys, family_builder
from inference.modelling.spec import ModelSpec
from tests.inference.modelling.families.headers import HIDDEN, Shapes, attention, experts, llama, mlp, norms, view_of

LAYER = "model.layers.1."
TEXT: dict[str, Any] = {
    "model_type": "deepseek_ocr2_text", "num_attention_heads": 4, "num_experts_per_tok": 2,
    "mlp_layer_types": ["dense", "sparse"],
}  # fmt: skip


def shapes() -> Shapes:
    """A dense layer, then one with four experts, 8 wide; parts of what sees."""
    found = llama(1) | norms(LAYER) | attention(f"{LAYER}self_attn.") | mlp(f"{LAYER}mlp.shared_experts.", 16)
    found |= experts(f"{LAYER}mlp.experts.") | {f"{LAYER}mlp.gate.weight": (4, HIDDEN)}
    others = ("sam_model.pos_embed", "qwen2_model.query_768.weight", "projector.layers.weight", "view_seperator")
    return found | {f"model.{name}": (4, 4) for name in others}


def build(**changes: Any) -> ModelSpec:
    config = {"model_type": "deepseek_ocr2", "text_config": TEXT | changes}
    return family_builder("deepseek_ocr2")(view_of(shapes(), config))


def test_the_best_scores_are_taken_as_they_are() -> None:
    plain, moe = (layer.channel_mixer for layer in build(moe_intermediate_size=8).layers)
    assert plain.kind == "mlp"
    assert (moe.scoring, moe.normalise_top_k, moe.num_expert_groups, moe.shared_intermediate_size) == (
        "softmax", False, 1, 16,
    )  # fmt: skip
    grouped = build(topk_method="group_limited_greedy", n_group=2, topk_group=1).layers[1].channel_mixer
    assert (grouped.num_expert_groups, grouped.top_k_groups, grouped.group_score) == (2, 1, "max")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"n_routed_experts": 8}, "n_routed_experts"),
        ({"n_shared_experts": 1}, "n_shared_experts"),
        ({"mlp_layer_types": ["sparse", "sparse"]}, "mlp_layer_types"),
        ({"topk_method": "noaux_tc"}, "topk_method"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"norm_topk_prob": True}, "norm_topk_prob"),
        ({"use_mla": True}, "use_mla"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        build(**change)


def test_every_key_of_transformers_is_in_the_table() -> None:
    keys, text = config_keys("deepseek_ocr2"), config_keys("deepseek_ocr2")["text_config"].rules
    config = AutoConfig.for_model("deepseek_ocr2").to_dict()
    assert not [key for key in config if key not in keys and key[0] != "_"]
    assert not [key for key in config["text_config"] if key not in text and key[0] != "_"]
