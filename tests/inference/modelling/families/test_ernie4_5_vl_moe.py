"""ERNIE 4.5 that sees: the experts of text in both spellings, and what config.json may not contradict."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from inference.errors import CheckpointError
from inference.modelling.families.ernie4_5_vl_moe import _of_pictures
from inference.modelling.families.registry import config_keys, family_builder
from inference.modelling.spec import ModelSpec
from tests.inference.modelling.families.headers import HIDDEN, Shapes, attention, experts, llama, mlp, norms, view_of

TEXT: dict[str, Any] = {
    "model_type": "ernie4_5_vl_moe_text", "num_attention_heads": 4, "moe_k": 2, "tie_word_embeddings": False,
}  # fmt: skip
LAYER = "model.layers.1."


def shapes(*, is_apart: bool = False) -> Shapes:
    """A dense layer, then one with two experts of text, 8 wide, and two of pictures."""
    found = llama(1) | norms(LAYER) | attention(f"{LAYER}self_attn.") | mlp(f"{LAYER}mlp.shared_experts.", 16)
    if not is_apart:
        found |= experts(f"{LAYER}mlp.experts.") | {f"{LAYER}mlp.moe_statics.e_score_correction_bias": (2, 2)}
        return found | {f"{LAYER}mlp.gate.weight{end}": (HIDDEN, 2) for end in ("", "_1")}
    for part in ("text", "vision"):
        base = f"{LAYER}mlp.{part}_moe."
        found |= {f"{base}gate.weight": (2, HIDDEN), f"{base}gate.moe_statics.e_score_correction_bias": (1, 2)}
        found |= {f"{base}experts.gate_up_proj": (2, 16, HIDDEN), f"{base}experts.down_proj": (2, HIDDEN, 8)}
    return found


def build(tensors: Shapes, **changes: Any) -> ModelSpec:
    config = {"model_type": "ernie4_5_vl_moe", "text_config": TEXT | changes}
    return family_builder("ernie4_5_vl_moe")(view_of(tensors, config))


def test_both_spellings_are_the_same_model() -> None:
    spec = build(shapes(), moe_intermediate_size=[8, 4], moe_num_experts=2, moe_num_shared_experts=2)
    assert spec.layers == build(shapes(is_apart=True)).layers
    moe = spec.layers[1].channel_mixer
    assert (moe.num_experts, moe.top_k, moe.intermediate_size, moe.shared_intermediate_size) == (2, 2, 8, 16)
    assert moe.correction_bias and moe.normalise_top_k
    assert spec.parameters["layers.1.channel_mixer.experts.down_proj"].num_experts == 2


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"moe_num_experts": 4}, "moe_num_experts"),
        ({"moe_intermediate_size": [4, 8]}, "moe_intermediate_size"),
        ({"moe_num_shared_experts": 1}, "moe_num_shared_experts"),
        ({"mlp_layer_types": ["sparse", "sparse"]}, "mlp_layer_types"),
        ({"moe_k": 3}, "num_experts_per_tok is 3"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_type"),
        ({"moe_layer_start_index": 1}, "moe_layer_start_index"),
        ({"sliding_window": 6}, "sliding_window"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        build(shapes(), **change)


def test_a_bias_has_a_row_for_text_and_one_for_pictures() -> None:
    others = {name: (1, 2) if name.endswith("e_score_correction_bias") else shape for name, shape in shapes().items()}
    with pytest.raises(CheckpointError, match="has 1 rows; it must have one for text and one for pictures"):
        build(others)


@pytest.mark.parametrize("count", [2, 18, 20, 38, 198, 220, 2048])
def test_the_second_half_of_the_experts_is_left_out(count: int) -> None:
    pattern = _of_pictures(view_of({f"{LAYER}mlp.experts.{number}.up_proj.weight": (1,) for number in range(count)}))
    found = [bool(pattern.names.search(f"{LAYER}mlp.experts.{number}.up_proj.weight")) for number in range(count)]
    assert found == [number >= count // 2 for number in range(count)]


def test_names_of_many_experts_are_searched_by_a_short_pattern() -> None:
    """An alternation of all numbers made a header of 40,000 experts take seconds."""
    view = view_of({f"{LAYER}mlp.experts.{number}.up_proj.weight": (1,) for number in range(4000)})
    assert len(_of_pictures(view).names.pattern) < 200


def test_every_key_of_transformers_is_in_the_table() -> None:
    keys, text = config_keys("ernie4_5_vl_moe"), config_keys("ernie4_5_vl_moe")["text_config"].rules
    config = AutoConfig.for_model("ernie4_5_vl_moe").to_dict()
    assert not [key for key in config if key not in keys and key[0] != "_"]
    assert not [key for key in config["text_config"] if key not in text and key[0] != "_"]
