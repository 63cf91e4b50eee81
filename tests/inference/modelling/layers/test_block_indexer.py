"""Blocks of keys: the query's own is always seen, then the best ones, and never a later key."""

from __future__ import annotations

import torch

from inference.modelling.layers.block_indexer import BlockIndexer
from inference.modelling.specs.indexer import BlockIndexerSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec


def indexer(top_k: int, local_blocks: int = 1) -> BlockIndexer:
    spec = BlockIndexerSpec(head_dim=4, block_size=3, top_k=top_k, local_blocks=local_blocks, norm=NormSpec())
    return BlockIndexer(spec, 2, RopeSpec(1e4, 2), 8)


def seen(bias: torch.Tensor) -> list[int]:
    return torch.nonzero(bias == 0).flatten().tolist()


def test_own_block_and_best_block_are_seen() -> None:
    torch.manual_seed(0)
    query, keys = torch.randn(1, 2, 4), torch.randn(11, 4)
    bias = indexer(2).bias(query, keys, torch.tensor([9]))
    assert bias.shape == (2, 1, 11)
    for head in range(2):
        scores = keys[:9] @ query[0, head]
        best = int(scores.view(3, 3).amax(1).argmax())
        assert seen(bias[head, 0]) == [3 * best, 3 * best + 1, 3 * best + 2, 9]


def test_blocks_before_the_own_one_are_local_too() -> None:
    bias = indexer(2, local_blocks=2).bias(torch.randn(1, 2, 4), torch.randn(11, 4), torch.tensor([10]))
    assert seen(bias[0, 0]) == seen(bias[1, 0]) == [6, 7, 8, 9, 10]


def test_early_queries_see_all_before_them() -> None:
    bias = indexer(3).bias(torch.randn(2, 2, 4), torch.randn(12, 4), torch.tensor([0, 7]))
    assert seen(bias[0, 0]) == [0]
    assert seen(bias[0, 1]) == list(range(8))
