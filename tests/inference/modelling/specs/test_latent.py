"""Parameters and states of latent attention."""

from __future__ import annotations

from dataclasses import replace

from inference.modelling.specs.indexer import IndexerSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.parts import NormSpec, RopeSpec

ROPE = RopeSpec(100.0, 4)
SPEC = MLASpec(2, 10, 6, 8, 4, 5, 0.3, ROPE)
INDEXER = IndexerSpec(3, 7, 2, ROPE, NormSpec("layer"))


def test_options_add_parameters() -> None:
    plain = SPEC.parameter_shapes(16)
    assert plain["q_b_proj.weight"] == (24, 6) and plain["kv_a_proj.weight"] == (14, 16)
    assert {"gate_proj.weight", "sinks"}.isdisjoint(plain)
    gated = replace(SPEC, output_gate=True, has_sinks=True).parameter_shapes(16)
    assert (gated["gate_proj.weight"], gated["sinks"]) == ((10, 16), (2,))
    joined = replace(SPEC, output_gate=True, joins_latents=True).parameter_shapes(16)
    assert (joined["gate_proj.weight"], joined["q_b_proj.weight"]) == ((10, 12), (24, 12))


def test_learned_scales_and_frequencies_are_parameters_of_heads_and_pairs() -> None:
    chooser = replace(INDEXER, hidden_norm=NormSpec("layer"), has_softmax_scale=True)
    spec = replace(SPEC, q_lora_rank=None, has_softmax_scale=True, learned_frequencies=True, indexer=chooser)
    shapes = spec.parameter_shapes(16)
    assert shapes["softmax_scale.scale"] == shapes["softmax_scale.bias"] == shapes["frequency_exponents"] == (2,)
    assert shapes["indexer.q_proj.weight"] == (21, 16) and shapes["indexer.hidden_norm.bias"] == (16,)
    assert shapes["indexer.softmax_scale.bias"] == (3,)


def test_a_norm_of_the_rotated_keys_has_weights_where_these_are_made() -> None:
    spec = replace(SPEC, k_rope_norm=NormSpec())
    assert spec.parameter_shapes(16)["k_rope_norm.weight"] == (4,)
    assert "k_rope_norm.weight" not in replace(spec, kv_source=0).parameter_shapes(16)


def test_a_layer_that_reads_another_ones_latents_makes_and_caches_none() -> None:
    reader = replace(SPEC, kv_source=0, bias=True, kv_a_norm=NormSpec())
    assert not [name for name in reader.parameter_shapes(16) if name.startswith("kv_a")]
    assert reader.parameter_shapes(16)["o_proj.bias"] == (16,)
    assert reader.state() == ()
    assert [part.name for part in replace(reader, indexer=INDEXER).state()] == ["index_k"]


def test_only_a_layer_with_an_indexer_caches_its_keys() -> None:
    assert [(part.name, part.shape) for part in SPEC.state()] == [("latent", (14,))]
    assert [part.name for part in replace(SPEC, choice_source=0).state()] == ["latent"]
    indexed = replace(SPEC, indexer=INDEXER)
    assert [(part.name, part.shape) for part in indexed.state()] == [("latent", (14,)), ("index_k", (7,))]
    assert indexed.parameter_shapes(16)["indexer.q_proj.weight"] == (21, 6)
