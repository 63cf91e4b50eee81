"""Shapes of what chooses keys, and its key in the cache."""

from __future__ import annotations

from inference.modelling.specs.indexer import BlockIndexerSpec, IndexerSpec, PooledIndexerSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec

ROPE = RopeSpec(1e4, 2)


def test_the_key_of_latent_attention_s_indexer_is_cached() -> None:
    indexer = IndexerSpec(4, 6, 8, ROPE, NormSpec("layer"))
    spec = MLASpec(2, 8, 10, 4, 2, 4, 1.0, ROPE, indexer=indexer)
    assert [(part.name, part.shape) for part in spec.state()] == [("latent", (10,)), ("index_k", (6,))]
    shapes = spec.parameter_shapes(16)
    assert shapes["indexer.q_proj.weight"] == (24, 10) and shapes["indexer.head_weights.weight"] == (4, 16)
    assert shapes["indexer.k_norm.bias"] == (6,)


def test_the_key_of_the_indexer_of_blocks_is_cached() -> None:
    spec = AttentionSpec(4, 2, 4, 1.0, ROPE, block_indexer=BlockIndexerSpec(6, 32, 8, 1, NormSpec()))
    assert [(part.name, part.shape) for part in spec.state()] == [("k", (2, 4)), ("v", (2, 4)), ("index_k", (6,))]
    assert spec.parameter_shapes(16)["indexer.q_proj.weight"] == (12, 16)


def test_the_key_of_the_indexer_of_means_is_cached() -> None:
    spec = AttentionSpec(4, 2, 4, 1.0, ROPE, block_indexer=PooledIndexerSpec(3, 6, 16, 8, NormSpec()))
    assert [(part.name, part.shape) for part in spec.state()] == [("k", (2, 4)), ("v", (2, 4)), ("index_k", (6,))]
    assert spec.parameter_shapes(16)["indexer.qk_proj.weight"] == (24, 16)
