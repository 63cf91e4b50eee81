"""What is stored of pooled entries, and the products of a token."""

from __future__ import annotations

from dataclasses import replace

from inference.modelling.operations import layer_macs
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.compressed import CompressedAttentionSpec, CompressedIndexerSpec, CompressorSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec
from inference.modelling.specs.sinkhorn_streams import SinkhornStreamsSpec
from inference.modelling.specs.token_moe import TokenMoESpec

ROPE, NORM = RopeSpec(1e4, 4), NormSpec()
HEAVY = CompressedAttentionSpec(
    4, 8, 12, 0.3, ROPE, NORM, 16, 2, 5, compressor=CompressorSpec(128, 8, False, ROPE, NORM)
)
SPARSE = replace(
    HEAVY,
    compressor=CompressorSpec(4, 8, True, ROPE, NORM),
    indexer=CompressedIndexerSpec(3, 7, CompressorSpec(4, 6, True, ROPE, NORM)),
)


def test_entries_take_their_share_of_each_token() -> None:
    assert [(part.name, part.per, part.shape, part.dtype) for part in SPARSE.state()] == [
        ("kv", "token", (8,), "model"),
        ("pooled_pieces", "token", (2,), "model"),
        ("pooled_newest", "sequence", (8,), "model"),
        ("pooled_sums", "sequence", (3, 2, 8), "float32"),
        ("index_pieces", "token", (2,), "model"),
        ("index_newest", "sequence", (6,), "model"),
        ("index_sums", "sequence", (3, 2, 6), "float32"),
    ]
    assert [part.shape for part in HEAVY.state()] == [(8,), (1,), (8,), (3, 1, 8)]
    assert [part.name for part in replace(HEAVY, compressor=None).state()] == ["kv"]


def test_two_series_have_twice_the_rows() -> None:
    shapes = SPARSE.parameter_shapes(16)
    assert shapes["compressor.kv_gate_proj.weight"] == (32, 16) and shapes["compressor.position_bias"] == (4, 16)
    assert shapes["indexer.compressor.kv_gate_proj.weight"] == (24, 16) and shapes["indexer.q_proj.weight"] == (18, 12)
    assert shapes["o_a.group1_proj.weight"] == (5, 16) and shapes["o_b_proj.weight"] == (16, 10)
    assert HEAVY.parameter_shapes(16)["compressor.kv_gate_proj.weight"] == (16, 16)


def test_products_of_a_token_are_counted() -> None:
    experts = TokenMoESpec(4, 2, 8, shared_intermediate_size=8, vocab_size=40)
    streams = SinkhornStreamsSpec(2, 2.0, 1e-6, 1e-6, 3)
    layer = LayerSpec(SPARSE, NORM, channel_mixer=experts, channel_norm=NORM, hyper=streams)
    spec = ModelSpec("huggingface", "x", 16, 40, 64, (layer, replace(layer, token_mixer=HEAVY)), NORM)
    first, second = layer_macs(spec, 1000)
    attention = 12 * 16 + 32 * 12 + 8 * 16 + 2 * 5 * 16 + 16 * 10
    compressors, indexer = 32 * 16, 24 * 16 + 18 * 12 + 3 * 16
    around = 2 * 8 * 2 * 16 + 4 * 16 + 3 * 8 * 16  # streams, router, shared expert; the table is looked up
    assert first.projections == attention + compressors + indexer + around
    assert second.projections == attention + 16 * 16 + around
    assert first.experts == second.experts == 2 * 3 * 8 * 16
    assert first.attention == 3 * 6 * 250 + 4 * (16 + 7) * 16
    assert second.attention == 4 * (16 + 7) * 16


def test_the_whole_is_read_back_from_json() -> None:
    experts = TokenMoESpec(4, 2, 8, vocab_size=40)
    streams = SinkhornStreamsSpec(2, 2.0, 1e-6, 1e-6, 3)
    layer = LayerSpec(SPARSE, NORM, channel_mixer=experts, channel_norm=NORM, hyper=streams)
    spec = ModelSpec("huggingface", "x", 16, 40, 64, (layer,), NORM)
    assert ModelSpec.from_dict(spec.to_dict()) == spec
    assert spec.integer_parameters() == {"layers.0.channel_mixer.token_experts"}
