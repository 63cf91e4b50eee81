"""Experts of DeepSeek-V3's kind: what config.json may not contradict."""

from __future__ import annotations

import pytest

from inference.errors import CorruptCheckpoint, TensorShapeMismatch
from inference.modelling.families.grouped_moe import grouped_moe
from tests.inference.modelling.families.headers import HIDDEN, WIDTH, experts, mlp, view_of

SHAPES = experts("l.mlp.experts.") | mlp("l.mlp.shared_experts.", 2 * WIDTH) | {"l.mlp.gate.weight": (4, HIDDEN)}


@pytest.mark.parametrize("bias", ["gate.e_score_correction_bias", "e_score_correction_bias", None])
def test_the_bias_for_choosing_is_found_in_either_place(bias: str | None) -> None:
    shapes = SHAPES | ({f"l.mlp.{bias}": (4,)} if bias else {})
    spec = grouped_moe(view_of(shapes, {"num_experts_per_tok": 2}), "l.", "silu", factor=1.5)
    assert spec.correction_bias == (bias is not None)
    assert (spec.scoring, spec.routed_scaling_factor, spec.shared_intermediate_size) == ("sigmoid", 1.5, 2 * WIDTH)


@pytest.mark.parametrize(
    ("config", "error", "match"),
    [
        ({"n_shared_experts": 1}, TensorShapeMismatch, "n_shared_experts 1, each 8 wide, but .* 48 wide"),
        ({"n_routed_experts": 8}, TensorShapeMismatch, "n_routed_experts"),
        ({"num_experts_per_tok": 5}, CorruptCheckpoint, "5, but there are 4 experts"),
        ({"n_group": 3}, CorruptCheckpoint, "4 experts in 3 groups"),
    ],
)
def test_what_contradicts_the_tensors_is_refused(config: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        grouped_moe(view_of(SHAPES, {"num_experts_per_tok": 2} | config), "l.", "silu")
