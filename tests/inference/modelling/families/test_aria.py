"""Aria: the experts in both spellings, and what config.json may not contradict."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError
from inference.modelling.families.registry import family_builder
from inference.modelling.spec import ModelSpec
from tests.inference.modelling.families.headers import HIDDEN, Shapes, attention, mlp, norms, outer, view_of

CONFIG: dict[str, Any] = {"model_type": "aria_text", "num_attention_heads": 4, "moe_topk": 2}


def shapes(first: str = "fc1.weight", second: str = "fc2.weight") -> Shapes:
    """A layer with four experts, 8 wide."""
    layer = "model.layers.0."
    found = outer() | norms(layer) | attention(f"{layer}self_attn.") | mlp(f"{layer}mlp.shared_experts.", 16)
    found |= {f"{layer}mlp.experts.{first}": (4, HIDDEN, 16), f"{layer}mlp.experts.{second}": (4, 8, HIDDEN)}
    return found | {f"{layer}mlp.router.weight": (4, HIDDEN)}


def build(tensors: Shapes, **changes: Any) -> ModelSpec:
    return family_builder("aria_text")(view_of(tensors, CONFIG | changes))


def test_both_spellings_are_the_same_model() -> None:
    spec = build(shapes(), moe_num_experts=4, intermediate_size=8, moe_num_shared_experts=2)
    assert spec.layers == build(shapes("gate_up_proj", "down_proj")).layers
    moe = spec.layers[0].channel_mixer
    assert (moe.num_experts, moe.top_k, moe.intermediate_size, moe.shared_intermediate_size) == (4, 2, 8, 16)
    assert (moe.scoring, moe.normalise_top_k, moe.activation) == ("softmax", True, "silu")
    (piece,) = spec.parameters["layers.0.channel_mixer.experts.down_proj"].pieces
    assert piece.name.endswith("experts.fc2.weight") and piece.transpose


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"moe_num_experts": 8}, "moe_num_experts"),
        ({"intermediate_size": 16}, "intermediate_size"),
        ({"moe_num_shared_experts": 1}, "moe_num_shared_experts"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"moe_intermediate_size": 8}, "moe_intermediate_size"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        build(shapes(), **change)
