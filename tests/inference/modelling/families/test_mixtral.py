"""Mixtral: experts one by one under their own names, or stacked."""

from __future__ import annotations

import pytest

from inference.errors import TensorShapeMismatch
from inference.modelling.families.mixtral import build_spec
from tests.inference.modelling.families.headers import HIDDEN, attention, experts, norms, outer, view_of

LAYER = "model.layers.0."
CONFIG = {"num_attention_heads": 4, "num_local_experts": 4}
BASE = outer() | norms(LAYER) | attention(f"{LAYER}self_attn.")


def test_experts_one_by_one() -> None:
    shapes = BASE | experts(f"{LAYER}block_sparse_moe.experts.", names=("w1", "w3", "w2"))
    view = view_of(shapes | {f"{LAYER}block_sparse_moe.gate.weight": (4, HIDDEN)}, CONFIG)
    spec = build_spec(view)
    moe = spec.layers[0].channel_mixer
    assert (moe.num_experts, moe.top_k, moe.intermediate_size) == (4, 2, 8)
    assert spec.layers[0].token_mixer.rope.theta == 1000000.0
    assert not view.facts.warnings


def test_experts_stacked_inputs_first_are_transposed() -> None:
    base = f"{LAYER}mlp."
    shapes = BASE | {f"{base}gate.weight": (4, HIDDEN), f"{base}experts.down_proj.weight": (4, 8, HIDDEN)}
    shapes |= {f"{base}experts.{name}.weight": (4, HIDDEN, 8) for name in ("gate_proj", "up_proj")}
    spec = build_spec(view_of(shapes, CONFIG | {"num_experts_per_tok": 3}))
    moe = spec.layers[0].channel_mixer
    assert (moe.num_experts, moe.top_k, moe.intermediate_size) == (4, 3, 8)
    assert all(piece.transpose for piece in spec.parameters["layers.0.channel_mixer.experts.gate_up_proj"].pieces)
    with pytest.raises(TensorShapeMismatch, match="three axes"):
        build_spec(view_of(shapes | {f"{base}experts.down_proj.weight": (8, HIDDEN)}, CONFIG))
