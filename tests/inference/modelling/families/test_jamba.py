"""Jamba: the kind of each layer by its tensors, warnings where the periods differ."""

from __future__ import annotations

import pytest

from inference.errors import TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.jamba import build_spec
from inference.modelling.specs.layers import AttentionSpec, Mamba1Spec, MLPSpec, MoESpec
from tests.inference.modelling.families.headers import HIDDEN, attention, experts, mamba1, mlp, norms, outer, view_of

CONFIG = {"num_attention_heads": 4, "attn_layer_period": 2, "attn_layer_offset": 1}


def shapes() -> dict:
    found = outer("final_layernorm")
    for number in range(2):
        found |= norms(f"model.layers.{number}.", "input_layernorm", "pre_ff_layernorm")
    found |= mamba1("model.layers.0.mamba.") | mlp("model.layers.0.feed_forward.")
    found |= attention("model.layers.1.self_attn.") | experts("model.layers.1.feed_forward.experts.")
    return found | {"model.layers.1.feed_forward.router.weight": (4, HIDDEN)}


def test_kinds_come_from_the_tensors() -> None:
    view = view_of(shapes(), CONFIG)
    first, second = build_spec(view).layers
    assert isinstance(first.token_mixer, Mamba1Spec) and isinstance(first.channel_mixer, MLPSpec)
    assert isinstance(second.token_mixer, AttentionSpec) and isinstance(second.channel_mixer, MoESpec)
    assert first.token_mixer.inner_norm is not None
    assert second.token_mixer.rope is None
    assert not second.channel_mixer.normalise_top_k
    assert not view.facts.warnings


def test_other_periods_and_an_unknown_layer_are_refused() -> None:
    with pytest.raises(TensorShapeMismatch, match=r"calls layer 0 attention .*tensors are mamba's"):
        build_spec(view_of(shapes(), CONFIG | {"attn_layer_offset": 0}))
    experts_in_both = {"num_experts": 4, "expert_layer_period": 1, "expert_layer_offset": 0}
    with pytest.raises(TensorShapeMismatch, match=r"layer 0 the channel mixer moe .*are of mlp"):
        build_spec(view_of(shapes(), CONFIG | experts_in_both))
    found = {name: shape for name, shape in shapes().items() if ".0.mamba." not in name}
    with pytest.raises(UnsupportedArchitecture, match=r"model\.layers\.0"):
        build_spec(view_of(found, CONFIG))
