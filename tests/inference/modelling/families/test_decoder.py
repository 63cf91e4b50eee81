"""A ModelSpec from a layout and layers."""

from __future__ import annotations

import pytest

from inference.errors import TensorShapeMismatch
from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.decoder import decoder_spec, llama_layer, llama_layer_sources
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.head_sizes import HeadSizes
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.families.headers import llama, view_of

NORM = NormSpec("rms", 1e-5)


def build(shapes: dict, **options):
    view = view_of(shapes)
    layout = read_layout(view)
    layer = layout.layer(0)
    attention, mlp = attention_spec(view, layer, HeadSizes(4, 2, 4), None), mlp_spec(view, layer, "silu")
    layers = [llama_layer(attention, mlp, NORM)]
    sources = llama_layer_sources(0, layer, attention_sources(view, attention, layer), mlp_sources(view, mlp, layer))
    return view, decoder_spec(view, layout, "llama", layers, sources, NORM, **options)


def test_every_parameter_has_a_source_and_every_tensor_is_read() -> None:
    view, spec = build(llama(1), embedding_multiplier=2.0, logits_softcap=30.0)
    assert spec.parameters.keys() == spec.parameter_shapes().keys()
    read = {name for source in spec.parameters.values() for name in source.tensor_names()}
    assert read == set(view.tensors)
    assert (spec.embedding_multiplier, spec.logits_multiplier, spec.logits_softcap) == (2.0, 1.0, 30.0)
    assert view.facts.warnings == []


def test_a_tied_head_has_no_source() -> None:
    shapes = llama(1)
    del shapes["lm_head.weight"]
    _, spec = build(shapes)
    assert spec.tie_word_embeddings
    assert "lm_head.weight" not in spec.parameters


def test_a_wrong_shape_is_refused() -> None:
    with pytest.raises(TensorShapeMismatch, match=r"model\.norm\.weight has shape \[5\]"):
        build(llama(1) | {"model.norm.weight": (5,)})
