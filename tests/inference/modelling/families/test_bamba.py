"""Bamba: kinds of layers by their tensors, half of a head rotated."""

from __future__ import annotations

import pytest

from inference.errors import TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.bamba import build_spec
from inference.modelling.specs.layers import AttentionSpec, Mamba2Spec
from tests.inference.modelling.families.headers import attention, mamba2, mlp, norms, outer, view_of

CONFIG = {"num_attention_heads": 4, "attn_layer_indices": [1], "attn_rotary_emb": 2}


def shapes() -> dict:
    found = outer("final_layernorm")
    for number in range(2):
        found |= norms(f"model.layers.{number}.", "input_layernorm", "pre_ff_layernorm")
        found |= mlp(f"model.layers.{number}.feed_forward.")
    return found | mamba2("model.layers.0.mamba.") | attention("model.layers.1.self_attn.")


def test_kinds_come_from_the_tensors_and_half_a_head_is_rotated() -> None:
    view = view_of(shapes(), CONFIG)
    first, second = (layer.token_mixer for layer in build_spec(view).layers)
    assert isinstance(first, Mamba2Spec) and isinstance(second, AttentionSpec)
    assert second.rope is not None and second.rope.rotary_dim == 2
    assert not view.facts.warnings


@pytest.mark.parametrize("change", [{"attn_layer_indices": [0]}, {"attn_rotary_emb": 4}])
def test_contradictions_are_refused_by_key(change: dict) -> None:
    with pytest.raises(TensorShapeMismatch, match=next(iter(change))):
        build_spec(view_of(shapes(), CONFIG | change))


def test_a_layer_of_no_kind_is_refused() -> None:
    found = {name: shape for name, shape in shapes().items() if ".0.mamba." not in name}
    with pytest.raises(UnsupportedArchitecture, match=r"model\.layers\.0"):
        build_spec(view_of(found, CONFIG))
