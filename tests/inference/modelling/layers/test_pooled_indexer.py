"""Blocks by the mean of their keys: the best whole ones are seen, all behind the last one, and never a later key."""

from __future__ import annotations

import torch

from inference.modelling.layers.pooled_indexer import PooledIndexer
from inference.modelling.specs.indexer import PooledIndexerSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec


def indexer(top_k: int) -> PooledIndexer:
    spec = PooledIndexerSpec(num_heads=6, head_dim=4, block_size=3, top_k=top_k, norm=NormSpec(eps=1e-6))
    layer = PooledIndexer(spec, RopeSpec(1e4, 2), 8)
    layer.k_norm.weight.data = torch.ones(4)
    return layer


def seen(bias: torch.Tensor) -> list[int]:
    return torch.nonzero(bias == 0).flatten().tolist()


def turned(values: torch.Tensor, position: int) -> torch.Tensor:
    """The rotation of the first two values."""
    angle = torch.tensor(float(position))
    first, second = values[0] * angle.cos() - values[1] * angle.sin(), values[1] * angle.cos() + values[0] * angle.sin()
    return torch.stack((first, second, *values[2:]))


def test_the_best_block_and_the_tail_are_seen() -> None:
    torch.manual_seed(0)
    query, keys = torch.randn(1, 6, 4), torch.randn(12, 4)
    bias = indexer(1).bias(query, keys, torch.tensor([10]))
    assert bias.shape == (1, 1, 12)
    scores = []
    for block in range(3):
        mean = keys[3 * block : 3 * block + 3].mean(0)
        key = turned(mean / mean.square().mean().sqrt(), 3 * block)
        scores.append(float((query[0] @ key).relu().sum()))
    best = scores.index(max(scores))
    assert seen(bias[0, 0]) == [3 * best, 3 * best + 1, 3 * best + 2, 9, 10]


def test_early_queries_see_all_before_them() -> None:
    bias = indexer(2).bias(torch.randn(3, 6, 4), torch.randn(12, 4), torch.tensor([0, 5, 7]))
    assert [seen(row) for row in bias[0]] == [[0], list(range(6)), list(range(8))]


def test_fewer_keys_than_a_block_are_all_seen() -> None:
    assert seen(indexer(2).bias(torch.randn(1, 6, 4), torch.randn(2, 4), torch.tensor([1]))[0, 0]) == [0, 1]


def test_sequences_side_by_side_are_as_alone() -> None:
    layer, queries, keys = indexer(1), torch.randn(2, 1, 6, 4), torch.randn(2, 11, 4)
    positions = torch.tensor([[10], [7]])
    together = layer.bias(queries, keys, positions)
    assert together.shape == (2, 1, 1, 11)
    for number, length in enumerate((11, 8)):
        alone = layer.bias(queries[number], keys[number, :length], positions[number])
        assert seen(together[number, 0, 0]) == seen(alone[0, 0])
