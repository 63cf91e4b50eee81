"""Granite: the bases of its layers' rotations, and the norms of HyperCLOVA X."""

from __future__ import annotations

import pytest

from inference.errors import CorruptCheckpoint
from inference.modelling.families.granite import build_spec
from inference.modelling.specs.layers import AttentionSpec
from tests.inference.modelling.families.headers import llama, norms, view_of

CONFIG = {"num_attention_heads": 4, "model_type": "granite_swa"}


def shapes() -> dict:
    return llama(2) | {f"model.layers.{number}.self_attn.sinks": (4,) for number in range(2)}


def test_a_base_of_0_means_no_rotation() -> None:
    spec = build_spec(view_of(shapes(), CONFIG | {"layer_rope_theta": [0, 500.0], "sliding_window": 7}))
    first, second = (layer.token_mixer for layer in spec.layers)
    assert isinstance(first, AttentionSpec) and isinstance(second, AttentionSpec) and second.rope is not None
    assert (first.rope, first.sliding_window) == (None, None)
    assert (second.rope.theta, second.sliding_window, second.has_sinks) == (500.0, 7, True)


@pytest.mark.parametrize("bases", [[1e4], [1e4, -1.0]])
def test_bases_that_do_not_fit_the_layers_are_refused(bases: list[float]) -> None:
    with pytest.raises(CorruptCheckpoint, match=f"layer_rope_theta has {len(bases)} numbers.*each of 2 layers"):
        build_spec(view_of(shapes(), CONFIG | {"layer_rope_theta": bases}))


@pytest.mark.parametrize("has_post_norms", [True, False])
def test_hyperclova_has_norms_behind_its_mixers_unless_it_says_otherwise(*, has_post_norms: bool) -> None:
    found = llama(2)
    if has_post_norms:
        found |= norms("model.layers.0.", "post_norm1", "post_norm2") | norms(
            "model.layers.1.", "post_norm1", "post_norm2"
        )
    config = CONFIG | {"model_type": "hyperclovax", "logits_scaling": 0.5}
    spec = build_spec(view_of(found, config if has_post_norms else config | {"use_post_norm": False}))
    assert (spec.layers[0].token_post_norm is not None) == has_post_norms
    assert spec.logits_multiplier == 0.5
