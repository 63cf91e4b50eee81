"""Mamba and Falcon-Mamba: only the type tells whether Δ, B and C are normed."""

from __future__ import annotations

import pytest

from inference.modelling.families.mamba import build_spec
from inference.modelling.specs.layers import Mamba1Spec
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.families.headers import HIDDEN, mamba1, outer, view_of


@pytest.mark.parametrize(
    ("model_type", "inner"), [("mamba", None), ("falcon_mamba", NormSpec("rms", 1e-6, weightless=True))]
)
def test_the_inner_norm_follows_the_type(model_type: str, inner: NormSpec | None) -> None:
    shapes = outer("norm_f", "backbone.", "embeddings")
    shapes |= {"backbone.layers.0.norm.weight": (HIDDEN,)}
    shapes |= {name: shape for name, shape in mamba1("backbone.layers.0.mixer.").items() if "layernorm" not in name}
    spec = build_spec(view_of(shapes, {"model_type": model_type}))
    mixer = spec.layers[0].token_mixer
    assert isinstance(mixer, Mamba1Spec)
    assert mixer.inner_norm == inner
    assert spec.tie_word_embeddings
