"""Sizes and sources of latent attention, with and without an indexer."""

from __future__ import annotations

import pytest

from inference.errors import TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.latent_attention import indexer_spec, mla_sources, mla_spec, query_name
from tests.inference.modelling.families.headers import view_of
from tests.inference.modelling.families.latent import layers

BASE = "model.layers.0.self_attn."
CONFIG = {"num_attention_heads": 2}


def test_sizes_come_from_shapes_with_a_gate_or_without() -> None:
    plain = mla_spec(view_of(layers(1), CONFIG), BASE, 64, interleaved=True)
    gated = mla_spec(view_of(layers(1, gates=True), CONFIG), BASE, 64, interleaved=True, joins_latents=True)
    for spec in (plain, gated):
        assert (spec.kv_lora_rank, spec.q_lora_rank, spec.qk_nope_head_dim, spec.v_head_dim) == (5, 6, 4, 3)
    assert plain.parameter_shapes(16)["q_b_proj.weight"] == (12, 6)
    shapes = gated.parameter_shapes(16)
    assert (shapes["q_b_proj.weight"], shapes["gate_proj.weight"]) == ((12, 12), (6, 12))
    assert mla_sources(plain, BASE).keys() == plain.parameter_shapes(16).keys()
    assert mla_sources(gated, BASE).keys() == shapes.keys()


def test_the_name_of_the_query_matrix() -> None:
    renamed = {name.replace("q_b_proj", "q_gate_proj"): shape for name, shape in layers(1).items()}
    assert query_name(view_of(layers(1)), "model.layers.0.") == "q_b_proj"
    assert query_name(view_of(renamed), "model.layers.0.") == "q_gate_proj"


def test_an_indexer_has_the_sizes_of_its_tensors() -> None:
    view = view_of(layers(1, indexed=(0,)), CONFIG | {"index_topk": 7})
    found = indexer_spec(view, BASE, mla_spec(view, BASE, 64, interleaved=True))
    assert (found.num_heads, found.head_dim, found.top_k, found.rope.interleaved) == (3, 8, 7, False)
    with pytest.raises(TensorShapeMismatch) as caught:
        wrong = view_of(layers(1, indexed=(0,)), CONFIG | {"index_n_heads": 4})
        indexer_spec(wrong, BASE, mla_spec(wrong, BASE, 64, interleaved=True))
    assert caught.value.param == "index_n_heads"


def test_an_indexer_needs_a_latent_of_the_queries() -> None:
    shapes = {name: shape for name, shape in layers(1, indexed=(0,)).items() if ".q_a_" not in name}
    shapes[f"{BASE}q_proj.weight"] = (12, 16)
    view = view_of(shapes, CONFIG)
    with pytest.raises(UnsupportedArchitecture) as caught:
        indexer_spec(view, BASE, mla_spec(view, BASE, 64, interleaved=True))
    assert caught.value.param == "q_lora_rank"
